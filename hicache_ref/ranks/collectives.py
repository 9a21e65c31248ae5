"""What ranks compute together: sums inside a forward, and the step after which a decode stops.

Rules of this file
- Called on the compute stream's thread only. Batches are agreed on, so every rank makes the same calls in the same
  order; a rank that is missing makes the others fail after `TIMEOUT_S`, none waits for ever.
- A decode stops where rank 0 says, asked after each step but the last: were each rank to stop when its own cancel
  comes, one would be a step ahead, in a sum that nobody else is in.
- Groups are objects, beside whatever torch.distributed's default group is. Ranks share a machine: gloo meets on the
  loopback. Sums go by NCCL where each rank has a GPU to itself, else by gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

from ..config.server_args import ConfigError

TIMEOUT_S = 300.0
"""The longest one rank waits for another within a sum."""
HOST = "127.0.0.1"

dist: Any = torch.distributed  # whose groups and stores have no types


class Placement(NamedTuple):
    """On which device a rank computes, and by which backend it sums."""

    device: str
    backend: str


def placement(device: str, rank: int, size: int) -> Placement:
    """`cpu`: all of them there. `cuda`: a GPU each. `cuda:N`: they share that one, which NCCL does not let them.

    ConfigError: not enough GPUs.
    """
    asked = torch.device(device)
    if asked.type != "cuda" or asked.index is not None:
        return Placement(device, "gloo")
    if torch.cuda.device_count() < size:
        raise ConfigError(
            f"--device {device} with {size} ranks",
            f"this machine has {torch.cuda.device_count()} GPUs",
            "take a smaller --tp-size, or --device cuda:0 to share one",
            "run",
        )
    return Placement(f"{device}:{rank}", "nccl")


def _gloo(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
    options._timeout = timedelta(seconds=TIMEOUT_S)
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=TIMEOUT_S)
    return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)


GROUPS: dict[str, Callable[[Any, int, int], Any]] = {"gloo": _gloo, "nccl": _nccl}


class Collectives:
    """One rank's way to the others.

    store: where they meet. backend: of the sums; `Placement` says which. exact: sums are taken in the order of the
    ranks, so that their bits depend on nothing else; more bytes are sent for it.
    """

    def __init__(self, store: Any, rank: int, size: int, backend: str, exact: bool) -> None:
        self._size = size
        self._asks = _gloo(dist.PrefixStore("asks", store), rank, size)
        self._sums = GROUPS[backend](store, rank, size)
        self._stop = torch.zeros(1, dtype=torch.uint8)
        self._reduce = self._sum_in_order if exact else self._sum

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over the ranks. Uses its memory."""
        return self._reduce(x)

    def stops(self, asked: bool) -> bool:
        """Whether the decode stops after this step: if rank 0 has been asked to by now."""
        self._stop.fill_(asked)
        self._asks.broadcast(self._stop, 0).wait()
        return bool(self._stop.item())

    def abort(self) -> None:
        """Let go of whoever waits in a sum that will never come."""
        self._sums.abort()
        self._asks.abort()

    def _sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._sums.allreduce([x]).wait()
        return x

    def _sum_in_order(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self._size)]
        self._sums.allgather([parts], [x.contiguous()]).wait()
        total = parts[0]
        for part in parts[1:]:
            total = total.add_(part)
        return total


def host_store() -> Any:
    """Where the ranks of one run meet; `port` tells the others."""
    return dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


def join_store(port: int) -> Any:
    """The store that rank 0 hosts."""
    return dist.TCPStore(HOST, port, is_master=False, wait_for_workers=False)


class Meeting(NamedTuple):
    """How the ranks of one run find each other.

    port: of rank 0's store. device, exact: as the run is configured. threads: each rank computes with on a CPU.
    """

    port: int
    device: str
    exact: bool
    threads: int

    def join(self, store: Any, rank: int, size: int) -> Collectives:
        return Collectives(store, rank, size, placement(self.device, rank, size).backend, self.exact)
