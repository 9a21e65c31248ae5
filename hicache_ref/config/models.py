"""The models people serve, as shapes: how many bytes a token's KV cache takes, and what the layers cost.

Rules of this file
- Integers only. A byte count here equals what SGLang v0.5.7 allocates, not about it; where that version counts two
  ways (NSA with FP8), both are here and named.
- A rank's share, not the model's: `tp_size` is the attention's tensor parallel size, and heads are split as SGLang
  splits them, KV heads replicated once there are more ranks than heads.
- Differences between attention types live in their objects. Nothing outside asks which type it holds.
- Every catalogue entry says where its numbers come from. Parameter counts are not entered but follow from the shape,
  so a wrong digit shows as a wrong total (the tests hold the published ones).
- What HiCache v0.5.7 refuses still loads, with the reason in `unsupported_reason`: whoever runs it decides.
"""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


class ModelError(ValueError):
    """A model that cannot be found, read, or split as asked. One line."""


# --- how numbers are stored -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """Elements of `bits` each, and `scale_bytes` more for every `block` of them (no blocks: no scales)."""

    name: str
    bits: int
    block: int = 0
    scale_bytes: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of the array element that holds it; two 4-bit values share one."""
        return max(1, self.bits // 8)

    def bytes(self, elements: int) -> int:
        scales = -(-elements // self.block) * self.scale_bytes if self.block else 0
        return elements * self.bits // 8 + scales


BF16 = Format("bfloat16", 16)
FP16 = Format("float16", 16)
FP32 = Format("float32", 32)

KV_FORMATS: dict[str, Format] = {
    "bfloat16": BF16,
    "bf16": BF16,
    "float16": FP16,
    "float32": FP32,
    "fp8_e4m3": Format("fp8_e4m3", 8),
    "fp8_e5m2": Format("fp8_e5m2", 8),
    "fp4_e2m1": Format("fp4_e2m1", 4, block=16, scale_bytes=1),  # mxfp4: one scale byte for 16 values
}
"""What `--kv-cache-dtype` takes, and what "auto" can turn into."""

WEIGHT_FORMATS: dict[str, Format] = {
    "bfloat16": BF16,
    "float16": FP16,
    "float32": FP32,
    "fp8": Format("fp8", 8, block=128 * 128, scale_bytes=4),  # DeepSeek's and Qwen's blocks of 128 x 128
    "int4": Format("int4", 4, block=128, scale_bytes=2),  # awq, gptq and their kin, groups of 128
}


def _lookup(table: Mapping[str, Format], name: str, what: str) -> Format:
    try:
        return table[name]
    except KeyError:
        raise ModelError(f"unknown {what} {name!r}; known: {', '.join(sorted(table))}") from None


# --- attention ------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Parameters one rank holds: `linear` in the model's weight format, `plain` (norms, biases, routers) in bf16."""

    linear: int
    plain: int

    def times(self, n: int) -> Weights:
        return Weights(self.linear * n, self.plain * n)


class DecodeCost(NamedTuple):
    """What one layer of one rank spends on a context token in a decode step.

    `scan_*` is paid for every token of the context, `attend_*` for at most `attend_limit` tokens of each sequence
    (None: no sparse attention, and nothing to pay there).
    """

    scan_flops: int
    scan_bytes: int
    attend_flops: int = 0
    attend_bytes: int = 0
    attend_limit: int | None = None


