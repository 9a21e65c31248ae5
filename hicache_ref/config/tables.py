"""Which flags rule out or rewrite which: SGLang's argument handling, as tables of two versions.

Rules of this file
- Data only. `resolve` says in which order the tables apply, and what a row may ask about: any field of `ServerArgs`,
  and the facts that `Case.facts` lists.
- Within a table rows apply in order, and each sees what the rows above it have changed.
- A reason is ours and ends with its source: a section of the article, a file or function of SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hicache_ref.config.server_args import FLAG_OF

When = Mapping[str, tuple[object, ...]]
"""Names of flags or facts, and for each the values for which a row holds."""

YES = (True,)
NO = (False,)


@dataclass(frozen=True)
class Row:
    """Where all of `when` holds, these flags take these values. Without a reason it is a default, and silent."""

    when: When
    sets: Mapping[str, object]
    reason: str = ""


@dataclass(frozen=True)
class PageRow:
    """This attention kernel, chosen by one of these flags, reads only pages of these sizes; else the last applies."""

    kernel: str
    flags: tuple[str, ...]
    pages: tuple[int, ...]
    when: When = field(default_factory=dict)
    reason: str = "these attention kernels read no other pages [server_args.py; 0.5.23: overrides.py]"


@dataclass(frozen=True)
class Refusal:
    """Where all of `when` holds, the server does not start, or dies at once. `what` is formatted with the flags."""

    when: When
    what: str
    why: str
    do: str
    where: str


def _l2(**when: tuple[object, ...]) -> When:
    """A condition on flags that mean nothing without L2."""
    return {"enable_hierarchical_cache": YES, **when}


# Machines and models

NPU = (
    Row(
        {"is_npu": YES},
        {
            "attention_backend": "ascend",
            "prefill_attention_backend": "ascend",
            "decode_attention_backend": "ascend",
        },
        "an NPU has one attention backend [hardware_backend/npu/utils.py]",
    ),
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
        "the NPU's copies know no other layout of an MHA cache [article §5.6; hardware_backend/npu/utils.py]",
    ),
)

_NSA_SOURCE = "server_args.py; 0.5.23: model_overrides/deepseek_v2.py"
NSA = (
    Row(
        {"is_nsa": YES, "is_npu": NO},
        {"page_size": 64},
        f"the indexer of sparse attention reads pages of 64 tokens [article §6; {_NSA_SOURCE}]",
    ),
    Row(
        {"is_nsa": YES, "is_npu": NO, "is_sm100": YES, "kv_cache_dtype": ("auto",)},
        {"kv_cache_dtype": "fp8_e4m3"},
        f"sparse attention on Blackwell caches in FP8 [{_NSA_SOURCE}]",
    ),
    Row(
        {"is_nsa": YES, "is_npu": NO, "kv_cache_dtype": ("auto", "bf16")},
        {"kv_cache_dtype": "bfloat16"},
        f"sparse attention caches in bfloat16 unless FP8 is asked for [{_NSA_SOURCE}]",
    ),
)
NSA_GROUPS_V057 = (
    Row(
        {"is_nsa": YES, "is_npu": NO, "is_replicated": YES},
        {"enable_dp_attention": True},
        "v0.5.7 runs sparse attention in attention groups [server_args.py]",
    ),
)
ONE_GROUP_V057 = (
    Row(
        {"is_replicated": NO, "enable_dp_attention": YES},
        {"enable_dp_attention": False},
        "with --dp-size 1 there is nothing to split [server_args.py]",
    ),
)

BLACKWELL_MLA = (
    Row(
        {
            "is_sm100": YES,
            "is_mla": YES,
            "is_nsa": NO,
            "attention_backend": (None,),
            "prefill_attention_backend": (None,),
            "decode_attention_backend": (None,),
        },
        {"attention_backend": "trtllm_mla"},
    ),
)
BLACKWELL_REST = (
    *(
        Row({"is_sm100": YES, "is_mla": NO, "attention_backend": (None,), **when}, {"attention_backend": "trtllm_mha"})
        for when in ({"is_speculative": NO}, {"is_draft_line": YES, "page_size": (None, 1)})
    ),
    *(
        Row({"is_sm100": YES, "is_nsa": NO, "attention_backend": (None,), **when}, {"attention_backend": backend})
        for backend, when in (("triton", {"is_mla": NO, "has_flashinfer": NO}), ("flashinfer", {}))
    ),
)
"""The default attention kernels of Blackwell are the only ones that force a page size, so the only ones filled in."""
DEFAULT_PAGE = (
    Row({"page_size": (None,), "is_npu": YES}, {"page_size": 128}),
    Row({"page_size": (None,)}, {"page_size": 1}),
)

# L2 and L3

MOONCAKE_ROWS = tuple(
    Row(
        _l2(
            hicache_storage_backend=("mooncake", "npu_memcache"),
            hicache_mem_layout=("layer_first",),
            hicache_io_backend=(io_backend,),
        ),
        {"hicache_mem_layout": layout},
        "this store takes a page in one piece, which layer_first cuts by layers "
        "[article §5.6; server_args.py; 0.5.23: hicache_hook.py]",
    )
    for io_backend, layout in (("direct", "page_first_direct"), ("kernel", "page_first"))
)
_TO_DIRECT = Row(
    _l2(hicache_mem_layout=("page_first_direct",), hicache_io_backend=("kernel",)),
    {"hicache_io_backend": "direct"},
    "kernel copies do not know page_first_direct [article §5.3; server_args.py; 0.5.23: hicache_hook.py]",
)
_TO_PAGE_FIRST_DIRECT = Row(
    _l2(hicache_mem_layout=("page_first",), hicache_io_backend=("direct",)),
    {"hicache_mem_layout": "page_first_direct"},
    "direct copies do not know page_first [article §5.3; hiradix_cache.py; 0.5.23: hicache_hook.py]",
)
_FA3_ROWS = (
    *(
        Row(
            _l2(hicache_io_backend=("kernel",), decode_attention_backend=(None,), **when),
            {"decode_attention_backend": backend},
            "kernel copies and decoding by FlashAttention 3, often the default, expect different KV buffers "
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
        _l2(hicache_io_backend=("kernel",), decode_attention_backend=("fa3",)),
        {"hicache_io_backend": "direct"},
        "kernel copies and decoding by FlashAttention 3 expect different KV buffers; direct copies are slow where "
        "pages are small [article §5.6; server_args.py]",
    ),
)
HICACHE_V057 = (*MOONCAKE_ROWS, _TO_DIRECT, *_FA3_ROWS, _TO_PAGE_FIRST_DIRECT)
HICACHE_V0523 = (
    _TO_DIRECT,
    _TO_PAGE_FIRST_DIRECT,
    *MOONCAKE_ROWS,
    Row(
        _l2(enable_unified_memory=YES, hicache_mem_layout=("page_first_direct",)),
        {"hicache_mem_layout": "page_first", "hicache_io_backend": "kernel"},
        "rows of the unified buffer lie apart, and direct copies want them packed [hicache_hook.py]",
    ),
)

COPY_LAYOUTS: Mapping[tuple[bool, str], tuple[str, ...]] = {
    (False, "kernel"): ("layer_first", "page_first", "page_head"),
    (False, "direct"): ("layer_first", "page_first_direct"),
    (False, "kernel_ascend"): ("page_first_direct",),
    (True, "kernel"): ("layer_first", "page_first"),
    (True, "direct"): ("layer_first", "page_first_direct"),
    (True, "kernel_ascend"): ("page_first_kv_split",),
}
"""(is the model an MLA, io backend): layouts there is a copy operator for (article §5.4, `memory_pool_host.py`)."""

# The tree and the scheduler

EVICTION_ON_COMMAND_LINE = {"v0.5.7": ("lru", "lfu"), "v0.5.23": ("lru", "lfu", "slru", "priority")}
"""What upstream's command line offers of the strategies that we all know."""

