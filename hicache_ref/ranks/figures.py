"""What the ranks of a run have counted, taken together.

Rules of this file
- A copy's link is each rank's own, and its figures are rank 0's, as in the simulator. The way to the store is shared:
  its bytes are those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..control.log import Fingerprint
from .seats import Figures

if TYPE_CHECKING:
    from ..run.setup import Machine

SHARED = ("store_read", "store_write")
"""Links that the ranks of a machine share."""


def figures(rank: int, fingerprint: Fingerprint, cpu_s: float, machine: Machine) -> Figures:
    """One rank's, at the end of a run."""
    meters, client = machine.plane.meters, machine.client
    moved = {link.name: link.moved_bytes for link in meters.links}
    if client is not None and not client.identity.writes:
        moved["store_write"] = 0.0  # its STOREs are done when they are given to it
    failed = {kind.name.lower(): count for kind, count in meters.failed.items() if count}
    store = client.stats() if client is not None else None
    return Figures(rank, fingerprint.hexdigest(), cpu_s, moved, failed, store)


def together(ranks: Sequence[Figures]) -> dict[str, Any]:
    """For a summary's `run`: rank 0's figures, with the CPU time of all; each rank's own where there are several."""
    first = ranks[0]
    found: dict[str, Any] = {
        "cpu_s": sum(each.cpu_s for each in ranks),
        "operations_sha256": first.operations_sha256,
        "failures": first.failures,
    }
    if first.store is not None:
        found["store"] = first.store
    if len(ranks) > 1:
        found["ranks"] = [asdict(each) for each in ranks]
    return found


def share_links(links: dict[str, dict[str, Any]], ranks: Sequence[Figures]) -> None:
    """Bytes of links that all ranks use."""
    for name in SHARED:
        if name in links:
            links[name]["bytes"] = sum(each.moved_bytes[name] for each in ranks)