class Attention(ABC):
    """One layer's attention: what it keeps of a token, how ranks share that, and what looking at it costs."""

    name: ClassVar[str]
    pool: ClassVar[str]
    """Which of upstream's two host pools holds it: "mha" or "mla"."""
    components: ClassVar[tuple[str, ...]]
    """The tensors a page consists of; each is an object of its own in a zero-copy store."""
    replicated: ClassVar[bool]
    """Every rank holds the same bytes, so only rank 0 writes them to L3, under a key without a rank."""
    forced_page_size: ClassVar[int | None] = None

    heads: int

    @property
    @abstractmethod
    def kv_heads(self) -> int:
        """Heads in the cache, before ranks split them."""

    @property
    @abstractmethod
    def row_dim(self) -> int:
        """Elements kept of a token, per head and component."""

    @abstractmethod
    def local_kv_heads(self, tp_size: int) -> int:
        """Heads in one rank's cache."""

    @abstractmethod
    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        """One layer's projections on one rank."""

    @abstractmethod
    def prefill_flops(self, prefix_tokens: int, new_tokens: int, tp_size: int = 1) -> int:
        """Scores and weighted sums of one layer on one rank: each new token attends the prefix and its elders."""

    @abstractmethod
    def decode_cost(self, tp_size: int, kv: Format) -> DecodeCost:
        """One decode step of one layer on one rank, per token of context."""

    def row_bytes(self, kv: Format) -> int:
        """Bytes kept of a token, per head, component and layer."""
        return kv.bytes(self.row_dim)

    def row_parts(self, kv: Format) -> tuple[int, ...]:
        """The row in array elements, cut where Ascend's split layout cuts it."""
        return (self.row_bytes(kv) // kv.itemsize,)

    def kv_bytes(self, tp_size: int, kv: Format) -> int:
        """Bytes HiCache moves for a token of one layer, on one rank."""
        return len(self.components) * self.local_kv_heads(tp_size) * self.row_bytes(kv)

    def device_only_bytes(self, kv: Format) -> int:
        """Bytes a token takes per layer on the device beyond `kv_bytes`, which no copy carries."""
        return 0

    def local_heads(self, tp_size: int) -> int:
        if tp_size < 1 or self.heads % tp_size:
            raise ModelError(f"{self.heads} attention heads do not split over {tp_size} ranks")
        return self.heads // tp_size


def _causal_pairs(prefix_tokens: int, new_tokens: int) -> int:
    """(query, key) pairs when each new token attends the prefix, the new tokens before it, and itself."""
    return new_tokens * prefix_tokens + new_tokens * (new_tokens + 1) // 2


@dataclass(frozen=True)
class Mha(Attention):
    """Multi-head attention and its grouped kin: K and V for every KV head, split over the ranks."""

    name: ClassVar[str] = "mha"
    pool: ClassVar[str] = "mha"
    components: ClassVar[tuple[str, ...]] = ("k", "v")
    replicated: ClassVar[bool] = False

    heads: int
    group_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def kv_heads(self) -> int:
        return self.group_heads

    @property
    def row_dim(self) -> int:
        return self.head_dim

    def local_kv_heads(self, tp_size: int) -> int:
        self.local_heads(tp_size)
        if self.group_heads % tp_size and tp_size % self.group_heads:
            raise ModelError(f"{self.group_heads} KV heads neither split over {tp_size} ranks nor repeat evenly")
        return max(1, self.group_heads // tp_size)

    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        queries = self.local_heads(tp_size) * self.head_dim
        keys_and_values = 2 * self.local_kv_heads(tp_size) * self.head_dim
        plain = (queries + keys_and_values) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        return Weights(hidden * (2 * queries + keys_and_values), plain)

    def prefill_flops(self, prefix_tokens: int, new_tokens: int, tp_size: int = 1) -> int:
        return 4 * self.local_heads(tp_size) * self.head_dim * _causal_pairs(prefix_tokens, new_tokens)

    def decode_cost(self, tp_size: int, kv: Format) -> DecodeCost:
        return DecodeCost(4 * self.local_heads(tp_size) * self.head_dim, self.kv_bytes(tp_size, kv))


@dataclass(frozen=True)
class Mla(Attention):
    """Multi-head latent attention: one compressed row a token, the same on every rank."""

    name: ClassVar[str] = "mla"
    pool: ClassVar[str] = "mla"
    components: ClassVar[tuple[str, ...]] = ("k",)
    replicated: ClassVar[bool] = True

    heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    @property
    def kv_heads(self) -> int:
        return 1

    @property
    def row_dim(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def _absorbed_flops(self) -> int:
        """Per pair and head, attending the latent rows as they lie in the cache."""
        return 2 * (self.row_dim + self.kv_lora_rank)

    def local_kv_heads(self, tp_size: int) -> int:
        self.local_heads(tp_size)
        return 1

    def row_parts(self, kv: Format) -> tuple[int, ...]:
        return (self.kv_lora_rank, self.qk_rope_head_dim)

    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        heads = self.local_heads(tp_size)
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        # The down projections and their norms stand on every rank, as the latent does.
        ask = hidden * queries if self.q_lora_rank is None else self.q_lora_rank * (hidden + queries)
        keep = hidden * self.row_dim + self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        answer = heads * self.v_head_dim * hidden
        return Weights(ask + keep + answer, (self.q_lora_rank or 0) + self.kv_lora_rank)

    def prefill_flops(self, prefix_tokens: int, new_tokens: int, tp_size: int = 1) -> int:
        # Upstream either unpacks the cached prefix into full heads or attends the latent rows themselves, by
        # thresholds that aim at the cheaper way. We take the cheaper way.
        pairs = _causal_pairs(prefix_tokens, new_tokens)
        unpack = 2 * self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
        full = 2 * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)
        return self.local_heads(tp_size) * min(pairs * full + prefix_tokens * unpack, pairs * self._absorbed_flops)

    def decode_cost(self, tp_size: int, kv: Format) -> DecodeCost:
        return DecodeCost(self.local_heads(tp_size) * self._absorbed_flops, self.kv_bytes(tp_size, kv))


@dataclass(frozen=True)
class Nsa(Mla):
    """DeepSeek's sparse attention: a latent row, and a small index that picks the rows to attend.

    Three facts of v0.5.7. The page size is 64, whatever is asked. With an FP8 cache the device row is not 576 bytes
    but 656 (512 of FP8, four FP32 scales, 64 in bf16), while `MLATokenToKVPoolHost` sizes its row at 576: we count
    what the device holds. And the index cache is no part of the host pool, so HiCache does not carry it
    (`device_only_bytes`); only the sizing of L1 knows it.
    """

    name: ClassVar[str] = "nsa"
    forced_page_size: ClassVar[int | None] = 64
    quant_block: ClassVar[int] = 128

    index_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 2048

    @property
    def _index_flops(self) -> int:
        """Per pair: what picking the rows costs, on every rank in full."""
        return 2 * self.index_heads * self.index_head_dim

    def row_bytes(self, kv: Format) -> int:
        if kv.bits != 8:
            return super().row_bytes(kv)
        return self.kv_lora_rank + self.kv_lora_rank // self.quant_block * 4 + self.qk_rope_head_dim * BF16.itemsize

    def row_parts(self, kv: Format) -> tuple[int, ...]:
        return super().row_parts(kv) if kv.bits != 8 else (self.row_bytes(kv),)

    def device_only_bytes(self, kv: Format) -> int:
        return self.index_head_dim + self.index_head_dim // self.quant_block * 4

    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        latent = super().rank_weights(hidden, tp_size)
        index = (self.q_lora_rank or hidden) * self.index_heads * self.index_head_dim + hidden * self.index_head_dim
        return Weights(latent.linear + index, latent.plain + hidden * self.index_heads + 2 * self.index_head_dim)

    def prefill_flops(self, prefix_tokens: int, new_tokens: int, tp_size: int = 1) -> int:
        short = min(new_tokens, max(0, self.index_topk - prefix_tokens))  # tokens that still see everything
        attended = _causal_pairs(prefix_tokens, short) + (new_tokens - short) * self.index_topk
        index = self._index_flops * _causal_pairs(prefix_tokens, new_tokens)
        return self.local_heads(tp_size) * self._absorbed_flops * attended + index

    def decode_cost(self, tp_size: int, kv: Format) -> DecodeCost:
        return DecodeCost(
            scan_flops=self._index_flops,
            scan_bytes=self.device_only_bytes(kv),
            attend_flops=self.local_heads(tp_size) * self._absorbed_flops,
            attend_bytes=self.kv_bytes(tp_size, kv),
            attend_limit=self.index_topk,
        )


# --- feed forward ---------------------------------------------------------------------------------------------------


class Ffn(ABC):
    """The other half of a layer."""

    @abstractmethod
    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        """What one rank holds of it."""

    @abstractmethod
    def idle_weights(self, hidden: int) -> int:
        """Parameters a token does not pass through."""

    @abstractmethod
    def touched(self, tokens: float) -> float:
        """The share of its linear weights that a batch of so many tokens reads."""


@dataclass(frozen=True)
class Dense(Ffn):
    """Gate, up and down."""

    intermediate: int

    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        return Weights(3 * hidden * -(-self.intermediate // tp_size), 0)

    def idle_weights(self, hidden: int) -> int:
        return 0

    def touched(self, tokens: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Moe(Ffn):
    """Experts of `intermediate` each, `topk` of them for a token, beside a shared expert that always runs."""

    experts: int
    topk: int
    intermediate: int
    shared_intermediate: int = 0
    router_bias: bool = False
    shared_gate: bool = False

    def rank_weights(self, hidden: int, tp_size: int) -> Weights:
        width = self.experts * -(-self.intermediate // tp_size) + -(-self.shared_intermediate // tp_size)
        router = hidden * self.experts + self.experts * self.router_bias + hidden * self.shared_gate
        return Weights(3 * hidden * width, router)

    def idle_weights(self, hidden: int) -> int:
        return 3 * hidden * self.intermediate * (self.experts - self.topk)

    def touched(self, tokens: float) -> float:
        """Expected, with tokens spread evenly over the experts (real routers are a little less even)."""
        hit = 1.0 - float((1.0 - self.topk / self.experts) ** tokens)
        routed, shared = self.experts * self.intermediate, self.shared_intermediate
        return (routed * hit + shared) / (routed + shared)


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelShape:
    """A decoder as SGLang serves it: embeddings, `blocks` of equal layers, a head. Draft layers (MTP) are left out."""

    name: str
    family: str
    hidden: int
    vocab: int
    attention: Attention
    blocks: tuple[tuple[int, Ffn], ...]
    """(how many layers, their feed forward), in order."""
    dtype: str = "bfloat16"
    """How linear weights are stored: a key of WEIGHT_FORMATS."""
    kv_dtype: str = "bfloat16"
    """What `--kv-cache-dtype auto` means: the dtype the model computes in, whatever its weights are stored in."""
    tied_embeddings: bool = False
    source: str = ""
    unsupported_reason: str | None = None
    """Why HiCache v0.5.7 does not start with this model, or None."""

    @cached_property
    def layers(self) -> int:
        return sum(count for count, _ in self.blocks)

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def kv_heads(self) -> int:
        return self.attention.kv_heads

    @property
    def head_dim(self) -> int:
        return self.attention.row_dim

    @property
    def forced_page_size(self) -> int | None:
        return self.attention.forced_page_size

    # Cache

    def kv_format(self, kv_cache_dtype: str = "auto") -> Format:
        return _lookup(KV_FORMATS, self.kv_dtype if kv_cache_dtype == "auto" else kv_cache_dtype, "KV cache dtype")

    def kv_bytes_per_token(self, tp_size: int = 1, kv_cache_dtype: str = "auto") -> int:
        """Bytes of a token in one rank's host pool, and on every copy between the levels."""
        return self.layers * self.attention.kv_bytes(tp_size, self.kv_format(kv_cache_dtype))

    def device_bytes_per_token(self, tp_size: int = 1, kv_cache_dtype: str = "auto") -> int:
        """Bytes a token takes of L1: `kv_bytes_per_token` and what stays on the device (NSA's index)."""
        kv = self.kv_format(kv_cache_dtype)
        return self.layers * (self.attention.kv_bytes(tp_size, kv) + self.attention.device_only_bytes(kv))

    # Weights

    def rank_weights(self, tp_size: int = 1) -> Weights:
        """One rank's parameters: layers, embeddings and head, split as tensor parallelism splits them."""
        layers = [self.layer_weights(ffn, tp_size).times(count) for count, ffn in self.blocks]
        tables = -(-self.vocab // tp_size) * self.hidden * (1 if self.tied_embeddings else 2)
        plain = sum(each.plain for each in layers) + tables + self.hidden
        return Weights(sum(each.linear for each in layers), plain)

    def layer_weights(self, ffn: Ffn, tp_size: int = 1) -> Weights:
        attention = self.attention.rank_weights(self.hidden, tp_size)
        other = ffn.rank_weights(self.hidden, tp_size)
        return Weights(attention.linear + other.linear, attention.plain + other.plain + 2 * self.hidden)

    def weight_bytes(self, tp_size: int = 1) -> int:
        """Bytes of the weights on one rank: linear layers as stored, the rest in bf16."""
        linear, plain = self.rank_weights(tp_size)
        return _lookup(WEIGHT_FORMATS, self.dtype, "weight dtype").bytes(linear) + BF16.bytes(plain)

    @cached_property
    def parameters(self) -> int:
        return sum(self.rank_weights(1))

    @cached_property
    def active_parameters(self) -> int:
        """Parameters without the experts a token does not visit: the figure model cards give."""
        return self.parameters - sum(count * ffn.idle_weights(self.hidden) for count, ffn in self.blocks)

    # Work

    def flops_per_token(self) -> int:
        """A multiplication and an addition for every active parameter; attention comes on top."""
        return 2 * self.active_parameters

    @cached_property
    def head_flops(self) -> int:
        """The output head's share of `flops_per_token`: a prefill pays it once a request, not once a token."""
        return 2 * self.vocab * self.hidden

    @cached_property
    def layer_flops_per_token(self) -> int:
        """The layers' share of `flops_per_token`: looking an embedding up multiplies nothing."""
        tables = 1 if self.tied_embeddings else 2
        return self.flops_per_token() - tables * self.head_flops

    def attention_flops(self, prefix_tokens: int, new_tokens: int, tp_size: int = 1) -> int:
        """All layers, on one rank: `new_tokens` prefilled on top of `prefix_tokens`."""
        return self.layers * self.attention.prefill_flops(prefix_tokens, new_tokens, tp_size)


# --- the catalogue --------------------------------------------------------------------------------------------------

_ONLY_MHA_MLA = "HiRadixCache only supports MHA and MLA yet"
SLIDING_WINDOW = f"{_ONLY_MHA_MLA} (this model mixes in sliding-window layers)"
STATE_SPACE = f"{_ONLY_MHA_MLA} (this model mixes in state-space layers)"

_DEEPSEEK_MLA = Mla(128, 512, 64, 128, 128, q_lora_rank=1536)
_DEEPSEEK_BLOCKS = ((3, Dense(18432)), (58, Moe(256, 8, 2048, 2048, router_bias=True)))
_GLM_BLOCKS = ((3, Dense(12288)), (89, Moe(160, 8, 1536, 1536, router_bias=True)))


def _of(repo: str) -> str:
    return f"config.json of {repo}"


_SHAPES = (
    ModelShape(
        "Llama-3.1-8B", "llama", 4096, 128256, Mha(32, 8, 128), ((32, Dense(14336)),),
        source=_of("meta-llama/Llama-3.1-8B"),
    ),
    ModelShape(
        "Llama-3.1-70B", "llama", 8192, 128256, Mha(64, 8, 128), ((80, Dense(28672)),),
        source=_of("meta-llama/Llama-3.3-70B-Instruct"),
    ),
    ModelShape(
        "Qwen2.5-7B", "qwen2", 3584, 152064, Mha(28, 4, 128, qkv_bias=True), ((28, Dense(18944)),),
        source=_of("Qwen/Qwen2.5-7B"),
    ),
    ModelShape(
        "Qwen2.5-72B", "qwen2", 8192, 152064, Mha(64, 8, 128, qkv_bias=True), ((80, Dense(29568)),),
        source=_of("Qwen/Qwen2.5-72B-Instruct"),
    ),
    ModelShape(
        "Qwen3-8B", "qwen3", 4096, 151936, Mha(32, 8, 128, qk_norm=True), ((36, Dense(12288)),),
        source=_of("Qwen/Qwen3-8B"),
    ),
    ModelShape(
        "Qwen3-14B", "qwen3", 5120, 151936, Mha(40, 8, 128, qk_norm=True), ((40, Dense(17408)),),
        source=_of("Qwen/Qwen3-14B"),
    ),
    ModelShape(
        "Qwen3-32B", "qwen3", 5120, 151936, Mha(64, 8, 128, qk_norm=True), ((64, Dense(25600)),),
        source=_of("Qwen/Qwen3-32B"),
    ),
    ModelShape(
        "Qwen3-235B-A22B", "qwen3_moe", 4096, 151936, Mha(64, 4, 128, qk_norm=True), ((94, Moe(128, 8, 1536)),),
        source=_of("Qwen/Qwen3-235B-A22B"),
    ),
    ModelShape(
        "DeepSeek-V3", "deepseek_v3", 7168, 129280, _DEEPSEEK_MLA, _DEEPSEEK_BLOCKS, dtype="fp8",
        source=_of("deepseek-ai/DeepSeek-V3"),
    ),
    ModelShape(
        "DeepSeek-R1", "deepseek_v3", 7168, 129280, _DEEPSEEK_MLA, _DEEPSEEK_BLOCKS, dtype="fp8",
        source=_of("deepseek-ai/DeepSeek-R1"),
    ),
    ModelShape(
        "DeepSeek-V3.2", "deepseek_v32", 7168, 129280, Nsa(128, 512, 64, 128, 128, q_lora_rank=1536),
        _DEEPSEEK_BLOCKS, dtype="fp8", source=_of("deepseek-ai/DeepSeek-V3.2-Exp"),
    ),
    ModelShape(
        "Kimi-K2", "kimi_k2", 7168, 163840, Mla(64, 512, 64, 128, 128, q_lora_rank=1536),
        ((1, Dense(18432)), (60, Moe(384, 8, 2048, 2048, router_bias=True))), dtype="fp8",
        source=_of("moonshotai/Kimi-K2-Instruct"),
    ),
    ModelShape(
        "GLM-4.5", "glm4_moe", 5120, 151552, Mha(96, 8, 128, qkv_bias=True, qk_norm=True), _GLM_BLOCKS,
        source=_of("zai-org/GLM-4.5"),
    ),
    ModelShape(
        "GLM-4.6", "glm4_moe", 5120, 151552, Mha(96, 8, 128, qkv_bias=True, qk_norm=True), _GLM_BLOCKS,
        source=_of("zai-org/GLM-4.6"),
    ),
    ModelShape(
        "GLM-4.5-Air", "glm4_moe", 4096, 151552, Mha(96, 8, 128, qkv_bias=True),
        ((1, Dense(10944)), (45, Moe(128, 8, 1408, 1408, router_bias=True))), source=_of("zai-org/GLM-4.5-Air"),
    ),
    # Refused by v0.5.7. They stand here so that asking for them gives that answer; their counts treat every layer as
    # full attention.
    ModelShape(
        "gpt-oss-20b", "gpt_oss", 2880, 201088, Mha(64, 8, 64, qkv_bias=True), ((24, Moe(32, 4, 2880)),),
        source=_of("openai/gpt-oss-20b"), unsupported_reason=SLIDING_WINDOW,
    ),
    ModelShape(
        "gpt-oss-120b", "gpt_oss", 2880, 201088, Mha(64, 8, 64, qkv_bias=True), ((36, Moe(128, 4, 2880)),),
        source=_of("openai/gpt-oss-120b"), unsupported_reason=SLIDING_WINDOW,
    ),
    ModelShape(
        "Gemma-3-27B", "gemma3", 5376, 262208, Mha(32, 16, 128, qk_norm=True), ((62, Dense(21504)),),
        tied_embeddings=True, source=_of("google/gemma-3-27b-it"), unsupported_reason=SLIDING_WINDOW,
    ),
    ModelShape(
        "Llama-4-Scout-17B-16E", "llama4", 5120, 202048, Mha(40, 8, 128), ((48, Moe(16, 1, 8192, 8192)),),
        source=_of("meta-llama/Llama-4-Scout-17B-16E-Instruct"), unsupported_reason=SLIDING_WINDOW,
    ),
    ModelShape(
        "Qwen3-Next-80B-A3B", "qwen3_next", 2048, 151936, Mha(16, 2, 256, qk_norm=True),
        ((48, Moe(512, 10, 512, 512, shared_gate=True)),),
        source=_of("Qwen/Qwen3-Next-80B-A3B-Instruct"), unsupported_reason=STATE_SPACE,
    ),
)  # fmt: skip

CATALOGUE: dict[str, ModelShape] = {shape.name: shape for shape in _SHAPES}

_SAME_SHAPE = {
    "llama-3-8b": "Llama-3.1-8B",
    "llama-3-70b": "Llama-3.1-70B",
    "llama-3.3-70b": "Llama-3.1-70B",
    "deepseek-v3.1": "DeepSeek-V3",
    "deepseek-v3.1-terminus": "DeepSeek-V3",
    "deepseek-v3.2-exp": "DeepSeek-V3.2",
    "glm-4.5-355b-a32b": "GLM-4.5",
    "glm-4.5-air-106b-a12b": "GLM-4.5-Air",
}
"""Releases that differ in their weights only."""

_PACKED = {"kimi-k2-thinking": "int4"}
"""Releases of the same shape whose weights are stored otherwise."""

# Parts of a repository's name that say how a model was tuned, packed or dated, not what shape it has.
_TUNING = re.compile(r"-(instruct|chat|base|it|hf|thinking|bf16|\d{4})(?=-|$)")


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-").removeprefix("meta-")


def _normal(name: str) -> str:
    return _TUNING.sub("", _short(name))


_BY_NAME = {_normal(name): shape for name, shape in CATALOGUE.items()}
_BY_NAME |= {alias: CATALOGUE[name] for alias, name in _SAME_SHAPE.items()}


def find_model(name: str) -> ModelShape:
    """The catalogue's entry for a model's name or Hugging Face repository, tuned, dated and FP8 variants included."""
    key = _normal(name)
    plain = key.removesuffix("-fp8")
    shape = _BY_NAME.get(plain)
    if shape is None:
        raise ModelError(_unknown(name, plain))
    return replace(shape, dtype=_PACKED.get(_short(name), shape.dtype if plain == key else "fp8"))


def _unknown(name: str, key: str) -> str:
    close = difflib.get_close_matches(key, _BY_NAME, n=3, cutoff=0.6)
    near = list(dict.fromkeys(_BY_NAME[match].name for match in close))
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"unknown model {name!r}{hint}; known: {', '.join(CATALOGUE)}; or give a folder with a config.json"


def load_model(name_or_path: str | Path) -> ModelShape:
    """A model by name, or by the path of a config.json or of the folder that holds one."""
    if Path(name_or_path).exists():
        return from_config_json(name_or_path)
    return find_model(str(name_or_path))


# --- config.json ----------------------------------------------------------------------------------------------------

_REFUSED = {
    "GptOssForCausalLM": SLIDING_WINDOW,
    "Gemma2ForCausalLM": SLIDING_WINDOW,
    "Gemma3ForCausalLM": SLIDING_WINDOW,
    "Gemma3ForConditionalGeneration": SLIDING_WINDOW,
    "Gemma3nForCausalLM": SLIDING_WINDOW,
    "Gemma3nForConditionalGeneration": SLIDING_WINDOW,
    "Llama4ForCausalLM": SLIDING_WINDOW,
    "Llama4ForConditionalGeneration": SLIDING_WINDOW,
    "MiMoV2FlashForCausalLM": SLIDING_WINDOW,
    "Qwen3NextForCausalLM": STATE_SPACE,
    "KimiLinearForCausalLM": STATE_SPACE,
    "JambaForCausalLM": STATE_SPACE,
    "FalconH1ForCausalLM": STATE_SPACE,
    "NemotronHForCausalLM": STATE_SPACE,
    "JetNemotronForCausalLM": STATE_SPACE,
}
"""Architectures with a KV pool that is neither of the two. v0.5.7 turns the sliding-window pool off for gpt-oss,
Gemma and MiMo (server_args.py), which makes them start after all, with every layer kept in full; they are refused here
as the article has it, since what would run is not the model's own cache."""

_QKV_BIAS_BY_DEFAULT = {"qwen2", "qwen2_moe"}
_QK_NORM = {"qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text"}


def from_config_json(path: str | Path) -> ModelShape:
    """Read a Hugging Face config.json (or the folder it lies in). Counts follow from the shape it gives."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise ModelError(f"{file} is not JSON") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} is not a model's config")
    try:
        return _shape(config, file)
    except KeyError as error:
        raise ModelError(f"{file} has no {error.args[0]!r}") from None


def _shape(config: dict[str, Any], file: Path) -> ModelShape:
    outer = config
    config = {**config, **config.get("text_config", {})}  # multimodal configs wrap the decoder's
    architecture = (outer.get("architectures") or config.get("architectures") or ["?"])[0]
    kv_dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    return ModelShape(
        name=file.parent.name or architecture,
        family=str(config.get("model_type", architecture)),
        hidden=config["hidden_size"],
        vocab=config["vocab_size"],
        attention=_attention(config),
        blocks=_blocks(config),
        dtype=_weight_dtype(config, kv_dtype),
        kv_dtype=kv_dtype,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        source=str(file),
        unsupported_reason=_REFUSED.get(architecture),
    )


def _attention(config: Mapping[str, Any]) -> Attention:
    for key, build in _ATTENTIONS:
        if config.get(key) is not None:
            return build(config)
    raise KeyError("num_attention_heads")


def _mha(config: Mapping[str, Any]) -> Attention:
    family, heads = config.get("model_type"), config["num_attention_heads"]
    return Mha(
        heads=heads,
        group_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        qkv_bias=bool(config.get("attention_bias", family in _QKV_BIAS_BY_DEFAULT)),
        qk_norm=bool(config.get("use_qk_norm", family in _QK_NORM)),
    )


def _latent(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return {key: config[key] for key in keys} | {
        "heads": config["num_attention_heads"],
        "q_lora_rank": config.get("q_lora_rank"),
    }


def _mla(config: Mapping[str, Any]) -> Attention:
    return Mla(**_latent(config))


def _nsa(config: Mapping[str, Any]) -> Attention:
    return Nsa(
        **_latent(config),
        index_heads=config["index_n_heads"],
        index_head_dim=config["index_head_dim"],
        index_topk=config["index_topk"],
    )


_ATTENTIONS = (("index_topk", _nsa), ("kv_lora_rank", _mla), ("num_attention_heads", _mha))
"""The key that gives an attention type away, the most special first."""


def _blocks(config: Mapping[str, Any]) -> tuple[tuple[int, Ffn], ...]:
    """Dense layers first, as the families read here have it; `mlp_only_layers` elsewhere only changes the order."""
    layers = config["num_hidden_layers"]
    experts = _first(config, "n_routed_experts", "num_experts", "num_local_experts")
    if not experts:
        return ((layers, Dense(config["intermediate_size"])),)
    dense = config.get("first_k_dense_replace") or len(config.get("mlp_only_layers") or ())
    moe = _moe(config, experts)
    return ((layers, moe),) if not dense else ((dense, Dense(config["intermediate_size"])), (layers - dense, moe))


def _moe(config: Mapping[str, Any], experts: int) -> Moe:
    width = _first(config, "moe_intermediate_size", "intermediate_size")
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width
    return Moe(
        experts=experts,
        topk=_first(config, "num_experts_per_tok", "experts_per_token"),
        intermediate=width,
        shared_intermediate=shared,
        router_bias=config.get("topk_method") == "noaux_tc" or config.get("model_type") in {"glm4_moe", "kimi_k2"},
        shared_gate="shared_expert_intermediate_size" in config,
    )


def _first(config: Mapping[str, Any], *keys: str) -> int:
    return next((int(config[key]) for key in keys if config.get(key)), 0)


def _weight_dtype(config: Mapping[str, Any], unquantised: str) -> str:
    quantisation = config.get("quantization_config") or {}
    method = str(quantisation.get("quant_method", ""))
    if not method:
        return unquantised
    groups = quantisation.get("config_groups") or {}
    bits = next((group["weights"]["num_bits"] for group in groups.values()), quantisation.get("bits", 4))
    by_bits = "int4" if bits == 4 else "fp8"
    packed = {"fp8": "fp8", "fbgemm_fp8": "fp8", "awq": by_bits, "gptq": by_bits, "compressed-tensors": by_bits}
    if method not in packed:
        raise ModelError(f"unknown quant_method {method!r}; known: {', '.join(packed)}")
    return packed[method]
