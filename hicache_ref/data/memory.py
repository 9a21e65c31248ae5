"""Host memory: page-aligned, touched before use, pinned where a device asks for it.

Rules of this file
- A block is one mapping, so that a store can register it whole, and its pages exist before the first copy: first touch
  costs more than the copy itself.
- Pinning registers the block where it is; nothing is rounded up to a power of two, as pinned allocators do.
- Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from typing import Any

import torch

from ..config.sizing import HOST_RESERVE_BYTES

_CUDA: Any = torch.cuda  # its runtime has no types


class HostMemoryError(ValueError):
    """Host memory that is not there or cannot be pinned. One line."""


class HostMemory:
    """`size` bytes, zeroed.

    data: uint8 tensor [size]; bytes: a writable memoryview of the same. pin: register with CUDA (None: if it is there).
    """

    def __init__(self, size: int, pin: bool | None = None) -> None:
        if size < 1:
            raise HostMemoryError(f"host memory of {size} bytes: ask for at least one")
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # only Linux has it, and not every kernel
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.size = size
        self.bytes = memoryview(mapping)
        self.data = torch.frombuffer(mapping, dtype=torch.uint8)
        self.data.zero_()
        self.address = self.data.data_ptr()
        self.pinned = torch.cuda.is_available() if pin is None else pin
        if self.pinned:
            _register(self.address, size)
            weakref.finalize(self, _CUDA.cudart().cudaHostUnregister, self.address)


def _register(address: int, size: int) -> None:
    if not torch.cuda.is_available():
        raise HostMemoryError("pinned host memory needs CUDA, and there is none: leave pin unset")
    status = _CUDA.cudart().cudaHostRegister(address, size, 0)
    if int(status):
        raise HostMemoryError(f"CUDA refuses to pin {size / 1e9:.2f} GB of host memory: error {int(status)}")


def available_bytes() -> int:
    """Memory that new blocks may take without swapping, as the kernel estimates it."""
    with suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_host_memory(
    requested_bytes: int, reserve_bytes: int = HOST_RESERVE_BYTES, available: int | None = None
) -> None:
    """Refuse a host pool that does not leave `reserve_bytes` to everybody else, as `memory_pool_host.py` does.

    available: bytes free now (None: ask the system). HostMemoryError: what was asked, what is there, and why.
    """
    free = (available_bytes() if available is None else available) - reserve_bytes
    if requested_bytes > free:
        raise HostMemoryError(
            f"not enough host memory: the host pool asks for {requested_bytes / 1e9:.2f} GB and only {free / 1e9:.2f} "
            f"GB are free beside a reserve of {reserve_bytes / 1e9:.2f} GB; lower --hicache-size or --hicache-ratio"
        )
