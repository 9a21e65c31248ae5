"""A request in the engine, from its arrival to its end.

What it found is that of its first admission; what it computed counts recomputation after a retraction too.
"""

from __future__ import annotations

from enum import Enum

from .lease import Lease
from .ledger import Prefetch


class Stage(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"
    ABORTED = "aborted"
    REJECTED = "rejected"


class Active:
    """A request in the engine. What it found is that of its first admission; times are the engine's `now_s`."""

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "chunks",
        "computed_tokens",
        "device_hit_tokens",
        "ended_s",
        "first_token_s",
        "host_hit_tokens",
        "id",
        "input_tokens",
        "key",
        "kv_tokens",
        "lease",
        "loaded_tokens",
        "max_new_tokens",
        "namespace",
        "output_tokens",
        "prefetch",
        "prefetch_tries",
        "priority",
        "produced",
        "retractions",
        "stage",
        "stopping",
        "storage_hit_tokens",
    )

    def __init__(
        self,
        request_id: int,
        key: bytes,
        input_tokens: int,
        output_tokens: int,
        arrival_s: float,
        namespace: str | None = None,
        priority: int = 0,
        max_new_tokens: int | None = None,
    ) -> None:
        self.id = request_id
        self.key = key
        """Atoms of the whole pages of prompt and output, as far as they will be computed."""
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        """Known to the simulation; the scheduler reads `max_new_tokens`."""
        self.max_new_tokens = output_tokens if max_new_tokens is None else max_new_tokens
        self.namespace = namespace
        self.priority = priority
        self.stage = Stage.WAITING
        self.stopping = False
        """Aborted while it runs: ends with the batch it is in."""
        self.produced = 0
        self.kv_tokens = 0
        """Tokens whose KV is on the device, or will be when the batch in flight ends."""
        self.lease: Lease | None = None
        self.prefetch: Prefetch | None = None
        """Its latest prefetch, refused ones too; None without L3."""
        self.prefetch_tries = 0
        self.arrival_s = arrival_s
        self.admitted_s = self.first_token_s = self.ended_s = -1.0
        self.device_hit_tokens = self.host_hit_tokens = self.loaded_tokens = self.storage_hit_tokens = 0
        self.computed_tokens = 0
        """Tokens prefilled for it, recomputation after retraction included."""
        self.chunks = self.retractions = 0

    @property
    def fill_tokens(self) -> int:
        """Tokens a prefill has to cover: the prompt, and after a retraction what had been decoded."""
        return self.input_tokens + self.produced
