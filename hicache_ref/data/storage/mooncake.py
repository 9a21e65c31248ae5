"""The Mooncake store: pages in the memory of other machines, moved between it and host pages without a copy.

Rules of this file
- Objects are upstream's: `[tag_][model_]<hash>_<rank>_k` and `_v`, `<hash>__k` where all ranks have the same rows
  (MLA). With `tp_lcm_size` and heads in front (page_head) there is a pair for each rank of the larger system.
- An object is immutable and appears whole. With `"verify": true` each has a seal beside it (`mooncake_seals`). One of
  another length, or that its seal does not fit, is a bad page, and goes, so that it is written again.
- Codes, not exceptions, say what happened. No room is a refusal, not found a miss; all else means that the store is
  unwell (`StoreFailed`). A dead master costs 4 s a call, which the workers bound.
- The store is let go when nobody calls it any more; a call that hangs for ever keeps it.
- Source: `mooncake_store.py` of 0.5.23 (names, keys of the extra config, variables, order of sources).
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .gate import Gate
from .keeping import Keeping, Known
from .mooncake_seals import SEAL, NoSeals, Seals, StoredSeals
from .objects import Buffer, Registrations, cut
from .options import Options, flag, text, whole

LOCAL_BUFFER_BYTES = 16 << 20
"""What upstream leaves the store for copies of its own; zero copy needs none."""
WARM_UP_TRIES, WAIT_S, SERVER_WAIT_S, KNOCK_S = 10, 1.0, 600.0, 3.0
_CONFIG_PATH = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
_LIBRARIES = "on Debian: apt-get install libibverbs1 librdmacm1 libnuma1 liburing2"

NO_ROOM, WRONG_SIZE, BEING_WRITTEN, NOT_FOUND, LEASE_ENDED, TRANSFER_FAILED = -200, -600, -703, -704, -707, -800
_MISSES = (BEING_WRITTEN, NOT_FOUND, LEASE_ENDED)
HAS_LEASE = -706
DAMAGED = -1_000_000
"""Ours, not the store's: an object is not what was sealed."""
LONGEST_LEASE_S, LOOK_S = 30.0, 0.05


# Settings


@dataclass(frozen=True)
class Settings:
    """What a connection is made of. global_segment_bytes: what this rank lends to the store."""

    master: str
    local_hostname: str
    metadata_server: str
    global_segment_bytes: int
    protocol: str
    device_name: str
    extras: Mapping[str, Any]
    """More arguments of `setup`."""
    metrics_url: str
    """Where the master tells of itself."""
    waits: bool
    """Whether there must be a segment first."""


def from_options(identity: StorageIdentity, options: Options) -> MooncakeClient:
    """The client that an operator's settings ask for, connected. StorageError: wrong settings, or nobody answers."""
    settings = read_settings(identity, options)
    grouped = options.take("enable_group_semantics", flag, False)
    wide = options.take("tp_lcm_size", whole(1, 1 << 16), 0)
    verify = options.take("verify", flag, False)
    options.end()
    connection = connect(settings)
    return MooncakeClient(identity, connection, connection.close, tp_lcm_size=wide, grouped=grouped, verify=verify)


