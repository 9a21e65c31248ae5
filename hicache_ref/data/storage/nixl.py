"""NIXL: pages in files or in a bucket, moved by a plugin of NVIDIA's transfer library.

Rules of this file
- Objects are upstream's: `<hash>_<model>_<rank>_<ranks>`, without ranks where all have the same rows (MLA). Where host
  layouts give a page in one piece for each component there are two of them, `_k` and `_v`; else one flat page.
- Pipeline stages have names of their own, `_<stages>_<stage>` behind the ranks: upstream's overwrite each other.
- A file lies in `<folder>/<first two digits of a hash>/`. It appears whole: it is written under another name, then
  renamed; upstream writes in place. A file of another length than the object is none.
- With `verify` a file ends in a seal behind the object's bytes, which SGLang does not read. A file without one is
  believed; one whose bytes do not fit its seal is none, and goes.
- Host memory is registered once, files and objects for each transfer. Only one piece can be an object of a bucket, so
  what lies scattered is gathered for it.
- A transfer fails as a whole, and says no more: `StoreFailed`.
- Source: `nixl/*.py` of 0.5.23 (names, folders, keys of the extra config, variables, order of plugins).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .gate import Gate
from .keeping import Keeping, Known, unlimited
from .objects import Buffer, Registrations, cut
from .options import Options, flag, number
from .seal import SEAL_BYTES, Digests, Running, Sealer
from .watermark import Watermark

DEFAULT_FOLDER = "/tmp/hicache_storage"
BLOCK_BYTES = 4096
"""What addresses, lengths and offsets must be multiples of to go around the page cache."""
KNOWN_PATHS = 1 << 14
"""Keys whose paths are remembered: pages are looked for, then read or written."""
POLL_S, SOON = 0.0001, 20
"""Asking moves files on, so at first it is asked without a pause."""
_ENV = "SGLANG_HICACHE_NIXL_"
_PIECEWISE = ("page_first", "page_first_direct")
"""The layouts that upstream moves without a copy."""

FILE_PLUGINS, BUCKET_PLUGINS = ("3FS", "POSIX", "GDS_MT", "GDS"), ("OBJ",)
PARAMETERS = {
    "3FS": ("mem_config", "iopool_size"),
    "POSIX": ("use_aio", "use_uring", "use_posix_aio", "ios_pool_size", "kernel_queue_size"),
    "GDS_MT": ("thread_count",),
    "GDS": ("batch_pool_size", "batch_limit", "max_request_size"),
    "OBJ": (
        *("bucket", "endpoint_override", "scheme", "region", "use_virtual_addressing", "num_threads"),
        *("access_key", "secret_key", "session_token", "req_checksum", "ca_bundle"),
    ),
}
"""What each plugin takes."""


# Settings


def from_options(identity: StorageIdentity, options: Options) -> NixlClient:
    """The client that an operator's settings ask for."""
    plugin, parameters = read_plugin(options)
    direct = options.take("use_direct_io", flag, True, _ENV + "USE_DIRECT_IO")
    verifies = options.take("verify", flag, False)
    cleans = options.take("l3_cleaner_enabled", flag, True)
    percent = number(0.0, 100.0, "a percentage")
    high = options.take("l3_cleaner_high_watermark", percent, 80.0)
    low = options.take("l3_cleaner_low_watermark", percent, 70.0)
    options.end()
    agent = Agent(plugin, parameters, options.environ)
    if agent.plugin in BUCKET_PLUGINS:
        return NixlClient(identity, agent, Bucket(agent))
    folders = read_folders(options.environ.get(_ENV + "BACKEND_STORAGE_DIR") or DEFAULT_FOLDER)
    cleaner = Watermark(folders, high, low)
    client = NixlClient(identity, agent, Folders(agent, folders, direct, Digests() if verifies else None))
    if cleans and identity.tp_rank == 0:
        client.clean(cleaner)
    return client


