"""What goes into `resolve`, and what comes out: frozen records.

Rules of this file
- Facts about models and machines come in as numbers and names; nothing here looks a model up or probes a machine.
- Units are in the names or in the line below a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hicache_ref.config.server_args import ServerArgs
from hicache_ref.config.sizing import HOST_RESERVE_BYTES
from hicache_ref.control.rules import Rules


class AttentionFacts(Protocol):
    @property
    def name(self) -> str:
        """mha (GQA and MQA too), mla, or nsa, which is an MLA with an indexer."""
        ...


class ModelFacts(Protocol):
    """What the rules ask about a model; `models.ModelShape` answers. Sizes are one rank's of `tp_size`, all layers."""

    @property
    def name(self) -> str: ...
    @property
    def attention(self) -> AttentionFacts: ...
    @property
    def unsupported_reason(self) -> str | None:
        """Why its cache is not one entry per token and layer, e.g. a sliding window; None: it is."""
        ...

    def kv_bytes_per_token(self, tp_size: int, kv_cache_dtype: str, /) -> int:
        """In L2, and on every copy."""
        ...

    def device_bytes_per_token(self, tp_size: int, kv_cache_dtype: str, /) -> int:
        """In L1, which may hold more of a token than travels."""
        ...

    def weight_bytes(self, tp_size: int, /) -> int: ...


@dataclass(frozen=True)
class DeviceFacts:
    """What the rules ask about the machines. None: not known, so nothing that depends on it is guessed or checked."""

    gpu_mem_bytes: int | None = None
    host_available_bytes: int | None = None
    """Free memory of one host, before L2 is allocated."""
    host_reserve_bytes: int = HOST_RESERVE_BYTES
    """Of it, what L2 leaves to everybody else."""
    is_npu: bool = False
    is_sm100: bool = False
    """A Blackwell GPU of compute capability 10."""
    has_flashinfer: bool = True


# What comes out


@dataclass(frozen=True)
class Change:
    """Something the server does otherwise than the flags say (rewrite), or that is easily overlooked (warning)."""

    kind: Literal["rewrite", "warning"]
    flag: str
    before: object
    after: object
    reason: str


@dataclass(frozen=True)
class StorageConfig:
    """L3's part of the flags. Names within --hicache-storage-backend-extra-config are SGLang's."""

    backend: str
    prefetch_threshold: int = 256
    """Tokens; at least a page."""
    prefetch_timeout_base: float = 1.0
    """Seconds."""
    prefetch_timeout_per_ki_token: float = 0.25
    """Seconds per 1024 tokens."""
    hicache_storage_pass_prefix_keys: bool = False
    rest: Mapping[str, Any] = field(default_factory=dict)
    """What the backend reads itself."""


@dataclass(frozen=True)
class Resolved:
    """A configuration that runs. Sizes are a rank's. A scheduler serves one attention group, or one replica."""

    args: ServerArgs
    profile: str
    rules: Rules
    changes: tuple[Change, ...]
    page_size: int
    """Tokens."""
    token_bytes: int
    """A token in L2, and on every copy."""
    l1_pages: int
    l2_pages: int
    """0: no L2."""
    storage: StorageConfig | None
    """None: no L3."""
    prefetch_limit_tokens: int
    """No prefetch starts while this many tokens are in flight; not above 0: none ever does."""
    attention_tp_size: int
    """Ranks that share a token's heads."""
    attention_groups: int
    chunk_tokens: int
    """Prefill chunk of a scheduler; not above 0: whole prompts."""
    conservativeness: float
    """Of a scheduler."""
    max_running_requests: int
    """Of a scheduler."""
    bigram_keys: bool
    eviction_options: Mapping[str, Any]

    @property
    def l1_tokens(self) -> int:
        return self.l1_pages * self.page_size

    @property
    def l2_tokens(self) -> int:
        return self.l2_pages * self.page_size
