"""The protocols between the worlds: what a data plane is, whether it moves bytes or only time.

Rules every plane keeps, and one test suite checks:
1. exactly one `Completion` for each operation, also after cancel, failure or close; it says how many leading pages
   are good;
2. those pages of the destination hold the right bytes; the rest is garbage, and control treats it so;
3. the plane touches the destination only between submit and completion, and never allocates, evicts or decides;
   pages that a `Progress` has reported it touches no more. Where a call hangs that cannot be taken back, the completion
   says so (`lingers`), and a `Released` when it has returned;
4. an IO failure is a completion, never an exception, never a dead thread; everything a plane holds is bounded.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .control.types import Op, Report


class Capabilities(NamedTuple):
    """Facts about a plane, read once."""

    page_bytes: int
    """One page on one rank."""
    layers: int
    ranks: int
    storage: bool


class DataPlane(Protocol):
    """Executes operations, and reports."""

    capabilities: Capabilities

    def submit(self, op: Op) -> None:
        """Take an operation. Never blocks, never raises for an IO failure."""
        ...

    def cancel(self, op_id: int) -> None:
        """Stop an operation early if it can be. Its completion comes all the same."""
        ...

    def poll(self) -> list[Report]:
        """Everything reported since the last call, in order, without waiting."""
        ...
