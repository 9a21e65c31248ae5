"""EIC (Elastic Instant Cache): a vendor's store, by the Python module that comes with its image.

Rules of this file
- Keys, settings and calls are those of upstream's class. Settings are in the YAML file that REMOTE_EIC_YAML names; the
  extra config may hold the same keys, and goes first.
- With page_first a component of a page is an object (`_k`, `_v`), sent from where it lies; else the page is one, flat.
  What does not lie in one piece goes through a block that is registered like the pool.
- The module cannot list keys. So `clear` removes what this client has stored, where upstream's removes nothing.
- Length and bytes of an object are the store's to check.
- Source: `eic_storage.py` of 0.5.23.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .flat import gather, scatter
from .gate import Gate
from .keeping import Keeping, unlimited
from .objects import Registrations, cut
from .options import Options, flag, text, whole

CONFIG_VARIABLE = "REMOTE_EIC_YAML"
DEFAULT_CONFIG = "/sgl-workspace/config/remote-eic.yaml"
_ASKED_AT_ONCE = 1024
_REMEMBERED = 1 << 20
"""Stored pages that `clear` knows of."""
_NETWORKS = {f"cuda:{device}": f"eth{1 + device // 2}" for device in range(8)}
"""Upstream's default: the network interface beside each GPU."""


def from_options(identity: StorageIdentity, options: Options) -> EicClient:
    """The client that an operator's settings ask for."""
    options.default_to(_settings(options.environ.get(CONFIG_VARIABLE, DEFAULT_CONFIG)))
    url = options.take("remote_url", text, "")
    init = {
        "log_dir": options.take("eic_log_dir", text, "/tmp/eic-log"),
        "log_level": options.take("eic_log_level", whole(0, 10), 2),
        "transport_type": options.take("eic_trans_type", whole(0, 10), 3),
        "flag_file": options.take("eic_flag_file", text, None),
    }
    instance = options.take("eic_instance_id", str, None)
    namespace = options.take("eic_namespace", str, "")
    registered = [options.take(key, flag, True) for key in ("enable_kvset_direct", "enable_kvget_direct")]
    near = options.take("enable_gpu_nic_affinity", flag, False)
    networks = options.take("gpu_nic_affinity_config", _json_object, _NETWORKS)
    # Upstream's, of which nothing depends here: pages lie in host memory, whose place others choose.
    options.take("eic_thread_num", whole(1, 1024), 1)
    options.take("cpu_nic_affinity_config", _json_object, _NETWORKS)
    for key in ("enable_kvset_gpu_direct", "enable_kvget_gpu_direct"):
        options.take(key, flag, False)
    options.end()
    if not url.startswith("eic://"):
        where = f"the YAML file of {CONFIG_VARIABLE} or the extra config"
        raise StorageError(f"storage backend 'eic': remote_url must be eic://..., got {url!r}; set it in {where}")
    connection = _connect(url.removeprefix("eic://"), instance, init, _network(networks) if near else None)
    return EicClient(identity, connection, namespace, all(registered))


def _settings(path: str) -> Mapping[str, Any]:
    if not os.path.exists(path):
        return {}
    import yaml

    with open(path) as file:
        settings = yaml.safe_load(file)
    if not isinstance(settings, Mapping):
        raise StorageError(f"storage backend 'eic': {path} must be a YAML mapping of settings")
    return settings


def _json_object(value: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(value))
    except (TypeError, ValueError):
        raise ValueError("a JSON object in a string") from None


def _network(networks: Mapping[str, Any]) -> Any:
    import torch

    device = f"cuda:{torch.cuda.current_device()}"
    if device not in networks:
        raise StorageError(f"storage backend 'eic': gpu_nic_affinity_config names no network for {device}")
    return networks[device]