def read_settings(identity: StorageIdentity, options: Options) -> Settings:
    """From the extra config, if it names a master; else from the file that a variable names; else from variables."""
    in_extra = bool(options.take("master_server_address", text, ""))
    path = options.environ.get(_CONFIG_PATH)
    if not in_extra and path:
        options.default_to(_read_file(path))
    by_variables = not in_extra and not path

    def take(key: str, read: Callable[[Any], Any], default: Any, env: str) -> Any:
        return options.take(key, read, default, env if by_variables else None)

    master = take("master_server_address", text, "", "MOONCAKE_MASTER")
    if not master:
        raise StorageError("mooncake: no master; set master_server_address in the extra config, or MOONCAKE_MASTER")
    if take("standalone_storage", flag, False, "MOONCAKE_STANDALONE_STORAGE") or options.take(
        "client_server_address", text, "", "MOONCAKE_CLIENT"
    ):
        raise StorageError(
            "mooncake: standalone_storage needs host memory of Mooncake's own allocator, which L2 is not: "
            "name a master_server_address"
        )
    segment_bytes = take("global_segment_size", segment_size, 4 << 30, "MOONCAKE_GLOBAL_SEGMENT_SIZE")
    metrics_port = take("master_metrics_port", whole(1, 65535), 9003, "MOONCAKE_MASTER_METRICS_PORT")
    checks = take("check_server", flag, False, "MOONCAKE_CHECK_SERVER")
    return Settings(
        master=master,
        local_hostname=_local_hostname(options),
        metadata_server=take("metadata_server", text, "P2PHANDSHAKE", "MOONCAKE_TE_META_DATA_SERVER"),
        global_segment_bytes=segment_bytes // (identity.tp_size * identity.pp_size),
        protocol=options.take("protocol", text, "rdma", "MOONCAKE_PROTOCOL"),
        device_name=_device(take("device_name", str, "", "MOONCAKE_DEVICE"), identity.tp_rank),
        extras=_extras(identity, take),
        metrics_url=f"http://{master.rpartition(':')[0]}:{metrics_port}",
        waits=checks,
    )


def _extras(identity: StorageIdentity, take: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of `setup` that are given only where they are not the default."""
    extras: dict[str, Any] = {}
    if take("enable_ssd_offload", flag, False, "MOONCAKE_ENABLE_SSD_OFFLOAD"):
        extras["enable_ssd_offload"] = True
    folder = take("ssd_offload_path", text, "", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")
    if folder:
        # Ranks that shared a folder would overwrite each other's files.
        extras["ssd_offload_path"] = os.path.join(folder, f"rank_0_{identity.tp_rank}_{identity.pp_rank}_0")
    tenant = take("tenant_id", lambda value: str(value).strip(), "", "MOONCAKE_TENANT_ID") or "default"
    if tenant != "default":
        extras["tenant_id"] = tenant
    return extras


def segment_size(value: Any) -> int:
    """Bytes: a number, or upstream's "4gb"."""
    match = re.fullmatch(r"(\d+)\s*(gb)?", str(value).strip().lower())
    if match is None:
        raise ValueError('a size in bytes, or such as "4gb"')
    return int(match[1]) << (30 if match[2] else 0)


def _read_file(path: str) -> Mapping[str, Any]:
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise StorageError(f"mooncake: {_CONFIG_PATH}: cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise StorageError(f"mooncake: {_CONFIG_PATH}: {path} must hold a JSON object")
    return found


def _local_hostname(options: Options) -> str:
    """The environment goes first here, since all nodes may share one extra config."""
    name = options.take("local_hostname", text, "localhost")
    return options.environ.get("MOONCAKE_LOCAL_HOSTNAME") or options.environ.get("LOCAL_HOSTNAME") or name


def _device(name: str, rank: int) -> str:
    """A device, or this rank's of a JSON object by rank."""
    if not name.strip().startswith("{"):
        return name
    try:
        return str(json.loads(name).get(str(rank), ""))
    except ValueError:
        raise StorageError(f"mooncake: device_name is neither a device nor JSON by rank: {name}") from None


# Connection


class Connection:
    """A connected `MooncakeDistributedStore`, and the host memory that it knows. Clients may share one."""

    def __init__(self, store: Any, metrics_url: str) -> None:
        self.store = store
        self._metrics_url = metrics_url
        self.hosts = Registrations(self._register, store.unregister_buffer)

    def close(self) -> None:
        self.hosts.end()
        self.store.close()

    def capacity_bytes(self) -> float | None:
        """Of all segments together, as the master counts them; None: it does not tell."""
        try:
            with urllib.request.urlopen(f"{self._metrics_url}/metrics", timeout=3) as answer:
                found = re.search(rb"^master_total_capacity_bytes(?:\{[^}]*\})? (\S+)", answer.read(), re.MULTILINE)
        except OSError:
            return None
        return float(found[1]) if found else None

    def lease_s(self) -> float | None:
        """How long an object that was asked for cannot be removed; None: for longer than anybody would wait here."""
        key = f"hicache_lease_{uuid.uuid4().hex}"
        if self.store.put(key, bytes(4096)):
            return None
        began_s = time.monotonic()
        self.store.is_exist(key)
        while (code := self.store.remove(key)) == HAS_LEASE and time.monotonic() - began_s < LONGEST_LEASE_S:
            time.sleep(LOOK_S)
        passed_s = time.monotonic() - began_s
        if code == HAS_LEASE:
            self.store.remove(key, True)
            return None
        return passed_s

    def _register(self, address: int, size: int) -> int:
        code = self.store.register_buffer(address, size)
        if code:
            raise StoreFailed(f"mooncake: cannot register {size} bytes of host memory (code {code})")
        return address


def connect(settings: Settings) -> Connection:
    """A store that has proved to take pages. StorageError: it has not."""
    store = _store_class()()
    _knock(settings.master)
    if settings.waits:
        _wait_for_segments(f"{settings.metrics_url}/get_all_segments")
    if "ssd_offload_path" in settings.extras:
        os.makedirs(settings.extras["ssd_offload_path"], exist_ok=True)
    if settings.protocol == "tcp":
        os.environ.setdefault("MC_TCP_ENABLE_CONNECTION_POOL", "1")  # twice as fast as a connection for each transfer
    code = store.setup(
        settings.local_hostname,
        settings.metadata_server,
        settings.global_segment_bytes,
        LOCAL_BUFFER_BYTES,
        settings.protocol,
        settings.device_name,
        settings.master,
        **settings.extras,
    )
    if code:
        raise StorageError(
            f"mooncake: no connection to the master at {settings.master} by {settings.protocol} (code {code}): "
            "is that a mooncake_master, and protocol right (rdma or tcp)?"
        )
    _warm_up(store)
    return Connection(store, settings.metrics_url)


def _knock(master: str) -> None:
    """Setting up without a master takes 90 s to fail, so look first. Where only etcd knows the master, nobody can."""
    host, _, port = master.rpartition(":")
    if "://" in master or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), KNOCK_S).close()
    except OSError as error:
        raise StorageError(
            f"mooncake: no master at {master}: {error}; start mooncake_master there, or set master_server_address"
        ) from None


