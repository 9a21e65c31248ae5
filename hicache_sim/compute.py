"""How long the GPU computes: a roofline of the model's shape on the machine, or a fit from measurements.

Rules of this file
- A batch takes the longer of two times, that of its arithmetic and that of its memory traffic, plus what ranks say to
  each other and a fixed overhead. Peaks and the shares of them that software reaches come from the hardware profile.
- A decode step's time is linear in the tokens of context, piece by piece: which of the two times is the longer, and
  sparse attention's limit, decide where a piece ends. So many steps are a few sums, never a loop over steps; and how
  many steps fit a time is the root of a quadratic.
- `context_tokens` counts the cached tokens of all sequences together. A step reads them and adds one to each sequence.
- Left out: activations' own traffic, uneven experts, stragglers, quantising activations on the way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from hicache_ref.config.models import BF16, WEIGHT_FORMATS, DecodeCost, ModelShape
from hicache_sim.hardware import HardwareProfile

CLOCK_SLACK_S = 1e-9
"""A step counts as done when it misses its end by less: a difference of two clock readings has lost its last bits."""


class ComputeError(ValueError):
    """A calibration that cannot be used. One line."""


class ComputeModel(Protocol):
    """What the simulator asks of compute. Times are of all layers, on a GPU that does nothing else."""

    layers: int

    def prefill_s(self, pairs: Iterable[tuple[int, int]]) -> float:
        """One prefill batch: (cached prefix, new tokens) of each request."""
        ...

    def decode_step_s(self, batch: int, context_tokens: int) -> float:
        """One decode step of `batch` sequences."""
        ...

    def decode_s(self, batch: int, context_tokens: int, steps: int) -> float:
        """`steps` decode steps: the sum of `decode_step_s` while the context grows by `batch` each step."""
        ...

    def decode_steps(self, batch: int, context_tokens: int, seconds: float) -> int:
        """How many whole steps fit in a finite time: the largest n whose `decode_s` is not above `seconds`."""
        ...

    def layer_s(self, total_s: float) -> float:
        """One layer's share, for loads that overlap it."""
        ...


class Piece:
    """Up to (not including) `below` tokens of context, a decode step takes `fixed_s + token_s * context`."""

    __slots__ = ("below", "fixed_s", "token_s")

    def __init__(self, below: float, fixed_s: float, token_s: float) -> None:
        self.below = below
        self.fixed_s = fixed_s
        self.token_s = token_s

    def at(self, context: float) -> float:
        return self.fixed_s + self.token_s * context

    def sum_s(self, context: float, growth: int, steps: int) -> float:
        """An arithmetic series: `steps` steps from `context` on."""
        return steps * self.at(context + growth * (steps - 1) / 2)

    def steps_within(self, context: float, growth: int, seconds: float) -> float:
        """The (fractional) n with sum_s(n) = seconds, in the form that does not cancel."""
        curve = self.token_s * growth / 2
        first = self.at(context) - curve
        return 2 * seconds / (first + math.sqrt(first * first + 4 * curve * seconds))