def read_plugin(options: Options) -> tuple[str, dict[str, str]]:
    """The plugin's name, "auto" for the first that is there, and its parameters: those of its own object, or flat."""
    nothing: dict[str, dict[str, Any]] = {}
    plugins = options.take("plugin", _plugins, nothing)
    if plugins:
        active = [name for name, given in plugins.items() if str(given.get("active", "")).lower() == "true"]
        if not active:
            raise StorageError('nixl: no plugin is active: give one "active": true')
        given = {key: str(value) for key, value in plugins[active[0]].items() if key != "active"}
        return active[0].upper(), given
    name = (options.environ.get(_ENV + "BACKEND_PLUGIN") or "auto").upper()
    known = PARAMETERS.get(name, tuple(itertools.chain.from_iterable(PARAMETERS.values())))
    flat = {key: options.take(key, str, "") for key in known}
    return name, {key: value for key, value in flat.items() if value}


def _plugins(value: Any) -> dict[str, dict[str, Any]]:
    """Parameters by plugin, as JSON has them."""
    if not isinstance(value, Mapping) or not all(isinstance(given, Mapping) for given in value.values()):
        raise ValueError('an object such as {"posix": {"active": true}}')
    for name, given in value.items():
        known = PARAMETERS.get(name.upper())
        if known is None:
            raise ValueError(f"an object with keys of {', '.join(PARAMETERS).lower()}")
        unknown = [key for key in given if key not in (*known, "active")]
        if unknown:
            raise ValueError(f"without {', '.join(unknown)}: {name} knows {', '.join(known)}")
    return {name: dict(given) for name, given in value.items()}


def read_folders(value: str) -> list[str]:
    folders = [folder.strip() for folder in value.split(",") if folder.strip()]
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise StorageError(f"nixl: {_ENV}BACKEND_STORAGE_DIR names a folder twice: {value}")
    return folders


# The library


class Agent:
    """NIXL with one plugin. `plugin`: which. Its calls may come from several threads."""

    def __init__(self, plugin: str, parameters: Mapping[str, str], environ: Mapping[str, str]) -> None:
        api = _api()
        self._name = f"hicache_{uuid.uuid4().hex}"
        strict = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        self._agent = api.nixl_agent(self._name, api.nixl_agent_config(backends=[], sync_mode=strict))
        self.plugin = self._choose(plugin)
        parameters = dict(parameters)
        if self.plugin in BUCKET_PLUGINS and "bucket" not in parameters:
            parameters["bucket"] = environ.get("AWS_DEFAULT_BUCKET", "")
            if not parameters["bucket"]:
                raise StorageError("nixl: no bucket; set bucket in the extra config, or AWS_DEFAULT_BUCKET")
        try:
            self._agent.create_backend(self.plugin, parameters)
        except Exception as error:
            raise StorageError(f"nixl: plugin {self.plugin} does not start: {error}; see its libraries") from None

    def _choose(self, plugin: str) -> str:
        there = self._agent.get_plugin_list()
        wanted = (*FILE_PLUGINS, *BUCKET_PLUGINS) if plugin == "AUTO" else (plugin,)
        for name in wanted:
            if name in there:
                return name
        raise StorageError(f"nixl: no plugin {' or '.join(wanted)} here; there are {', '.join(there)}")

    def register(self, items: Sequence[tuple[int, int, int, str]], kind: str) -> Any:
        """Make (address or offset, bytes, device, meta) known. StoreFailed: it cannot be."""
        try:
            return self._agent.register_memory(list(items), kind)
        except Exception as error:
            raise StoreFailed(f"nixl: cannot register {kind.lower()}: {error}") from error

    def forget(self, handle: Any) -> None:
        with suppress(Exception):  # a store that is gone is forgotten already
            self._agent.deregister_memory(handle)

    def query(self, keys: Sequence[str], kind: str) -> list[Any]:
        """What the store says of each key: a dictionary, or None."""
        try:
            return list(self._agent.query_memory([(0, 0, 0, key) for key in keys], self.plugin, mem_type=kind))
        except Exception as error:
            raise StoreFailed(f"nixl: cannot look for {kind.lower()}: {error}") from error

    def move(self, direction: str, memory: Sequence[Buffer], store: Sequence[tuple[int, int, int]], kind: str) -> None:
        """Move all, "READ" or "WRITE", between `memory` and (offset, bytes, device) of the store. StoreFailed."""
        request = None
        try:
            here = self._agent.get_xfer_descs([(address, size, 0) for address, size in memory], "DRAM")
            there = self._agent.get_xfer_descs(list(store), kind)
            request = self._agent.initialize_xfer(direction, here, there, self._name)
            state = self._agent.transfer(request)
            for waits in itertools.count():
                if state in ("DONE", "ERR"):
                    break
                time.sleep(POLL_S if waits > SOON else 0.0)
                state = self._agent.check_xfer_state(request)
        except Exception as error:
            raise StoreFailed(f"nixl: {direction.lower()} by {self.plugin}: {error}") from error
        finally:
            if request is not None:
                self._agent.release_xfer_handle(request)
        if state == "ERR":
            raise StoreFailed(f"nixl: {direction.lower()} by {self.plugin} failed")