def _store_class() -> Any:
    try:
        from mooncake.store import MooncakeDistributedStore
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        raise StorageError(f"mooncake: {error}; {_LIBRARIES}") from None
    return MooncakeDistributedStore


def _warm_up(store: Any) -> None:
    """Write a little, since the first transfers may come before the transport is ready."""
    key, code = f"hicache_warm_up_{uuid.uuid4().hex}", -1
    for attempt in range(WARM_UP_TRIES):
        code = store.put(key, bytes(4096))
        if code == 0:
            store.remove(key, True)
            return
        if attempt < WARM_UP_TRIES - 1:
            time.sleep(WAIT_S)
    store.close()
    raise StorageError(
        f"mooncake: the store takes nothing (code {code}): give ranks a global_segment_size, or start a store service"
    )


def _wait_for_segments(url: str) -> None:
    until_s = time.monotonic() + SERVER_WAIT_S
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=3) as answer:
                if answer.read():
                    return
        except OSError:
            pass  # not yet
        time.sleep(WAIT_S)
    raise StorageError(f"mooncake: check_server: no segment at {url} within {SERVER_WAIT_S:g} s")


# The client


class _Parts(NamedTuple):
    """Objects of a batch, those of a page side by side: key, buffers, bytes."""

    keys: list[str]
    buffers: list[list[Buffer]]
    sizes: list[int]


