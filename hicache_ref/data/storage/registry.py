"""Stores by the name that --hicache-storage-backend takes.

Rules of this file
- A store is one module, imported when it is asked for; what it needs beyond this project is an extra of its name.
- A maker takes an identity and `Options`, and takes from these all the keys it knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hicache_ref.policy.registry import Registry

from .client import StorageClient, StorageError, StorageIdentity
from .options import Options, text

BACKENDS: Registry[StorageClient] = Registry("storage backend")


def make_client(
    name: str,
    identity: StorageIdentity,
    extra_config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> StorageClient:
    """The client called `name`. `extra_config`: what SGLang itself does not read of the JSON.

    StorageError: an unknown name, an unknown key, a wrong value, or something that must be installed first.
    """
    if name not in BACKENDS:
        raise StorageError(f"unknown storage backend {name!r}; known: {', '.join(BACKENDS)}")
    options = Options(name, extra_config or {}, os.environ if environ is None else environ)
    identity = replace(identity, tag=options.take("extra_backend_tag", text, identity.tag))
    try:
        return BACKENDS.make(name, identity=identity, options=options)
    except ModuleNotFoundError as error:
        hint = f"pip install 'hicache[{name}]'"
        raise StorageError(f"storage backend {name!r} needs the module {error.name}: {hint}") from None


@BACKENDS.register("file")
def _file(identity: StorageIdentity, options: Options) -> StorageClient:
    from .file import from_options

    return from_options(identity, options)


@BACKENDS.register("lmdb")
def _lmdb(identity: StorageIdentity, options: Options) -> StorageClient:
    from .lmdb import from_options

    return from_options(identity, options)


@BACKENDS.register("mooncake")
def _mooncake(identity: StorageIdentity, options: Options) -> StorageClient:
    from .mooncake import from_options

    return from_options(identity, options)


@BACKENDS.register("redis")
def _redis(identity: StorageIdentity, options: Options) -> StorageClient:
    from .redis import from_options

    return from_options(identity, options)


@BACKENDS.register("dynamic")
def _dynamic(identity: StorageIdentity, options: Options) -> StorageClient:
    from .dynamic import from_options

    return from_options(identity, options)


@BACKENDS.register("nixl")
def _nixl(identity: StorageIdentity, options: Options) -> StorageClient:
    from .nixl import from_options

    return from_options(identity, options)


@BACKENDS.register("eic")
def _eic(identity: StorageIdentity, options: Options) -> StorageClient:
    from .eic import from_options

    return from_options(identity, options)


@BACKENDS.register("hf3fs")
def _hf3fs(identity: StorageIdentity, options: Options) -> StorageClient:
    from .hf3fs import from_options

    return from_options(identity, options)


@BACKENDS.register("aibrix")
def _aibrix(identity: StorageIdentity, options: Options) -> StorageClient:
    from .aibrix import from_options

    return from_options(identity, options)


@BACKENDS.register("lmcache")
def _lmcache(identity: StorageIdentity, options: Options) -> StorageClient:
    from .lmcache import from_options

    return from_options(identity, options)