def _api() -> Any:
    """NIXL's Python, built for whichever CUDA is there."""
    for name in ("nixl_cu12", "nixl_cu13"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(f"{name}._api")
    raise ModuleNotFoundError("No module named 'nixl'", name="nixl")


# Where objects are


class Object(NamedTuple):
    """One object of a page, on its way between a store and host memory."""

    key: str
    buffers: list[Buffer]
    size: int


class Found(NamedTuple):
    """How many leading objects are whole now, and whether the next is missing, or there and not whole."""

    good: int
    missing: bool = False


class Space(Protocol):
    """Where objects are: in folders, or in a bucket."""

    def exists(self, keys: Sequence[str]) -> list[bool]: ...
    def present(self, objects: Sequence[Object]) -> list[bool]:
        """Whether each is there and, where that can be told, of its length."""
        ...

    def read(self, objects: Sequence[Object]) -> Found:
        """Read those before the first that is not whole."""
        ...

    def write(self, objects: Sequence[Object]) -> bool:
        """All, or False and none: there is no room."""
        ...

    def clear(self, prefix: str, endings: Sequence[str]) -> None: ...

    def keeps(self, page_bytes: int) -> Keeping: ...


class Folders:
    """Files. `direct`: around the page cache, where addresses and lengths allow it. `sealer`: pages are verified."""

    def __init__(self, agent: Agent, folders: Sequence[str], direct: bool, sealer: Sealer | None = None) -> None:
        self._sealer = sealer
        self._agent = agent
        self._folders = folders
        self._direct = direct
        self._writer = uuid.uuid4().hex
        self._numbers = itertools.count()
        self.path = lru_cache(KNOWN_PATHS)(partial(_path, folders))
        for folder in folders:
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise StorageError(
                    f"nixl: cannot make {folder}: {error.strerror}; set {_ENV}BACKEND_STORAGE_DIR"
                ) from None

    def present(self, objects: Sequence[Object]) -> list[bool]:
        return [_size_bytes(self.path(each.key)) in _lengths(each) for each in objects]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return [_size_bytes(self.path(key)) is not None for key in keys]

    def read(self, objects: Sequence[Object]) -> Found:
        with self._opened([self.path(each.key) for each in objects], os.O_RDONLY, objects) as files:
            sizes = [os.lseek(file, 0, os.SEEK_END) for file in files]  # cheaper than all that fstat tells
            wrong = (at for at, size in enumerate(sizes) if size not in _lengths(objects[at]))
            whole = next(wrong, len(files))
            if whole:
                self._move("READ", objects[:whole], files[:whole])
        sealed = zip(objects[:whole], sizes, strict=False)
        good = next((at for at, (each, size) in enumerate(sealed) if not self._fits(each, size)), whole)
        return Found(good, missing=good == len(files) < len(objects))

    def _fits(self, each: Object, size: int) -> bool:
        """Whether an object's memory holds what its file was sealed with, if anything. Else the file goes."""
        if self._sealer is None or size == each.size:
            return True
        path = self.path(each.key)
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            if _shown(self._sealer, each).fits(os.pread(file.fileno(), SEAL_BYTES, each.size)):
                return True
            os.remove(path)
        return False

    def _seal(self, path: str, each: Object) -> None:
        """Write the seal behind the object, through the page cache, since it has no block's length."""
        if self._sealer is not None:
            with open(path, "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), _shown(self._sealer, each).seal(), each.size)

    def write(self, objects: Sequence[Object]) -> bool:
        total = sum(each.size for each in objects)
        if any(_free_bytes(folder) < total for folder in self._folders):
            return False
        paths = [self.path(each.key) for each in objects]
        unfinished = [f"{path.rpartition('/')[0]}/.{self._writer}.{next(self._numbers)}.tmp" for path in paths]
        try:
            with self._opened(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, objects) as files:
                self._move("WRITE", objects, files)
            for new, path, each in zip(unfinished, paths, objects, strict=True):
                self._seal(new, each)
                os.replace(new, path)
        except (OSError, StoreFailed) as error:
            for new in unfinished:
                with suppress(OSError):
                    os.remove(new)
            raise StoreFailed(f"nixl: {error}") from error
        return True

    def clear(self, prefix: str, endings: Sequence[str]) -> None:
        for folder in self._folders:
            for bucket in range(256):
                with suppress(FileNotFoundError), os.scandir(f"{folder}/{bucket:02x}") as entries:
                    for entry in entries:
                        if _is_page(entry.name, prefix, endings):
                            with suppress(FileNotFoundError):
                                os.remove(entry.path)

    def keeps(self, page_bytes: int) -> Keeping:
        free_bytes = float(sum(map(_free_bytes, self._folders)))
        return {
            "eviction": Known("none", "no cleaner"),
            "capacity_bytes": Known(free_bytes, f"{free_bytes / 1e9:.1f} GB free in its folders"),
        }

    def _move(self, direction: str, objects: Sequence[Object], files: Sequence[int]) -> None:
        memory = [buffer for each in objects for buffer in each.buffers]
        pieces = [place for each, file in zip(objects, files, strict=True) for place in _places(each, file)]
        whole = [(0, each.size, file, "") for each, file in zip(objects, files, strict=True)]
        handle = self._agent.register(whole, "FILE")
        try:
            self._agent.move(direction, memory, pieces, "FILE")
        finally:
            self._agent.forget(handle)

    @contextmanager
    def _opened(self, paths: Sequence[str], flags: int, objects: Sequence[Object]) -> Iterator[list[int]]:
        """The files, up to the first that is not there."""
        buffers = itertools.chain.from_iterable(each.buffers for each in objects)
        if self._direct and not any(number % BLOCK_BYTES for buffer in buffers for number in buffer):
            flags |= os.O_DIRECT
        files: list[int] = []
        try:
            try:
                files.extend(_open(path, flags | os.O_CLOEXEC) for path in paths)
            except FileNotFoundError:
                pass  # whoever was opened before it stays
            except OSError as error:
                raise StoreFailed(f"nixl: {error}") from error
            yield files
        finally:
            for file in files:
                os.close(file)


class Bucket:
    """Objects of S3, and of what speaks like it. They appear whole, but the library tells no lengths, and takes an
    object that is too short for a good one. So a mark is left where its last byte must come, and where that is still
    there the object is read again over another mark."""

    MARKS = (0xA5, 0x5A)

    _devices = itertools.count(1)
    """The plugin finds keys by these, in one table for all its agents."""
    _lock = threading.Lock()

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return [found is not None for found in self._agent.query(keys, "OBJ")]

    def present(self, objects: Sequence[Object]) -> list[bool]:
        return self.exists([each.key for each in objects])

    def read(self, objects: Sequence[Object]) -> Found:
        there = self.present(objects)
        count = there.index(False) if False in there else len(there)
        good = self._read(objects[:count]) if count else 0
        return Found(good, missing=good == count < len(objects))

    def _read(self, objects: Sequence[Object]) -> int:
        """How many leading ones are whole now."""
        with self._in_one_piece(objects) as buffers:
            doubtful = list(range(len(objects)))
            for mark in self.MARKS:
                last = {at: (ctypes.c_ubyte).from_address(sum(buffers[at]) - 1) for at in doubtful}
                for byte in last.values():
                    byte.value = mark
                self._move("READ", [objects[at] for at in doubtful], [buffers[at] for at in doubtful])
                doubtful = [at for at, byte in last.items() if byte.value == mark]
                if not doubtful:
                    break
            good = min(doubtful, default=len(objects))
            for each, (address, _) in zip(objects[:good], buffers, strict=False):
                _copy(each.buffers, address, into_pieces=True)
        return good

    def write(self, objects: Sequence[Object]) -> bool:
        with self._in_one_piece(objects) as buffers:
            for each, (address, _) in zip(objects, buffers, strict=True):
                _copy(each.buffers, address, into_pieces=False)
            self._move("WRITE", objects, buffers)
        return True

    def clear(self, prefix: str, endings: Sequence[str]) -> None:
        raise StoreFailed("nixl: the library cannot remove objects: empty the bucket itself")

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("the bucket has rules of its own, if any")

    def _move(self, direction: str, objects: Sequence[Object], buffers: Sequence[Buffer]) -> None:
        with self._lock:
            devices = [next(self._devices) for _ in objects]
        pairs = list(zip(objects, devices, strict=True))
        handle = self._agent.register([(0, each.size, device, each.key) for each, device in pairs], "OBJ")
        try:
            self._agent.move(direction, buffers, [(0, each.size, device) for each, device in pairs], "OBJ")
        finally:
            self._agent.forget(handle)

    @contextmanager
    def _in_one_piece(self, objects: Sequence[Object]) -> Iterator[list[Buffer]]:
        """A buffer for each object: where it lies, or registered memory beside it."""
        scattered = sum(each.size for each in objects if len(each.buffers) > 1)
        beside = (ctypes.c_char * max(scattered, 1))()
        handle = self._agent.register([(ctypes.addressof(beside), len(beside), 0, "")], "DRAM") if scattered else None
        at, buffers = ctypes.addressof(beside), []
        for each in objects:
            buffers.append(each.buffers[0] if len(each.buffers) == 1 else (at, each.size))
            at += each.size if len(each.buffers) > 1 else 0
        try:
            yield buffers
        finally:
            if handle is not None:
                self._agent.forget(handle)


def _copy(pieces: Sequence[Buffer], whole: int, into_pieces: bool) -> None:
    """Between the pieces of an object and the same bytes at `whole`, unless they lie there."""
    for address, size in pieces:
        if address != whole:
            ctypes.memmove(*((address, whole) if into_pieces else (whole, address)), size)
        whole += size


def _path(folders: Sequence[str], key: str) -> str:
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    return f"{folders[(number >> 16) % len(folders)]}/{number & 255:02x}/{key}"


def _places(each: Object, file: int) -> list[tuple[int, int, int]]:
    """(offset, bytes, file) of each of its buffers."""
    if len(each.buffers) == 1:
        return [(0, each.size, file)]
    ends = itertools.accumulate(size for _, size in each.buffers)
    return [(end - size, size, file) for end, (_, size) in zip(ends, each.buffers, strict=True)]


def _lengths(each: Object) -> tuple[int, int]:
    """What its file may measure: with a seal behind it, and without."""
    return each.size, each.size + SEAL_BYTES


def _shown(sealer: Sealer, each: Object) -> Running:
    """A seal that has seen the object's memory."""
    seal = sealer.begin(each.key)
    for address, size in each.buffers:
        seal.update(memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B"))
    return seal


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o644)


def _size_bytes(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreFailed(f"nixl: {error}") from error


def _free_bytes(folder: str) -> int:
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        raise StoreFailed(f"nixl: {error}") from error
    return disk.f_bavail * disk.f_frsize


def _is_page(file: str, prefix: str, endings: Sequence[str]) -> bool:
    """Whether a file is an object of a page: a hash between `prefix` and an ending. Model names may end alike."""
    ending = next((ending for ending in endings if file.endswith(ending)), None)
    if ending is None or not file.startswith(prefix):
        return False
    name = file[len(prefix) : len(file) - len(ending)]
    return bool(name) and "_" not in name


# The client


class NixlClient:
    """Satisfies `StorageClient` over `space`."""

    def __init__(self, identity: StorageIdentity, agent: Agent, space: Space) -> None:
        self.identity = identity
        if "/" in identity.tag:
            raise StorageError(f"nixl: tag {identity.tag!r} names a folder; take the / out of extra_backend_tag")
        self._space = space
        self._prefix = f"{identity.tag}_" if identity.tag else ""
        self._endings = endings(identity)
        self._counts = Counts()
        self._hosts = Registrations(lambda at, size: agent.register([(at, size, 0, "")], "DRAM"), agent.forget)
        self._cleaner: Watermark | None = None
        self._gate = Gate("the nixl store", self._end)

    def clean(self, cleaner: Watermark) -> None:
        """Have old files removed when the disk is nearly full, as long as this client lives."""
        self._cleaner = cleaner
        cleaner.start()

    def exists(self, names: Sequence[str]) -> int:
        with self._gate:
            return self._whole(self._space.exists(self._keys(names)))

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate:
            found = self._space.read(self._objects(names, host, slots)) if names else Found(0)
            good = found.good // len(self._endings)
            if good < len(names):
                self._counts.add("missed_pages" if found.missing else "bad_pages")
            self._counts.add("read_pages", good)
            return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate:
            objects, each = self._objects(names, host, slots), len(self._endings)
            known = self._space.present(objects)
            new = [page for page in range(len(names)) if not all(known[page * each : (page + 1) * each])]
            self._counts.add("present_pages", len(names) - len(new))
            missing = [one for page in new for one in objects[page * each : (page + 1) * each]]
            if missing and not self._written(missing, new):
                self._counts.add("refused_pages", len(new))
                return new[0]
            self._counts.add("written_pages", len(new))
            return len(names)

    def clear(self) -> None:
        """Remove this identity's objects. Upstream removes everybody's files, and nothing from a bucket."""
        with self._gate:
            self._space.clear(self._prefix, self._endings)

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return self._space.keeps(page_bytes) | (self._cleaner.keeps() if self._cleaner is not None else {})

    def close(self) -> None:
        self._gate.close()

    def _written(self, missing: Sequence[Object], new: Sequence[int]) -> bool:
        try:
            return self._space.write(missing)
        except StoreFailed as failure:
            raise StoreFailed(str(failure), new[0]) from failure

    def _keys(self, names: Sequence[str]) -> list[str]:
        return [self._prefix + name + ending for name in names for ending in self._endings]

    def _objects(self, names: Sequence[str], host: PageMemory, slots: Slots) -> list[Object]:
        self._hosts.ensure(host)
        components, count = 1 if self.identity.replicated else 2, len(self._endings)
        shares = [share for page in slots.tolist() for share in cut(host, page, components, count)]
        size = host.page_bytes // count
        return [Object(key, share, size) for key, share in zip(self._keys(names), shares, strict=True)]

    def _whole(self, fates: Sequence[bool]) -> int:
        """Leading pages of which all objects are well."""
        good = fates.index(False) if False in fates else len(fates)
        return good // len(self._endings)

    def _end(self) -> None:
        if self._cleaner is not None:
            self._cleaner.stop()
        self._hosts.end()


def endings(identity: StorageIdentity) -> list[str]:
    """What follows the hash in the key of each object of a page."""
    model = identity.model_name.replace("/", "-")
    ranks = "" if identity.replicated else f"_{identity.tp_rank}_{identity.tp_size}"
    stage = f"_{identity.pp_size}_{identity.pp_rank}" if identity.pp_size > 1 else ""
    components = ["_k"] if identity.replicated else ["_k", "_v"]
    pieces = components if identity.layout in _PIECEWISE else [""]
    return [f"_{model}{ranks}{stage}{piece}" for piece in pieces]
