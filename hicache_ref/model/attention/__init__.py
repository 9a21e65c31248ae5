"""Attention backends by SGLang's names.

Rules of this file
- A backend is imported when it is asked for: an unused one costs no import and need not be installed.
- What is not installed, or cannot run on the device, is one line that says what to do.
"""

from __future__ import annotations

from ...policy.registry import Registry
from ..cache import KvCache
from .base import AttentionBackend, AttentionError, Plan, Span

__all__ = ["ATTENTION", "AttentionBackend", "AttentionError", "Plan", "Span", "make_attention"]

ATTENTION: Registry[AttentionBackend] = Registry("attention backend")


@ATTENTION.register("torch_native")
def _torch_native(cache: KvCache) -> AttentionBackend:
    from .torch_native import TorchNative

    return TorchNative(cache)


def make_attention(name: str, cache: KvCache) -> AttentionBackend:
    """The backend called `name` over `cache`. ValueError lists the known names; AttentionError says what it lacks."""
    return ATTENTION.make(name, cache=cache)
