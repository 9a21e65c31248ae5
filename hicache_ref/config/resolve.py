"""What a server makes of its flags: every rewrite, warning and refusal of SGLang, then the sizes of L1 and L2.

Rules of this file
- A profile is a tuple of rules, run in upstream's order. What is a table upstream in all but name is a table here: a
  `Row` rewrites flags, a `Refusal` raises, a `PageRow` lets an attention kernel choose the page size.
- A default is filled in silently. Whatever else changes is a `Change`, so that a user sees why the server does not run
  what was asked for. Resolving the resolved arguments again rewrites nothing: what upstream divides among ranks is
  therefore a field of `Resolved`, and the flag keeps its value.
- Mode strings end here: what comes out is numbers, `Rules`, and the flags as they took effect.
- Reasons end with their source: a section of the article, a file of SGLang.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

from hicache_ref.config import sizing
from hicache_ref.config.server_args import (
    FLAG_OF,
    FLAGS,
    UPSTREAM,
    ConfigError,
    ServerArgs,
    check_value,
    defaults_for,
    is_known_to,
)
from hicache_ref.control.rules import Rules, rules_for

T = TypeVar("T")


# What goes in


class ModelFacts(Protocol):
    """What the rules ask about a model: the kind of its attention, and two sizes of a rank."""

    @property
    def name(self) -> str: ...
    @property
    def attention(self) -> str:
        """mha (with GQA and MQA), mla, or nsa, which is an MLA with an indexer."""
        ...

    @property
    def unsupported_reason(self) -> str | None:
        """Why its cache is not one key and value per token and layer, e.g. a sliding window; None: it is."""
        ...

    def kv_bytes_per_token(self, tp_size: int, kv_cache_dtype: str, /) -> int: ...
    def weight_bytes(self, tp_size: int, /) -> int: ...


@dataclass(frozen=True)
class DeviceFacts:
    """What the rules ask about a machine. None: unknown, and nothing that depends on it is checked or guessed."""

    gpu_mem_bytes: int | None = None
    host_available_bytes: int | None = None
    """Free memory of a host before L2 is allocated."""
    is_npu: bool = False
    is_sm100: bool = False
    """A Blackwell GPU of compute capability 10."""
    has_flashinfer: bool = True


# What comes out


@dataclass(frozen=True)
class Change:
    """One thing that is not as the flags say (rewrite), or is but should not surprise (warning)."""

    kind: Literal["rewrite", "warning"]
    flag: str
    before: object
    after: object
    reason: str


@dataclass(frozen=True)
class StorageConfig:
    """--hicache-storage-backend-extra-config, read. Names are SGLang's, `rest` goes to the backend."""

    backend: str
    prefetch_threshold: int = 256
    """Tokens; at least a page."""
    prefetch_timeout_base: float = 1.0
    """Seconds."""
    prefetch_timeout_per_ki_token: float = 0.25
    """Seconds per 1024 tokens."""
    hicache_storage_pass_prefix_keys: bool = False
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """A configuration that runs. Sizes are a rank's; a scheduler is one attention group, or one replica."""

    args: ServerArgs
    profile: str
    rules: Rules
    changes: tuple[Change, ...]
    page_size: int
    """Tokens."""
    token_bytes: int
    """Keys and values of a token, on one rank."""
    l1_pages: int
    l2_pages: int
    """0: no L2."""
    storage: StorageConfig | None
    """None: no L3."""
    prefetch_limit_tokens: int
    """Prefetches in flight stay below this. Not above 0: nothing is ever prefetched."""
    attention_tp_size: int
    """Ranks that share a token's heads."""
    attention_groups: int
    chunk_tokens: int
    """Prefill chunk of a scheduler; not above 0: whole prompts."""
    conservativeness: float
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


def resolve(
    args: ServerArgs,
    profile: str,
    *,
    model: ModelFacts,
    device: DeviceFacts = DeviceFacts(),  # noqa: B008 (frozen)
    rules: Rules | None = None,
) -> Resolved:
    """The configuration an SGLang of this profile would run with, or `ConfigError`. `rules`: single knobs changed."""
    defaults_for(profile)  # an unknown profile is a ConfigError
    case = _Case(args, profile, rules or rules_for(profile), model, device)
    for rule in _RULES[UPSTREAM[profile]]:
        rule(case)
    return case.result()