class _Piecewise(ABC):
    """Decode in closed form, from `_pieces(batch)`: continuous, the last one without end."""

    layers: int

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._by_batch: dict[int, tuple[Piece, ...]] = {}

    @abstractmethod
    def _pieces(self, batch: int) -> tuple[Piece, ...]: ...

    def _of(self, batch: int) -> tuple[Piece, ...]:
        pieces = self._by_batch.get(batch)
        if pieces is None:
            pieces = self._by_batch[batch] = self._pieces(batch)
        return pieces

    def decode_step_s(self, batch: int, context_tokens: int) -> float:
        return next(piece for piece in self._of(batch) if context_tokens < piece.below).at(context_tokens)

    def decode_s(self, batch: int, context_tokens: int, steps: int) -> float:
        total, context = 0.0, context_tokens
        for piece in self._of(batch):
            if context >= piece.below:
                continue
            here = min(steps, self._steps_below(piece, context, batch))
            total += piece.sum_s(context, batch, here)
            steps, context = steps - here, context + here * batch
            if not steps:
                break
        return total

    def decode_steps(self, batch: int, context_tokens: int, seconds: float) -> int:
        steps = self._guess(batch, context_tokens, seconds)
        # The root is off by rounding at most; the sum itself decides, so that the two functions never disagree.
        while steps and self.decode_s(batch, context_tokens, steps) > seconds + CLOCK_SLACK_S:
            steps -= 1
        while self.decode_s(batch, context_tokens, steps + 1) <= seconds + CLOCK_SLACK_S:
            steps += 1
        return steps

    def _guess(self, batch: int, context: int, seconds: float) -> int:
        steps = 0
        for piece in self._of(batch):
            if context >= piece.below:
                continue
            fit = int(piece.steps_within(context, batch, max(seconds, 0.0)))
            room = self._steps_below(piece, context, batch)
            if fit < room:
                return steps + fit
            steps, context, seconds = steps + room, context + room * batch, seconds - piece.sum_s(context, batch, room)
        return steps

    @staticmethod
    def _steps_below(piece: Piece, context: int, batch: int) -> int:
        return 2**62 if math.isinf(piece.below) else -int(-(piece.below - context) // batch)

    def layer_s(self, total_s: float) -> float:
        return total_s / self.layers


class Roofline(_Piecewise):
    """A model's shape on a machine, split over `tp_size` GPUs of one node."""

    def __init__(
        self, model: ModelShape, hardware: HardwareProfile, tp_size: int = 1, kv_cache_dtype: str = "auto"
    ) -> None:
        super().__init__(model.layers)
        self.model, self.hardware, self.tp_size = model, hardware, tp_size
        kv = model.kv_format(kv_cache_dtype)
        peak = hardware.fp8_flops_per_s if model.dtype == "fp8" else hardware.bf16_flops_per_s
        self._gemm_flops_per_s = peak * hardware.gemm_efficiency
        self._attention_flops_per_s = hardware.bf16_flops_per_s * hardware.attention_efficiency
        self._hbm_bytes_per_s = hardware.hbm_bytes_per_s * hardware.hbm_efficiency

        # One rank's share. Tokens pass the layers' weights; the head is passed once a sequence.
        self._layer_flops = model.layer_flops_per_token / tp_size
        self._head_flops = model.head_flops / tp_size
        self._kv_bytes = model.device_bytes_per_token(tp_size, kv_cache_dtype)
        self._decode: DecodeCost = model.attention.decode_cost(tp_size, kv)
        self._weight_bytes = model.weight_bytes(tp_size)
        self._ffn_bytes = [
            (ffn, count * WEIGHT_FORMATS[model.dtype].bytes(ffn.rank_weights(model.hidden, tp_size).linear))
            for count, ffn in model.blocks
        ]
        # Two all-reduces a layer, each of one activation row a token.
        ring_bytes = 2 * (tp_size - 1) / tp_size * BF16.bytes(model.hidden)
        link_bytes_per_s = hardware.gpu_link_bytes_per_s * hardware.gpu_link_efficiency
        self._reduce_token_s = 2 * model.layers * ring_bytes / link_bytes_per_s
        self._reduce_s = 2 * model.layers * hardware.all_reduce_latency_s if tp_size > 1 else 0.0

    def touched_weight_bytes(self, tokens: int) -> float:
        """What a batch of so many tokens reads of the weights: not the experts that none of them visits."""
        spared = 0.0
        for ffn, size in self._ffn_bytes:
            spared += size * (1.0 - ffn.touched(tokens))
        return self._weight_bytes - spared

    def all_reduce_s(self, tokens: int) -> float:
        return self._reduce_s + self._reduce_token_s * tokens

    def prefill_s(self, pairs: Iterable[tuple[int, int]]) -> float:
        new = cached = requests = attention = 0
        for prefix_tokens, new_tokens in pairs:
            requests += 1
            new += new_tokens
            cached += prefix_tokens
            attention += self.model.attention_flops(prefix_tokens, new_tokens, self.tp_size)
        if not new:
            return 0.0
        flops_s = (self._layer_flops * new + self._head_flops * requests) / self._gemm_flops_per_s
        flops_s += attention / self._attention_flops_per_s
        memory_s = (self.touched_weight_bytes(new) + self._kv_bytes * (cached + new)) / self._hbm_bytes_per_s
        return max(flops_s, memory_s) + self.all_reduce_s(new) + self.hardware.prefill_overhead_s

    def _pieces(self, batch: int) -> tuple[Piece, ...]:
        cost, layers = self._decode, self.layers
        always_s = self.all_reduce_s(batch) + self.hardware.decode_overhead_s
        flops_s = (self._layer_flops + self._head_flops) * batch / self._gemm_flops_per_s + always_s
        memory_s = self.touched_weight_bytes(batch) / self._hbm_bytes_per_s + always_s
        scan_flops_s = cost.scan_flops * layers / self._attention_flops_per_s
        scan_memory_s = cost.scan_bytes * layers / self._hbm_bytes_per_s
        attend_flops_s = cost.attend_flops * layers / self._attention_flops_per_s
        attend_memory_s = cost.attend_bytes * layers / self._hbm_bytes_per_s

        # Below the limit of sparse attention every token is attended; from there on a fixed number is.
        limit = math.inf if cost.attend_limit is None else float(cost.attend_limit * batch)
        flops = Piece(limit, flops_s, scan_flops_s + attend_flops_s)
        memory = Piece(limit, memory_s, scan_memory_s + attend_memory_s)
        pieces = _longer(0.0, limit, flops, memory)
        if limit < math.inf:
            flops = Piece(math.inf, flops_s + attend_flops_s * limit, scan_flops_s)
            memory = Piece(math.inf, memory_s + attend_memory_s * limit, scan_memory_s)
            pieces += _longer(limit, math.inf, flops, memory)
        return tuple(pieces)


def _longer(start: float, end: float, a: Piece, b: Piece) -> list[Piece]:
    """The upper envelope of two lines over [start, end): one piece, or two that meet where the lines cross."""
    cross = (b.fixed_s - a.fixed_s) / (a.token_s - b.token_s) if a.token_s != b.token_s else -1.0
    if not start < cross < end:
        inside = start + 1.0 if math.isinf(end) else (start + end) / 2
        return [a if a.at(inside) >= b.at(inside) else b]
    flat, steep = (a, b) if a.token_s < b.token_s else (b, a)
    return [Piece(cross, flat.fixed_s, flat.token_s), Piece(end, steep.fixed_s, steep.token_s)]


class Fitted(_Piecewise):
    """Coefficients from a calibration file.

    prefill: a + b * new tokens + c * (query, key) pairs + d * tokens read, cached or new + e * sequences (d and e where
    they are given); decode step: a + b * sequences + c * context tokens.
    """

    def __init__(self, layers: int, prefill: Mapping[str, float], decode: Mapping[str, float]) -> None:
        super().__init__(layers)
        self.prefill = (*_coefficients("prefill", prefill), *_coefficients("prefill", prefill, "de", 0.0))
        self.decode = _coefficients("decode", decode)

    @classmethod
    def from_calibration(cls, calibration: Mapping[str, Any]) -> Fitted:
        """From the `compute` part of a calibration: `layers`, `prefill` and `decode`."""
        missing = [key for key in ("layers", "prefill", "decode") if key not in calibration]
        if missing:
            raise ComputeError(f"the calibration has no {missing[0]!r}; it needs layers, prefill and decode")
        return cls(int(calibration["layers"]), calibration["prefill"], calibration["decode"])

    def prefill_s(self, pairs: Iterable[tuple[int, int]]) -> float:
        a, b, c, d, e = self.prefill
        new = scores = read = requests = 0
        for prefix_tokens, new_tokens in pairs:
            requests += 1
            new += new_tokens
            read += prefix_tokens + new_tokens
            scores += new_tokens * prefix_tokens + new_tokens * (new_tokens + 1) // 2
        return a + b * new + c * scores + d * read + e * requests if new else 0.0

    def _pieces(self, batch: int) -> tuple[Piece, ...]:
        a, b, c = self.decode
        return (Piece(math.inf, a + b * batch, c),)


def _coefficients(
    what: str, given: Mapping[str, float], names: str = "abc", default: float | None = None
) -> tuple[float, ...]:
    """Numbers by name, `default` where one is not given."""
    try:
        found = tuple(float(given[key] if default is None else given.get(key, default)) for key in names)
    except (KeyError, TypeError, ValueError):
        raise ComputeError(f"{what} needs numbers {', '.join(names[:-1])} and {names[-1]}, not {dict(given)}") from None
    # A step that takes no time would make `decode_steps` endless; a falling one is a bad fit.
    if min(found) < 0 or (default is None and sum(found[:2]) <= 0):
        numbers = ", ".join(f"{each:g}" for each in found)
        raise ComputeError(f"{what} coefficients must not be negative, nor a and b both zero: {numbers}")
    return found
