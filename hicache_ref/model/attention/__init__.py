"""Attention backends by SGLang's names.

Rules of this file
- A backend is imported when it is asked for: an unused one costs no import and need not be installed.
- What is not installed, or cannot run on the device, is one line that says what to do.
- Prefill and decoding may have different ones, as article 5.6 wants it of HiCache's copy kernels and fa3.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...policy.registry import Registry
from ..cache import KvCache
from .base import AttentionBackend, AttentionError, Plan, Span

__all__ = ["ATTENTION", "AttentionBackend", "AttentionError", "Plan", "Span", "make_attention"]

ATTENTION: Registry[AttentionBackend] = Registry("attention backend")


@ATTENTION.register("torch_native")
def _torch_native(cache: KvCache) -> AttentionBackend:
    from .torch_native import TorchNative

    return TorchNative(cache)


@ATTENTION.register("triton")
def _triton(cache: KvCache) -> AttentionBackend:
    try:
        from .triton_paged import TritonPaged
    except ModuleNotFoundError:
        raise AttentionError(
            "attention backend triton is not installed: pip install triton, or take torch_native"
        ) from None
    return TritonPaged(cache)


@ATTENTION.register("flashinfer")
def _flashinfer(cache: KvCache) -> AttentionBackend:
    from .flashinfer import FlashInfer

    return FlashInfer(cache)


@ATTENTION.register("fa3")
def _fa3(cache: KvCache) -> AttentionBackend:
    from .flash_attn import FlashAttention3

    return FlashAttention3(cache)


class ByPhase:
    """One backend for batches that only decode, another for the rest."""

    def __init__(self, prefill: AttentionBackend, decode: AttentionBackend) -> None:
        self._prefill, self._decode = prefill, decode

    def plan(self, spans: Sequence[Span]) -> Plan:
        decoding = all(span.queries == 1 for span in spans)
        return (self._decode if decoding else self._prefill).plan(spans)


def make_attention(name: str, cache: KvCache, decode: str | None = None) -> AttentionBackend:
    """The backend called `name` over `cache`, and another for decoding if `decode` names one.

    ValueError lists the known names; AttentionError says what a backend lacks.
    """
    backend = ATTENTION.make(name, cache=cache)
    return backend if decode in (None, name) else ByPhase(backend, ATTENTION.make(str(decode), cache=cache))