WITHOUT_TREE = (
    Row(
        {"attention_backend": ("dual_chunk_flash_attn",)},
        {"disable_radix_cache": True, "enable_mixed_chunk": False},
        "dual chunk attention reuses no prefix and mixes no batches [server_args.py]",
    ),
    Row(
        {"disable_radix_cache": YES, "schedule_policy": ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")},
        {"schedule_policy": "fcfs"},
        "there are no prefixes to order by; upstream does so without a word [schedule_policy.py]",
    ),
)

SPECULATION = (
    Row(
        {"speculative_algorithm": ("NEXTN",)},
        {"speculative_algorithm": "EAGLE"},
        "NEXTN is EAGLE with the model's own draft layer [server_args.py; 0.5.23: speculative_hook.py]",
    ),
    Row(
        {"is_speculative": YES, "max_running_requests": (None,)},
        {"max_running_requests": 48},
        "speculative decoding runs 48 requests unless told otherwise [server_args.py; 0.5.23: speculative_hook.py]",
    ),
)
MIXED_CHUNK_V057 = (
    Row(
        {"is_speculative": YES, "enable_mixed_chunk": YES},
        {"enable_mixed_chunk": False},
        "speculative decoding cannot share a batch with prefill [server_args.py]",
    ),
)
MIXED_CHUNK_V0523 = (
    Row(
        {"speculative_algorithm": ("STANDALONE", "NGRAM"), "enable_mixed_chunk": YES},
        {"enable_mixed_chunk": False},
        "this algorithm cannot share a batch with prefill [speculative_hook.py]",
    ),
)

# Pages

_DECODE = ("attention_backend", "decode_attention_backend")
_ANY = (*_DECODE, "prefill_attention_backend")
PAGES_V057 = (
    PageRow("flashmla", _DECODE, (64,)),
    PageRow("cutlass_mla", _DECODE, (128,)),
    PageRow("trtllm_mla", _DECODE, (32, 64)),
    PageRow("trtllm_mha", _ANY, (16, 32, 64)),
    PageRow("fa4", ("prefill_attention_backend",), (128,), {"is_mla": NO}),
    PageRow("intel_xpu", ("attention_backend",), (32, 64, 128)),
)
PAGES_V0523 = (
    PageRow("flashmla", _DECODE, (64,)),
    PageRow("trtllm_mla", _DECODE, (32, 64)),
    PageRow("cutedsl_mla", _ANY, (32, 64)),
    PageRow("trtllm_mha", _ANY, (16, 32, 128, 64)),
    PageRow("hpc_ops", _ANY, (64,)),
    PageRow("fa4", _ANY, (128,), {"is_mla": NO, "is_sm100": YES, "is_token_tree": NO}),
    PageRow("intel_xpu", ("attention_backend",), (64, 128)),
)

# Refusals

UNMODELLED = (
    Refusal(
        {"hicache_host_memory_mode": ("buffer_only",)},
        "--hicache-host-memory-mode buffer_only",
        "host memory is then a staging buffer and no level, which is not modelled here",
        "take --hicache-host-memory-mode cache",
        "hicache_hook.py",
    ),
    Refusal(
        {"enable_unified_cache_external_linker": YES, "enable_hierarchical_cache": YES},
        "--enable-unified-cache-external-linker with --enable-hierarchical-cache",
        "a linker goes past L2, so the two exclude each other",
        "drop the linker",
        "hicache_hook.py",
    ),
    Refusal(
        {"enable_unified_cache_external_linker": YES},
        "--enable-unified-cache-external-linker",
        "an external store without L2 is not modelled here",
        "take --enable-hierarchical-cache with --hicache-storage-backend",
        "hicache_hook.py",
    ),
    Refusal(
        _l2(is_dcp=YES, is_mla=NO),
        "--dcp-size {dcp_size} with --enable-hierarchical-cache",
        "the host pool of an MHA model cannot find its pages again where ranks share a sequence",
        "take --dcp-size 1",
        "hicache_hook.py",
    ),
    Refusal(
        {"is_dcp": YES},
        "--dcp-size {dcp_size}",
        "ranks that share one sequence's cache are not modelled here",
        "take --dcp-size 1",
        "hicache_hook.py",
    ),
    Refusal(
        {"disaggregation_decode_enable_offload_kvcache": YES, "disaggregation_mode": ("null", "prefill")},
        "--disaggregation-decode-enable-offload-kvcache",
        "only a decode server offloads its cache this way",
        "drop the flag",
        "_handle_cache_compatibility",
    ),
    Refusal(
        {"disaggregation_mode": ("decode",)},
        "--disaggregation-mode decode",
        "v0.5.7 gives a decode server no prefix cache, and 0.5.23's is not modelled here",
        "describe the prefill server",
        "_handle_pd_disaggregation",
    ),
)
OFFLOAD_V0523 = (
    Refusal(
        {"disaggregation_decode_enable_offload_kvcache": YES, "has_storage": NO},
        "--disaggregation-decode-enable-offload-kvcache",
        "there is no store to offload to",
        "add --hicache-storage-backend",
        "kv_cache_hook.py, handle_cache_compatibility",
    ),
)

_SPECULATION_SOURCE = "server_args.py; 0.5.23: speculative_hook.py"
REFUSALS = (
    Refusal(
        _l2(disable_radix_cache=YES),
        "--enable-hierarchical-cache with --disable-radix-cache",
        "L2 and L3 hang on the radix tree, so the two exclude each other",
        "drop one of them",
        "article §5.6; _handle_cache_compatibility",
    ),
    Refusal(
        {"schedule_policy": ("priority",)},
        "--schedule-policy priority",
        "the command line offers it, but the scheduler does not know it",
        "take --schedule-policy fcfs with --enable-priority-scheduling",
        "schedule_policy.py",
    ),
    Refusal(
        {
            "enable_priority_scheduling": YES,
            "schedule_policy": ("lpm", "random", "dfs-weight", "routing-key", "hrrn", "shortest-prefill-first"),
        },
        "--enable-priority-scheduling with --schedule-policy {schedule_policy}",
        "priorities go with fcfs and lof only",
        "take one of these",
        "check_server_args",
    ),
    Refusal(
        {"is_nsa": YES, "is_npu": NO, "kv_cache_dtype": ("fp8_e5m2", "fp4_e2m1", "mxfp8", "nvfp4", "fp4_mx_block16")},
        "--kv-cache-dtype {kv_cache_dtype}",
        "sparse attention caches in bfloat16 or fp8_e4m3 only",
        "take one of these",
        _NSA_SOURCE,
    ),
    Refusal(
        {"is_grouped": YES, "speculative_algorithm": ("STANDALONE",)},
        "--speculative-algorithm STANDALONE with attention groups",
        "a draft model of its own does not run in attention groups",
        "drop one of them",
        _SPECULATION_SOURCE,
    ),
    Refusal(
        {"is_token_tree": YES, "attention_backend": ("trtllm_mha",)},
        "--speculative-eagle-topk {speculative_eagle_topk} with trtllm_mha",
        "these attention kernels verify a line of draft tokens, not a tree",
        "take --speculative-eagle-topk 1",
        _SPECULATION_SOURCE,
    ),
)


def _page_tree_refusal(*able: str) -> Refusal:
    """Only these attention kernels verify a tree of draft tokens in pages of more than one. Unset: not known here."""
    return Refusal(
        {
            "is_token_tree": YES,
            "is_paged": YES,
            "attention_backend": tuple(k for k in FLAG_OF["attention_backend"].all_choices if k not in able),
        },
        "--speculative-eagle-topk {speculative_eagle_topk} with --page-size {page_size} on {attention_backend}",
        "a tree of draft tokens comes out wrong in the pages of these attention kernels",
        "take --attention-backend flashinfer, --page-size 1 or --speculative-eagle-topk 1",
        _SPECULATION_SOURCE,
    )


REFUSALS_V057 = (
    Refusal(
        {"enable_hierarchical_cache": NO, "has_storage": YES},
        "--hicache-storage-backend {hicache_storage_backend} without --enable-hierarchical-cache",
        "v0.5.7 starts, asks a tree without L2 to prefetch, and dies at its first request",
        "add --enable-hierarchical-cache",
        "scheduler.py, _prefetch_kvcache",
    ),
    Refusal(
        _l2(hicache_storage_backend=("mooncake",), hicache_mem_layout=("page_first_kv_split",)),
        "--hicache-storage-backend mooncake with --hicache-mem-layout page_first_kv_split",
        "Mooncake takes a page in one piece, which this layout splits",
        "take another store",
        "mooncake_store.py, register_mem_pool_host",
    ),
    Refusal(
        _l2(hicache_storage_backend=("hf3fs",), hicache_mem_layout=("page_head", "page_first_kv_split")),
        "--hicache-storage-backend hf3fs with --hicache-mem-layout {hicache_mem_layout}",
        "3FS is not told the size of a page in this layout",
        "take page_first",
        "storage/backend_factory.py",
    ),
    *(
        Refusal(
            {"is_sm100": NO, flag: ("trtllm_mla", "trtllm_mha")},
            f"{FLAG_OF[flag].name} {{{flag}}}",
            "these attention kernels run on Blackwell only",
            "take other ones",
            "_handle_attention_backend_compatibility",
        )
        for flag in _DECODE
    ),
    *(
        Refusal(
            {flag: ("fa4",)},
            f"{FLAG_OF[flag].name} fa4",
            "FlashAttention 4 is for prefill only",
            "take --prefill-attention-backend fa4",
            "_handle_attention_backend_compatibility",
        )
        for flag in _DECODE
    ),
    _page_tree_refusal("flashinfer", "fa3"),
    Refusal(
        {"is_staged": YES, "enable_mixed_chunk": YES},
        "--pp-size {pp_size} with --enable-mixed-chunk",
        "stages do not mix prefill and decode",
        "drop one of them",
        "check_server_args",
    ),
    Refusal(
        {"is_staged": YES, "is_speculative": YES},
        "--pp-size {pp_size} with --speculative-algorithm {speculative_algorithm}",
        "stages do not speculate",
        "drop one of them",
        "check_server_args",
    ),
)
REFUSALS_V0523 = (
    Refusal(
        {"is_replicated": YES, "is_grouped": YES},
        "--dp-size {dp_size} with --attn-dp-size {attn_dp_size}",
        "replicas of servers with attention groups are not supported",
        "take --dp-size 1",
        "parallel_hook.py",
    ),
    _page_tree_refusal("flashinfer", "fa3", "triton"),
    Refusal(
        _l2(enable_unified_memory=YES, is_npu=YES),
        "--enable-unified-memory with --enable-hierarchical-cache",
        "it asks for kernel copies, and an NPU has none",
        "drop --enable-unified-memory",
        "hicache_hook.py",
    ),
)
