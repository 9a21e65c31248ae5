"""What the prefill batch being formed may still take (upstream's `PrefillAdder`), in tokens.

Source: `managers/schedule_policy.py` of 0.5.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .cache import HiCache
from .running import Running

CLIP_MAX_NEW_TOKENS = 4096
"""Estimates of output lengths are clipped to this; the outputs are not (upstream's default)."""


@dataclass(frozen=True)
class SchedulerLimits:
    """Upstream's flags of the same names, and the constants behind its estimate of outputs."""

    max_running_requests: int = 2048
    max_prefill_tokens: int = 16384
    chunked_prefill_tokens: int | None = 8192
    context_tokens: int | None = None
    schedule_conservativeness: float = 1.0
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    key_lag_tokens: int = 0
    """Tokens by which a key is shorter than its prompt: 1 in EAGLE mode, whose keys are pairs."""


class Verdict(Enum):
    GO_ON = "go on"
    NO_TOKEN = "no token left"
    STOP = "batch is large enough"


class Budget:
    """What the batch being formed may still take (upstream's `PrefillAdder`), in tokens."""

    def __init__(self, cache: HiCache, limits: SchedulerLimits, running: Running, ratio: float) -> None:
        self._cache = cache
        self._page = cache.shape.page_tokens
        self.input_tokens = limits.max_prefill_tokens
        self.chunk_tokens = limits.chunked_prefill_tokens
        self.reserved = ratio * running.estimated_tokens()
        self.taken = 0

    @property
    def available(self) -> int:
        return (self._cache.l1.free + self._cache.tree.evictable) * self._page

    @property
    def total_tokens(self) -> float:
        """Left if outputs come out as estimated."""
        return self.available - self.reserved - self.taken

    def whole_pages(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    def spend(self, extend_tokens: int, new_tokens: int) -> None:
        extend_tokens = self.whole_pages(extend_tokens)
        self.taken += extend_tokens
        self.reserved += new_tokens
        self.input_tokens -= extend_tokens
        if self.chunk_tokens is not None:
            self.chunk_tokens -= extend_tokens

    def verdict(self) -> Verdict:
        if self.total_tokens <= 0 or self.available - self.taken <= 0:
            return Verdict.NO_TOKEN
        if self.input_tokens <= 0 or (self.chunk_tokens is not None and self.chunk_tokens <= 0):
            return Verdict.STOP
        return Verdict.GO_ON
