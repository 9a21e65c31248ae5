"""The module `eic` as far as upstream's class calls it: the same names, shapes and answers, over a dictionary.

Rules of this file
- It checks its caller: an object that is said to lie in registered memory must lie in it.
- `SERVERS[endpoint]` is what a server holds, by namespace and key; `DOWN` holds endpoints that answer errors.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

SERVERS: dict[str, dict[tuple[str, str], bytes]] = defaultdict(dict)
DOWN: set[str] = set()
ROOM: dict[str, int] = {}


class StatusCode(Enum):
    SUCCESS = 0
    PARTIAL_FAILED = 1
    NOT_FOUND = 2
    UNAVAILABLE = 3
    NO_SPACE = 4


class MemoryType(Enum):
    MEMORY_CUDA = 1


class LogLevel(IntEnum):
    DEBUG, INFO, WARNING = range(3)


class TransportType(IntEnum):
    TCP, RDMA, SHM, AUTO = range(4)


class StringVector(list[str]):
    pass


class IOBuffers(list[tuple[int, int, bool]]):
    def append(self, address: int, size: int, registered: bool) -> None:  # type: ignore[override]
        super().append((address, size, registered))


class _Option(SimpleNamespace):
    ns = ""


class InitOption(_Option):
    pass


class ExistOption(_Option):
    pass


class GetOption(_Option):
    pass


class SetOption(_Option):
    pass


class DelOption(_Option):
    pass


class MemoryInfo(SimpleNamespace):
    pass


class Client:
    def init(self, instance_id: Any, endpoint: str, option: InitOption) -> int:
        self.endpoint, self.option = endpoint, option
        self.registered: list[tuple[int, int]] = []
        return -1 if endpoint in DOWN else 0

    def register_memory(self, buffers: IOBuffers, info: MemoryInfo) -> None:
        assert info.type is MemoryType.MEMORY_CUDA
        self.registered += [(address, size) for address, size, _ in buffers]

    def mexist(self, keys: StringVector, option: ExistOption) -> tuple[StatusCode, Any]:
        assert type(keys) is StringVector and len(keys) <= 2048
        return self._outcome([self._found(option, key) for key in keys])

    def mset(self, keys: StringVector, buffers: IOBuffers, option: SetOption) -> tuple[StatusCode, Any]:
        assert option.ttl_second == -1
        codes = []
        for key, (address, size, _) in zip(keys, self._checked(buffers), strict=True):
            full = len(self._server) >= ROOM.get(self.endpoint, 1 << 30)
            if not full and self.endpoint not in DOWN:
                self._server[option.ns, key] = ctypes.string_at(address, size)
            codes.append(StatusCode.NO_SPACE if full else StatusCode.SUCCESS)
        return self._outcome(codes)

    def mget(self, keys: StringVector, option: GetOption, buffers: IOBuffers) -> tuple[StatusCode, IOBuffers, Any]:
        codes = []
        for key, (address, size, _) in zip(keys, self._checked(buffers), strict=True):
            codes.append(self._found(option, key))
            if codes[-1] is StatusCode.SUCCESS:
                value = self._server[option.ns, key]
                if len(value) != size:
                    codes[-1] = StatusCode.NOT_FOUND
                else:
                    ctypes.memmove(address, value, size)
        status, outcome = self._outcome(codes)
        return status, buffers, outcome

    def mdel(self, keys: StringVector, option: DelOption) -> tuple[StatusCode, Any]:
        for key in keys:
            self._server.pop((option.ns, key), None)
        return self._outcome([StatusCode.SUCCESS] * len(keys))

    @property
    def _server(self) -> dict[tuple[str, str], bytes]:
        return SERVERS[self.endpoint]

    def _found(self, option: Any, key: str) -> StatusCode:
        return StatusCode.SUCCESS if (option.ns, key) in self._server else StatusCode.NOT_FOUND

    def _checked(self, buffers: IOBuffers) -> IOBuffers:
        for address, size, registered in buffers:
            inside = any(start <= address and address + size <= start + length for start, length in self.registered)
            assert inside or not registered, "not registered"
        return buffers

    def _outcome(self, codes: list[StatusCode]) -> tuple[StatusCode, Any]:
        if self.endpoint in DOWN:
            return StatusCode.UNAVAILABLE, SimpleNamespace(status_codes=[StatusCode.UNAVAILABLE] * len(codes))
        whole = all(code is StatusCode.SUCCESS for code in codes)
        return StatusCode.SUCCESS if whole else StatusCode.PARTIAL_FAILED, SimpleNamespace(status_codes=codes)