def _connect(endpoint: str, instance: str | None, settings: Mapping[str, Any], network: Any) -> Any:
    eic = _module()
    option = eic.InitOption()
    os.makedirs(settings["log_dir"], exist_ok=True)
    option.log_dir = settings["log_dir"]
    option.log_level = eic.LogLevel(settings["log_level"])
    option.transport_type = eic.TransportType(settings["transport_type"])
    option.flag_file = settings["flag_file"]
    if network is not None:
        option.multi_net_local_interface_names = network
    connection = eic.Client()
    status = connection.init(instance, endpoint, option)
    if status != 0:
        raise StorageError(f"storage backend 'eic': no connection to {endpoint}: its client answers {status}")
    return connection


def _module() -> Any:
    try:
        import eic
    except ModuleNotFoundError:
        raise StorageError(
            "storage backend 'eic' needs the module eic, which no package index has: use the vendor's image"
        ) from None
    return eic


def key_prefix(identity: StorageIdentity) -> str:
    """Upstream's `eic_prefix`: the layout is in it, the pipeline stage is not."""
    if identity.replicated:
        return f"{identity.model_name}_mla_att_{identity.layout}@sglang"
    return f"{identity.model_name}_mha_attn_{identity.layout}_{identity.tp_rank}_{identity.tp_size}_@sglang"


class EicClient:
    """Satisfies `StorageClient` over an initialised client of EIC's. `registers`: copies go through known memory."""

    def __init__(self, identity: StorageIdentity, connection: Any, namespace: str = "", registers: bool = True) -> None:
        self.identity = identity
        self._eic = _module()
        self._connection = connection
        self._namespace = namespace
        self._prefix = (f"{identity.tag}_" if identity.tag else "") + key_prefix(identity)
        self._components = 1 if identity.replicated else 2
        zero_copy = identity.layout == "page_first"
        self._parts = ("_k", "_v") if zero_copy and not identity.replicated else ("",)
        self._counts = Counts()
        self._pools = Registrations(self._register, lambda handle: None)
        self._block = _Block(self._register if registers else None)
        self._stored: dict[str, None] = {}
        self._gate = Gate("the EIC store", lambda: None)

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._asking():
            return (*self._present(names), False).index(False)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        good = 0
        with self._asking(), self._lent(host, slots) as pages:
            if names:
                fates = self._call("mget", names, pages.buffers)
                good = (*fates, False).index(False)
                pages.deliver(good)
        self._counts.add("read_pages", good)
        self._counts.add("missed_pages", int(good < len(names)))
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._asking():
            fates = self._present(names)
            new = [at for at, there in enumerate(fates) if not there]
            self._counts.add("present_pages", len(names) - len(new))
            if new:
                with self._lent(host, slots[new]) as pages:
                    pages.fill()
                    stored = self._call("mset", [names[at] for at in new], pages.buffers)
                for at, good in zip(new, stored, strict=True):
                    fates[at] = good
                    if good:
                        self._remember(names[at])
        written = sum(fates[at] for at in new)
        self._counts.add("written_pages", written)
        self._counts.add("refused_pages", len(new) - written)
        return (*fates, False).index(False)

    def clear(self) -> None:
        with self._asking():
            names = list(self._stored)
            for first in range(0, len(names), _ASKED_AT_ONCE):
                self._connection.mdel(self._keys(names[first : first + _ASKED_AT_ONCE]), self._option("DelOption"))
            self._stored.clear()

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("EIC tells no client what it holds")

    def close(self) -> None:
        self._gate.close()

    # Calls

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._gate:
            try:
                yield
            except StoreFailed:
                raise
            except Exception as error:
                raise StoreFailed(f"EIC: {error}") from error

    def _present(self, names: Sequence[str]) -> list[bool]:
        fates: list[bool] = []
        for first in range(0, len(names), _ASKED_AT_ONCE):
            batch = names[first : first + _ASKED_AT_ONCE]
            status, outcome = self._connection.mexist(self._keys(batch), self._option("ExistOption"))
            fates += self._fates("mexist", status, outcome, len(batch))
        return fates

    def _call(self, call: str, names: Sequence[str], buffers: list[tuple[int, int, bool]]) -> list[bool]:
        """mget or mset of pages whose objects are `buffers` (address, bytes, registered); for each whether it went."""
        memory = self._eic.IOBuffers()
        for buffer in buffers:
            memory.append(*buffer)
        keys = self._keys(names)
        if call == "mget":
            status, _, outcome = self._connection.mget(keys, self._option("GetOption"), memory)
        else:
            option = self._option("SetOption")
            option.ttl_second = -1
            status, outcome = self._connection.mset(keys, memory, option)
        return self._fates(call, status, outcome, len(names))

    def _fates(self, call: str, status: Any, outcome: Any, pages: int) -> list[bool]:
        """Pages all of whose objects succeeded. StoreFailed: the call as a whole did not."""
        codes = self._eic.StatusCode
        if status not in (codes.SUCCESS, codes.PARTIAL_FAILED):
            raise StoreFailed(f"EIC: {call} answers {status}")
        each = len(self._parts)
        good = [code == codes.SUCCESS for code in outcome.status_codes]
        return [all(good[at : at + each]) for at in range(0, pages * each, each)]

    def _keys(self, names: Sequence[str]) -> Any:
        keys = self._eic.StringVector()
        for name in names:
            for part in self._parts:
                keys.append(f"{self._prefix}_{name}{part}")
        return keys

    def _option(self, kind: str) -> Any:
        option = getattr(self._eic, kind)()
        option.ns = self._namespace
        return option

    def _register(self, address: int, size_bytes: int) -> None:
        facts = self._eic.MemoryInfo()
        facts.type, facts.cuda_id = self._eic.MemoryType.MEMORY_CUDA, 0
        memory = self._eic.IOBuffers()
        memory.append(address, size_bytes, True)
        self._connection.register_memory(memory, facts)

    def _remember(self, name: str) -> None:
        self._stored[name] = None
        if len(self._stored) > _REMEMBERED:
            self._stored.pop(next(iter(self._stored)), None)

    # Memory

    @contextmanager
    def _lent(self, host: PageMemory, slots: Slots) -> Iterator[_InPlace | _Copied]:
        """Where the objects of pages are while they are on their way."""
        pages = [cut(host, page, self._components, len(self._parts)) for page in slots.tolist()]
        if all(len(buffers) == 1 for objects in pages for buffers in objects):
            self._pools.ensure(host)
            yield _InPlace([(*buffers[0], True) for objects in pages for buffers in objects])
            return
        with self._block.lent(len(slots) * host.page_bytes) as (block, registered):
            yield _Copied(host, slots, block, registered, len(self._parts))