class MooncakeClient:
    """Satisfies `StorageClient` over `connection`, which `let_go` gives back."""

    def __init__(
        self,
        identity: StorageIdentity,
        connection: Connection,
        let_go: Callable[[], object],
        *,
        tp_lcm_size: int = 0,
        grouped: bool = False,
        verify: bool = False,
    ) -> None:
        self.identity = identity
        self._connection = connection
        self._store = connection.store
        self._hosts = connection.hosts
        self._prefix = key_prefix(identity)
        self._suffixes = key_suffixes(identity, tp_lcm_size)
        self._grouped = grouped
        self._seals: Seals = StoredSeals(connection.store) if verify else NoSeals()
        self._counts = Counts()
        self._gate = Gate("the mooncake store", let_go)

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._gate:
            codes = self._store.batch_is_exist(self._keys(names)) if names else []
            return self._answer("exists", codes, _first(code != 1 for code in codes), (0,))

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate:
            parts = self._parts(names, host, slots)
            moved = self._read(parts)
            failed = _first(code != size for code, size in zip(moved, parts.sizes, strict=True))
            self._counts.add("read_pages", failed // len(self._suffixes))
            if failed < len(moved):
                missed, bad = moved[failed] in _MISSES, self._is_bad(parts, failed, moved[failed])
                self._counts.add("missed_pages", missed)
                self._counts.add("bad_pages", bad)
                if bad:
                    self._forget(names[failed // len(self._suffixes)])
                    return failed // len(self._suffixes)
            return self._answer("get", moved, failed, _MISSES)

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate:
            parts = self._parts(names, host, slots)
            known = self._store.batch_is_exist(parts.keys) if names else []
            new = [at for at, code in enumerate(known) if code != 1]
            codes = [0] * len(known)
            for at, code in zip(new, self._write(parts, new), strict=True):
                codes[at] = code
            self._count_put(known, codes)
            return self._answer("put", codes, _first(code != 0 for code in codes), (NO_ROOM,))

    def clear(self) -> None:
        """Remove this identity's objects. Upstream removes everybody's."""
        with self._gate:
            endings = "|".join(map(re.escape, self._suffixes))
            code = self._store.remove_by_regex(f"^{re.escape(self._prefix)}[0-9a-f]+({endings})({SEAL})?$", True)
            if code < 0:
                raise StoreFailed(f"mooncake: clear: code {code}")

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        """Marks are the master's own flags, of which it tells nobody."""
        with self._gate:
            capacity_bytes, lease_s = self._connection.capacity_bytes(), self._connection.lease_s()
        known = {"eviction": Known("watermark_lease", "its documentation")}
        if capacity_bytes is not None:
            known["capacity_bytes"] = Known(capacity_bytes, "its master's metrics, all segments together")
        if lease_s is not None:
            known["lease_s"] = Known(lease_s, "until an object that was asked for could be removed")
        return known

    def close(self) -> None:
        self._gate.close()

    # Objects

    def _keys(self, names: Sequence[str]) -> list[str]:
        return [self._prefix + name + suffix for name in names for suffix in self._suffixes]

    def _parts(self, names: Sequence[str], host: PageMemory, slots: Slots) -> _Parts:
        self._hosts.ensure(host)
        components, objects = 1 if self.identity.replicated else 2, len(self._suffixes)
        buffers = [share for page in slots.tolist() for share in cut(host, page, components, objects)]
        return _Parts(self._keys(names), buffers, [host.page_bytes // objects] * len(buffers))

    def _read(self, parts: _Parts) -> Sequence[int]:
        """Bytes read of each object, or a code."""
        if not parts.keys:
            return ()
        if all(len(buffers) == 1 for buffers in parts.buffers):
            addresses = [buffers[0][0] for buffers in parts.buffers]
            moved = list(self._store.batch_get_into(parts.keys, addresses, parts.sizes))
        else:
            moved = list(self._store.batch_get_into_multi_buffers(parts.keys, *_scattered(parts.buffers)))
        whole = _first(code != size for code, size in zip(moved, parts.sizes, strict=True))
        for at in self._seals.wrong(parts.keys[:whole], parts.buffers[:whole]):
            moved[at] = DAMAGED
        return moved

    def _forget(self, name: str) -> None:
        """Remove a page that is not what it should be, so that it is written again."""
        keys = self._keys([name])
        self._store.batch_remove([*keys, *(key + SEAL for key in keys)], True)

    def _write(self, parts: _Parts, new: Sequence[int]) -> Sequence[int]:
        """The code of each of the `new` objects."""
        if not new:
            return ()
        keys, buffers = [parts.keys[at] for at in new], [parts.buffers[at] for at in new]
        config = self._group_config(new, keys)
        codes: Sequence[int]
        if all(len(pieces) == 1 for pieces in buffers):
            addresses, sizes = [pieces[0][0] for pieces in buffers], [parts.sizes[at] for at in new]
            codes = self._store.batch_put_from(keys, addresses, sizes, *config)
        else:
            codes = self._store.batch_put_from_multi_buffers(keys, *_scattered(buffers), *config)
        stored = [at for at, code in enumerate(codes) if code == 0]
        self._seals.write([keys[at] for at in stored], [buffers[at] for at in stored])
        return codes

    def _group_config(self, new: Sequence[int], keys: Sequence[str]) -> list[Any]:
        """With group semantics, what ties the objects of a page together, for the store to evict them together."""
        if not self._grouped:
            return []
        from mooncake.store import ReplicateConfig

        config = ReplicateConfig()
        endings = [self._suffixes[at % len(self._suffixes)] for at in new]
        config.group_ids = [
            f"sglang-hicache:{key.removesuffix(ending)}" for key, ending in zip(keys, endings, strict=True)
        ]
        return [config]

    # Outcomes

    def _answer(self, call: str, codes: Sequence[int], failed: int, mild: Sequence[int]) -> int:
        """Pages whole before object `failed`, or `StoreFailed` where its code is not among those that are no harm."""
        pages = failed // len(self._suffixes)
        if failed < len(codes) and codes[failed] not in mild:
            raise StoreFailed(f"mooncake: {call}: code {codes[failed]}", pages)
        return pages

    def _is_bad(self, parts: _Parts, at: int, code: int) -> bool:
        """Whether the object is there, but not the page that was asked for."""
        size = code
        if code == TRANSFER_FAILED and len(parts.buffers[at]) > 1:  # what a scattered read of a short object answers
            size = self._store.get_size(parts.keys[at])
        return code in (WRONG_SIZE, DAMAGED) or (size >= 0 and size != parts.sizes[at])

    def _count_put(self, known: Sequence[int], codes: Sequence[int]) -> None:
        objects = len(self._suffixes)
        for at in range(0, len(codes), objects):
            page = slice(at, at + objects)
            if any(codes[page]):
                self._counts.add("refused_pages", NO_ROOM in codes[page])
            else:
                self._counts.add("present_pages" if set(known[page]) == {1} else "written_pages")


def key_prefix(identity: StorageIdentity) -> str:
    parts = [identity.tag, identity.model_name.replace("/", "-")]
    return "".join(f"{part}_" for part in parts if part)


def key_suffixes(identity: StorageIdentity, tp_lcm_size: int = 0) -> list[str]:
    """What follows the hash in the key of each object of a page, in the order of its bytes."""
    stage = f"{identity.pp_rank}" if identity.pp_size > 1 else ""
    if identity.replicated:
        return [f"_{stage}_k"]
    ranks = [f"{rank}_{stage}" if stage else f"{rank}" for rank in _ranks(identity, tp_lcm_size)]
    return [f"_{rank}_{component}" for component in "kv" for rank in ranks]


def _ranks(identity: StorageIdentity, tp_lcm_size: int) -> range:
    """Of the system of `tp_lcm_size` ranks, those whose heads this rank has. Only page_head has them in one piece."""
    if tp_lcm_size % identity.tp_size:
        raise StorageError(f"mooncake: tp_lcm_size {tp_lcm_size} is not a multiple of TP size {identity.tp_size}")
    each = max(tp_lcm_size // identity.tp_size, 1) if identity.layout == "page_head" else 1
    return range(identity.tp_rank * each, (identity.tp_rank + 1) * each)


def _scattered(buffers: Sequence[Sequence[Buffer]]) -> tuple[list[list[int]], list[list[int]]]:
    """Addresses and bytes, as the store takes them."""
    addresses = [[address for address, _ in pieces] for pieces in buffers]
    return addresses, [[size for _, size in pieces] for pieces in buffers]


def _first(failures: Iterable[bool]) -> int:
    """Where the first failure is; how many there were to look at, if none is."""
    at = -1
    for at, failure in enumerate(failures):
        if failure:
            return at
    return at + 1
