"""One replay's full question, as plain values: what `hicache replay` can be told.

Rules of this file
- Values are what JSON knows, so that an ask can be hashed, stored, sent to another machine, and read by people.
- Nothing is checked here: what cannot run says so when it is tried, in the words of whoever refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hicache_ref.commandline.options import open_workload
from hicache_ref.config.server_args import ServerArgs
from workloads import Schedule, Workload

from ..build import RunConfig


@dataclass(frozen=True)
class Ask:
    """Fields are the options of `hicache replay`; `flags` holds SGLang's, underscored, those that were given."""

    trace: str
    """A file, a shipped sample or a generator."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "v0.5.7"
    rules: Mapping[str, Any] = field(default_factory=dict)
    hardware: str = "h100-pcie5"
    hardware_numbers: Mapping[str, Any] = field(default_factory=dict)
    store: str | None = None
    store_numbers: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    untimed: bool = False
    sequential: bool = False
    seed: int = 0
    limit: int | None = None
    format: str | None = None
    block_tokens: int | None = None
    chain: bool | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of a generator."""
    schedule: str | None = None
    speed: float = 1.0
    spread: bool = False
    arrivals: str | None = None

    def config(self) -> RunConfig:
        return RunConfig(
            args=ServerArgs(**self.flags),
            profile=self.profile,
            rules=self.rules,
            hardware=self.hardware,
            hardware_numbers=self.hardware_numbers,
            store=self.store,
            store_numbers=self.store_numbers,
            faults=tuple(self.faults),
            untimed=self.untimed,
            seed=self.seed,
        )

    def reading(self) -> dict[str, Any]:
        """What decides which requests are read, and when they arrive, beside the trace itself."""
        return {
            "format_": self.format,
            "block_tokens": self.block_tokens,
            "chain": self.chain,
            "parameters": tuple(f"{name}={value}" for name, value in self.parameters.items()),
            "schedule": self.schedule,
            "speed": self.speed,
            "spread": self.spread,
            "arrivals": self.arrivals,
        }

    def workload(self) -> tuple[Workload, Schedule | None]:
        """ValueError: no such trace, or it cannot be read so."""
        return open_workload(self.trace, self.reading())

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "faults": list(self.faults)}