# The case at hand


def _have(value: T | None) -> T:
    """A value that an earlier rule has filled in."""
    assert value is not None
    return value


@dataclass
class _Case:
    """The arguments while the rules work on them, and what has come of it so far."""

    args: ServerArgs
    profile: str
    rules: Rules
    model: ModelFacts
    device: DeviceFacts
    changes: list[Change] = field(default_factory=list)
    storage: StorageConfig | None = None
    eviction_options: Mapping[str, Any] = field(default_factory=dict)
    max_running_requests: int = 0
    l1_pages: int = 0
    l2_pages: int = 0

    def put(self, **values: object) -> None:
        """Take what the user left open."""
        self.args = replace(self.args, **values)  # type: ignore[arg-type]

    def rewrite(self, reason: str, **values: object) -> None:
        """Take something else than the flags say, and tell."""
        for name, after in values.items():
            before = getattr(self.args, name)
            if before != after:
                self.changes.append(Change("rewrite", FLAG_OF[name].name, before, after, reason))
                self.put(**{name: after})

    def warn(self, flag: str, reason: str, before: object = None, after: object = None) -> None:
        self.changes.append(Change("warning", flag, before, after, reason))

    @property
    def page_size(self) -> int:
        return _have(self.args.page_size)

    @property
    def has_l2(self) -> bool:
        return bool(self.args.enable_hierarchical_cache)

    @property
    def groups(self) -> int:
        """Attention groups: v0.5.7 counts them by --dp-size, 0.5.23 has a flag for them."""
        return max(self.args.attn_dp_size or 1, _have(self.args.dp_size) if self.args.enable_dp_attention else 1)

    @property
    def attention_tp_size(self) -> int:
        return _have(self.args.tp_size) // self.groups

    @property
    def token_bytes(self) -> int:
        """A stage has its share of the layers, rounded up: the fullest stage sets the size."""
        whole = self.model.kv_bytes_per_token(self.attention_tp_size, _have(self.args.kv_cache_dtype))
        return -(-whole // _have(self.args.pp_size))

    @property
    def chunk_tokens(self) -> int:
        return _have(self.args.chunked_prefill_size) // self.groups

    @property
    def prefetch_limit_tokens(self) -> int:
        if self.rules.prefetch_limit_of_l2 is None:
            return int(0.8 * (self.l2_pages - self.l1_pages) * self.page_size)
        return int(self.rules.prefetch_limit_of_l2 * self.l2_pages * self.page_size)

    def facts(self) -> dict[str, object]:
        """Everything the tables may ask, under one name each."""
        return {
            **vars(self.args),
            "is_mla": self.model.attention != "mha",
            "is_nsa": self.model.attention == "nsa",
            "is_npu": self.device.is_npu,
            "is_sm100": self.device.is_sm100,
            "has_flashinfer": self.device.has_flashinfer,
            "has_storage": self.args.hicache_storage_backend is not None,
            "is_replicated": (self.args.dp_size or 1) > 1,
            "is_staged": (self.args.pp_size or 1) > 1,
            "is_dcp": (self.args.dcp_size or 1) > 1,
            "is_grouped": self.groups > 1,
            "is_speculative": self.args.speculative_algorithm is not None,
            "is_token_tree": (self.args.speculative_eagle_topk or 1) > 1,
            "is_paged": (self.args.page_size or 1) > 1,
        }

    def matches(self, when: Mapping[str, tuple[object, ...]]) -> bool:
        facts = self.facts()
        return all(facts[name] in allowed for name, allowed in when.items())

    def result(self) -> Resolved:
        return Resolved(
            args=self.args,
            profile=self.profile,
            rules=self.rules,
            changes=tuple(self.changes),
            page_size=self.page_size,
            token_bytes=self.token_bytes,
            l1_pages=self.l1_pages,
            l2_pages=self.l2_pages,
            storage=self.storage,
            prefetch_limit_tokens=self.prefetch_limit_tokens if self.storage else 0,
            attention_tp_size=self.attention_tp_size,
            attention_groups=self.groups,
            chunk_tokens=self.chunk_tokens,
            conservativeness=_have(self.args.schedule_conservativeness) * (0.3 if self.groups > 1 else 1.0),
            max_running_requests=self.max_running_requests,
            bigram_keys=self.args.speculative_algorithm in ("EAGLE", "EAGLE3"),
            eviction_options=self.eviction_options,
        )


_Rule = Callable[[_Case], None]


# Tables


@dataclass(frozen=True)
class Row:
    """Where all of `when` holds, these flags take these values."""

    when: Mapping[str, tuple[object, ...]]
    sets: Mapping[str, object]
    reason: str


@dataclass(frozen=True)
class Refusal:
    """Where all of `when` holds, the server does not start (or dies at once)."""

    when: Mapping[str, tuple[object, ...]]
    why: str
    do: str
    where: str


@dataclass(frozen=True)
class PageRow:
    """This attention kernel, chosen by one of these flags, takes only these page sizes; else the last of them."""

    kernel: str
    flags: tuple[str, ...]
    pages: tuple[int, ...]
    when: Mapping[str, tuple[object, ...]] = MappingProxyType({})


def _rows(*rows: Row) -> _Rule:
    def apply(case: _Case) -> None:
        for row in rows:
            if case.matches(row.when):
                case.rewrite(row.reason, **row.sets)

    return apply


def _refusals(*refusals: Refusal) -> _Rule:
    def check(case: _Case) -> None:
        for refusal in refusals:
            if case.matches(refusal.when):
                raise ConfigError(_spell(case.args, refusal.when), refusal.why, refusal.do, refusal.where)

    return check


def _spell(args: ServerArgs, names: Mapping[str, object]) -> str:
    """The flags of a condition as the user may have written them."""
    flags = [FLAG_OF[name] for name in names if name in FLAG_OF]
    words = {f.name: getattr(args, f.field) for f in flags if getattr(args, f.field) not in (None, False)}
    return " with ".join(name if value is True else f"{name} {value}" for name, value in words.items()) or "this model"


def _page_rows(*rows: PageRow) -> _Rule:
    def apply(case: _Case) -> None:
        for row in rows:
            chosen = row.kernel in (getattr(case.args, flag) for flag in row.flags)
            if chosen and case.matches(row.when) and case.args.page_size not in row.pages:
                sizes = " or ".join(map(str, row.pages))
                reason = f"{row.kernel} kernels read pages of {sizes} tokens [server_args.py; 0.5.23: overrides.py]"
                case.rewrite(reason, page_size=row.pages[-1])

    return apply


YES = (True,)
NO = (False,)


def _l2(**when: tuple[object, ...]) -> dict[str, tuple[object, ...]]:
    """A condition on the flags of L2, which mean nothing without it."""
    return {"enable_hierarchical_cache": YES, **when}


# Rewrites

_ASCEND = {f"{which}attention_backend": "ascend" for which in ("", "prefill_", "decode_")}
_NPU = _rows(
    Row({"is_npu": YES}, _ASCEND, "an NPU has one attention backend [hardware_backend/npu/utils.py]"),
    Row(
        _l2(is_npu=YES),
        {"hicache_io_backend": "kernel_ascend"},
        "an NPU copies with its own kernels [article §5.6; hardware_backend/npu/utils.py]",
    ),
    Row(
        _l2(is_npu=YES, is_mla=YES),
        {"hicache_mem_layout": "page_first_kv_split"},
        "an NPU copies the two parts of an MLA cache apart [article §5.6; hardware_backend/npu/utils.py]",
    ),
    Row(
        _l2(is_npu=YES, is_mla=NO),
        {"hicache_mem_layout": "page_first_direct"},
        "an NPU copies an MHA cache layer by layer of a page [article §5.6; hardware_backend/npu/utils.py]",
    ),
)

_NSA_WHERE = "[server_args.py; 0.5.23: model_overrides/deepseek_v2.py]"
_NSA = _rows(
    Row(
        {"is_nsa": YES, "is_npu": NO},
        {"page_size": 64},
        f"the indexer of sparse attention reads pages of 64 tokens [article §6] {_NSA_WHERE}",
    ),
    Row(
        {"is_nsa": YES, "is_npu": NO, "is_sm100": YES, "kv_cache_dtype": ("auto",)},
        {"kv_cache_dtype": "fp8_e4m3"},
        f"sparse attention on Blackwell caches in FP8 {_NSA_WHERE}",
    ),
    Row(
        {"is_nsa": YES, "is_npu": NO, "kv_cache_dtype": ("auto", "bf16")},
        {"kv_cache_dtype": "bfloat16"},
        f"sparse attention caches in bfloat16 or FP8 {_NSA_WHERE}",
    ),
)
_NSA_GROUPS = _rows(
    Row(
        {"is_nsa": YES, "is_npu": NO, "is_replicated": YES},
        {"enable_dp_attention": True},
        f"v0.5.7 runs sparse attention with attention groups {_NSA_WHERE}",
    )
)

_HICACHE_V057 = _rows(
    Row(
        _l2(
            hicache_storage_backend=("mooncake",), hicache_mem_layout=("layer_first",), hicache_io_backend=("direct",)
        ),
        {"hicache_mem_layout": "page_first_direct"},
        "Mooncake takes a page in one piece, and direct copies know this layout [article §5.6; server_args.py]",
    ),
    Row(
        _l2(
            hicache_storage_backend=("mooncake",), hicache_mem_layout=("layer_first",), hicache_io_backend=("kernel",)
        ),
        {"hicache_mem_layout": "page_first"},
        "Mooncake takes a page in one piece, and kernel copies know this layout [article §5.6; server_args.py]",
    ),
    Row(
        _l2(hicache_mem_layout=("page_first_direct",), hicache_io_backend=("kernel",)),
        {"hicache_io_backend": "direct"},
        "page_first_direct is for direct copies [article §5.3; server_args.py]",
    ),
    Row(
        _l2(hicache_io_backend=("kernel",), decode_attention_backend=("fa3",)),
        {"hicache_io_backend": "direct"},
        "FlashAttention 3 decode and kernel copies do not agree on the KV buffer; direct copies are slow with small "
        "pages [article §5.6; server_args.py]",
    ),
    *(
        Row(
            _l2(hicache_io_backend=("kernel",), decode_attention_backend=(None,), **when),
            {"decode_attention_backend": backend},
            "FlashAttention 3, the usual default, does not go with kernel copies, so decode gets other kernels "
            "[article §5.6; server_args.py]",
        )
        for backend, when in (
            ("flashinfer", {"is_mla": NO, "has_flashinfer": YES}),
            ("triton", {"is_mla": NO, "has_flashinfer": NO}),
            ("flashinfer", {"is_mla": YES, "is_sm100": YES}),
            ("triton", {"is_mla": YES, "is_sm100": NO}),
        )
    ),
    Row(
        _l2(hicache_io_backend=("direct",), hicache_mem_layout=("page_first",)),
        {"hicache_mem_layout": "page_first_direct"},
        "direct copies do not know page_first [article §5.3; hiradix_cache.py]",
    ),
)

_HICACHE_V0523 = _rows(
    Row(
        _l2(hicache_mem_layout=("page_first_direct",), hicache_io_backend=("kernel",)),
        {"hicache_io_backend": "direct"},
        "kernel copies do not know page_first_direct [hicache_hook.py]",
    ),
    Row(
        _l2(hicache_mem_layout=("page_first",), hicache_io_backend=("direct",)),
        {"hicache_mem_layout": "page_first_direct"},
        "direct copies do not know page_first [hicache_hook.py]",
    ),
    *(
        Row(
            _l2(
                hicache_storage_backend=("mooncake", "npu_memcache"),
                hicache_mem_layout=("layer_first",),
                hicache_io_backend=(io_backend,),
            ),
            {"hicache_mem_layout": layout},
            "this store takes a page in one piece, which layer_first cuts by layers [hicache_hook.py]",
        )
        for io_backend, layout in (("direct", "page_first_direct"), ("kernel", "page_first"))
    ),
    Row(
        _l2(enable_unified_memory=YES, hicache_mem_layout=("page_first_direct",)),
        {"hicache_mem_layout": "page_first", "hicache_io_backend": "kernel"},
        "rows of the unified buffer lie apart, and direct copies want them packed [hicache_hook.py]",
    ),
)

_WITHOUT_TREE = _rows(
    Row(
        {"attention_backend": ("dual_chunk_flash_attn",)},
        {"disable_radix_cache": True, "enable_mixed_chunk": False},
        "dual chunk attention reuses no prefix and mixes no batches [server_args.py]",
    ),
    Row(
        {"disable_radix_cache": YES, "schedule_policy": ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")},
        {"schedule_policy": "fcfs"},
        "there are no prefixes to order by; upstream does not say so [schedule_policy.py]",
    ),
)

_ONE_GROUP = _rows(
    Row(
        {"is_replicated": NO, "enable_dp_attention": YES},
        {"enable_dp_attention": False},
        "one group is no group [server_args.py]",
    )
)


def _speculation(*mixed_chunk: str) -> _Rule:
    """Speculative decoding; these algorithms can share a batch with prefill."""
    others = tuple(a for a in FLAG_OF["speculative_algorithm"].all_choices if a not in mixed_chunk)
    where = "[server_args.py; 0.5.23: speculative_hook.py]"
    return _rows(
        Row(
            {"speculative_algorithm": ("NEXTN",)},
            {"speculative_algorithm": "EAGLE"},
            f"NEXTN is EAGLE with the model's own draft layer {where}",
        ),
        Row(
            {"is_speculative": YES, "max_running_requests": (None,)},
            {"max_running_requests": 48},
            f"speculative decoding runs 48 requests unless told otherwise {where}",
        ),
        Row(
            {"speculative_algorithm": others, "enable_mixed_chunk": YES},
            {"enable_mixed_chunk": False},
            f"this algorithm cannot decode in a batch that also prefills {where}",
        ),
    )


_DECODE = ("attention_backend", "decode_attention_backend")
_ANY = (*_DECODE, "prefill_attention_backend")
_PAGES_V057 = _page_rows(
    PageRow("flashmla", _DECODE, (64,)),
    PageRow("cutlass_mla", _DECODE, (128,)),
    PageRow("trtllm_mla", _DECODE, (32, 64)),
    PageRow("trtllm_mha", _ANY, (16, 32, 64)),
    PageRow("fa4", ("prefill_attention_backend",), (128,), {"is_mla": NO}),
    PageRow("intel_xpu", ("attention_backend",), (32, 64, 128)),
)
_PAGES_V0523 = _page_rows(
    PageRow("flashmla", _DECODE, (64,)),
    PageRow("trtllm_mla", _DECODE, (32, 64)),
    PageRow("cutedsl_mla", _ANY, (32, 64)),
    PageRow("trtllm_mha", _ANY, (16, 32, 128, 64)),
    PageRow("hpc_ops", _ANY, (64,)),
    PageRow("fa4", _ANY, (128,), {"is_mla": NO, "is_sm100": YES, "is_token_tree": NO}),
    PageRow("intel_xpu", ("attention_backend",), (64, 128)),
)


# Refusals

_BOTH_VERSIONS = _refusals(
    Refusal(
        _l2(disable_radix_cache=YES),
        "L2 and L3 hang on the radix tree, so the two exclude each other",
        "drop one of them",
        "article §5.6; _handle_cache_compatibility",
    ),
    Refusal(
        {"disaggregation_decode_enable_offload_kvcache": YES, "disaggregation_mode": ("null", "prefill")},
        "only a decode server offloads its cache this way",
        "drop the flag",
        "_handle_cache_compatibility",
    ),
    Refusal(
        _l2(is_mla=YES, hicache_mem_layout=("page_head",)),
        "page_head sorts a page by heads, and an MLA cache has none",
        "take page_first",
        "article §5.3; memory_pool_host.py, MLATokenToKVPoolHost",
    ),
    Refusal(
        {"schedule_policy": ("priority",)},
        "the command line offers it, but the scheduler does not know it",
        "take --schedule-policy fcfs with --enable-priority-scheduling",
        "schedule_policy.py",
    ),
    Refusal(
        {
            "enable_priority_scheduling": YES,
            "schedule_policy": ("lpm", "random", "dfs-weight", "routing-key", "hrrn", "shortest-prefill-first"),
        },
        "priorities only go with fcfs and lof",
        "take one of these",
        "check_server_args",
    ),
    Refusal(
        {"is_nsa": YES, "is_npu": NO, "kv_cache_dtype": ("fp8_e5m2", "fp4_e2m1", "mxfp8", "nvfp4", "fp4_mx_block16")},
        "sparse attention caches in bfloat16 or fp8_e4m3 only",
        "take one of these",
        "server_args.py; 0.5.23: overrides.py",
    ),
    Refusal(
        {"is_grouped": YES, "speculative_algorithm": ("STANDALONE",)},
        "a separate draft model does not go with attention groups",
        "drop one of them",
        "server_args.py; 0.5.23: speculative_hook.py",
    ),
    Refusal(
        {"is_token_tree": YES, "attention_backend": ("trtllm_mha",)},
        "these kernels verify a line of draft tokens, not a tree",
        "take --speculative-eagle-topk 1",
        "server_args.py; 0.5.23: speculative_hook.py",
    ),
    Refusal(
        {"disaggregation_mode": ("decode",)},
        "not modelled here, and v0.5.7 gives a decode server no prefix cache at all",
        "describe the prefill server",
        "server_args.py, _handle_pd_disaggregation",
    ),
)

_ONLY_V057 = _refusals(
    Refusal(
        {"enable_hierarchical_cache": NO, "has_storage": YES, "hicache_storage_backend": _have(
            FLAG_OF["hicache_storage_backend"].all_choices)},
        "v0.5.7 starts, then asks a tree without L2 to prefetch and dies at its first request",
        "add --enable-hierarchical-cache",
        "scheduler.py, _prefetch_kvcache",
    ),
    Refusal(
        _l2(hicache_storage_backend=("mooncake",), hicache_mem_layout=("page_first_kv_split",)),
        "Mooncake takes a page in one piece, which this layout splits",
        "take another store",
        "mooncake_store.py, register_mem_pool_host",
    ),
    Refusal(
        _l2(hicache_storage_backend=("hf3fs",), hicache_mem_layout=("page_head", "page_first_kv_split")),
        "3FS cannot tell the size of a page in this layout",
        "take page_first",
        "storage/backend_factory.py",
    ),
    Refusal(
        {"is_sm100": NO, "attention_backend": ("trtllm_mla", "trtllm_mha")},
        "these kernels run on Blackwell only",
        "take another backend",
        "server_args.py, _handle_attention_backend_compatibility",
    ),
    Refusal(
        {"is_sm100": NO, "decode_attention_backend": ("trtllm_mla", "trtllm_mha")},
        "these kernels run on Blackwell only",
        "take another backend",
        "server_args.py, _handle_attention_backend_compatibility",
    ),
    *(
        Refusal(
            {name: ("fa4",)},
            "FlashAttention 4 is for prefill only",
            "take --prefill-attention-backend fa4",
            "server_args.py, _handle_attention_backend_compatibility",
        )
        for name in _DECODE
    ),
    Refusal(
        {"is_token_tree": YES, "is_paged": YES, "speculative_eagle_topk": tuple(range(2, 65)), "attention_backend": (
            "triton", "flashmla", "cutlass_mla", "trtllm_mla", "nsa", "torch_native", "aiter")},
        "a tree of draft tokens goes wrong in pages of these kernels",
        "take --attention-backend flashinfer, --page-size 1 or --speculative-eagle-topk 1",
        "server_args.py, _handle_speculative_decoding",
    ),
    Refusal(
        {"is_staged": YES, "pp_size": tuple(range(2, 1025)), "enable_mixed_chunk": YES},
        "stages do not mix prefill and decode",
        "drop --enable-mixed-chunk",
        "check_server_args",
    ),
    Refusal(
        {"is_staged": YES, "is_speculative": YES, "speculative_algorithm": ()},
        "",
        "",
        "",
    ),
)