class _InPlace:
    """Pages whose objects lie in one piece each."""

    def __init__(self, buffers: list[tuple[int, int, bool]]) -> None:
        self.buffers = buffers

    def fill(self) -> None:
        """They are where they are looked for."""

    def deliver(self, count: int) -> None:
        """They are where they belong."""


class _Copied:
    """Pages on their way through a block."""

    def __init__(self, host: PageMemory, slots: Slots, block: memoryview, registered: bool, parts: int) -> None:
        self._host, self._slots, self._block = host, slots.tolist(), block
        each = host.page_bytes // parts
        start = ctypes.addressof(ctypes.c_char.from_buffer(block)) if len(self._slots) else 0
        count = len(self._slots) * parts
        self.buffers = [(start + at * each, each, registered) for at in range(count)]

    def fill(self) -> None:
        for at, slot in enumerate(self._slots):
            self._page(at)[:] = gather(self._host, slot)

    def deliver(self, count: int) -> None:
        for at, slot in enumerate(self._slots[:count]):
            scatter(self._page(at), self._host, slot)

    def _page(self, at: int) -> memoryview:
        return self._block[at * self._host.page_bytes :][: self._host.page_bytes]


class _Block:
    """Memory for one batch at a time, as large as the largest was; `register(address, bytes)` makes it known."""

    def __init__(self, register: Any) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._memory = memoryview(bytearray())

    @contextmanager
    def lent(self, size_bytes: int) -> Iterator[tuple[memoryview, bool]]:
        with self._lock:
            if size_bytes > self._memory.nbytes:
                self._memory = memoryview(bytearray(size_bytes))
                if self._register is not None:
                    self._register(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)), size_bytes)
            yield self._memory, self._register is not None
