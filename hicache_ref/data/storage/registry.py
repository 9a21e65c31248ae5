"""Stores by the name that --hicache-storage-backend takes.

Rules of this file
- A store is one module with a `from_options`, imported when it is asked for; what it needs beyond this project is an
  extra of its name.
- That takes an identity and `Options`, and takes from these all the keys it knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
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


def _later(name: str) -> Callable[..., StorageClient]:
    """The maker in the module of that name, imported when a client is made."""

    def make(identity: StorageIdentity, options: Options) -> StorageClient:
        client: StorageClient = import_module(f".{name}", __package__).from_options(identity, options)
        return client

    return make


for _name in ("file", "lmdb", "mooncake", "redis", "dynamic", "nixl", "eic", "hf3fs", "aibrix", "lmcache"):
    BACKENDS.register(_name)(_later(_name))
