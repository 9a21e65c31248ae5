"""SGLang's server flags, as far as they touch the cache or the scheduler: one table, from which the CLI is generated.

Rules of this file
- Names are SGLang's own, underscored. A flag that only one upstream version knows says so, and so do ours.
- `None` means "not given" and nothing else, so that a profile's default can be told from a user's choice. Filling in
  defaults is `defaults_for`; every consequence of a value is `resolve`.
- Facts only: no rule about two flags stands here.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.write import WRITE

_INTERNAL = ("none",)
"""Policies that nobody chooses: what is taken where there is no L2."""
OURS = "ours"
"""`Flag.only` of a flag that no SGLang version has."""

UPSTREAM: dict[str, str] = {"v0.5.7": "v0.5.7", "article": "v0.5.7", "v0.5.23": "v0.5.23"}
"""Profile to the SGLang version whose code it follows: the article dissects v0.5.7."""


class ConfigError(ValueError):
    """A configuration that cannot run, in one line: what is wrong, why, what to do, and where the rule comes from."""

    def __init__(self, what: str, why: str = "", do: str = "", where: str = "") -> None:
        """A finished line alone is taken as it is: that is how an exception crosses processes."""
        super().__init__(" ".join(f"{what}: {why}; {do} [{where}]".split()) if why else what)


@dataclass(frozen=True)
class Flag:
    """One command line flag. `kind` is the type of its value; a `bool` is a switch that takes none."""

    field: str
    names: tuple[str, ...]
    """Spellings, the first one SGLang's own."""
    kind: type
    help: str
    default: object = None
    """What v0.5.7 takes where the flag is not given (0.5.23 for a flag that only it has)."""
    choices: tuple[str, ...] = ()
    later_choices: tuple[str, ...] = ()
    """Choices that came after v0.5.7."""
    our_choices: tuple[str, ...] = ()
    """Choices that no upstream command line offers."""
    registered: Iterable[str] = ()
    """A registry of policies: what users add to it can be chosen too."""
    low: float | None = None
    above: float | None = None
    high: float | None = None
    only: str | None = None
    """The one upstream version that has the flag, or `OURS`; None: both have it."""
    suffixes: bool = False
    """Also takes 25.6k, 64Ki and the like, as 0.5.23 does."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def all_choices(self) -> tuple[str, ...]:
        known = self.choices + self.later_choices + self.our_choices
        return known + tuple(name for name in self.registered if name not in known and name not in _INTERNAL)


def _flag(kind: type, names: str, help: str, default: object = None, **more: Any) -> Any:
    """A field of `ServerArgs` that carries its flag: every one of them defaults to None, "not given"."""
    return field(default=None, metadata=dict(kind=kind, names=tuple(names.split()), help=help, default=default, **more))


# fmt: off
_KERNELS: dict[str, Any] = {
    "choices": (
        "triton", "torch_native", "flex_attention", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer", "flashmla",
        "trtllm_mla", "trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx", "ascend", "intel_xpu",
    ),
    "later_choices": (
        "dsa", "qsa", "dsv4", "compressed", "llada2_cfg_flashinfer", "cutedsl_mla", "tokenspeed_mla", "hpc_ops",
        "minicpm_flashattn", "minicpm_flashinfer",
    ),
}
# fmt: on
_NEW: dict[str, Any] = {"only": "v0.5.23"}


@dataclass(frozen=True)
class ServerArgs:
    """Flags of one SGLang server. Construct with the ones given; `resolve` fills in the rest."""

    # Model and parallelism
    model_path: str | None = _flag(str, "--model-path --model", "Model: a preset's name or a path.")
    context_length: int | None = _flag(int, "--context-length", "Longest request, in tokens.", low=1)
    kv_cache_dtype: str | None = _flag(
        str,
        "--kv-cache-dtype",
        "Type of the cached keys and values; auto is the model's.",
        "auto",
        choices=("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1"),
        later_choices=("mxfp8", "nvfp4", "fp4_mx_block16"),
    )
    tp_size: int | None = _flag(int, "--tp-size --tensor-parallel-size --tp", "GPUs that share every layer.", 1, low=1)
    pp_size: int | None = _flag(
        int, "--pp-size --pipeline-parallel-size --pp", "Stages the layers are cut into.", 1, low=1
    )
    dp_size: int | None = _flag(
        int, "--dp-size --data-parallel-size --dp", "Replicas; with --enable-dp-attention, attention groups.", 1, low=1
    )
    nnodes: int | None = _flag(int, "--nnodes", "Machines of the server.", 1, low=1)
    enable_dp_attention: bool | None = _flag(
        bool, "--enable-dp-attention", "Split the TP group into --dp-size attention groups, a cache each.", False
    )
    attn_dp_size: int | None = _flag(
        int, "--attn-dp-size --attention-data-parallel-size", "Attention groups in the TP group.", 1, low=1, **_NEW
    )
    dcp_size: int | None = _flag(
        int, "--dcp-size --decode-context-parallel-size", "Ranks that share one sequence's cache.", 1, low=1, **_NEW
    )
    disaggregation_mode: str | None = _flag(
        str, "--disaggregation-mode", "Role of the server.", "null", choices=("null", "prefill", "decode")
    )
    disaggregation_decode_enable_offload_kvcache: bool | None = _flag(
        bool, "--disaggregation-decode-enable-offload-kvcache", "A decode server writes its cache to L3.", False
    )

    # L1
    page_size: int | None = _flag(int, "--page-size", "Tokens of a page, on all three levels.", low=1)
    max_total_tokens: int | None = _flag(
        int, "--max-total-tokens", "L1, in tokens of a rank; else derived from GPU memory.", low=1, suffixes=True
    )
    mem_fraction_static: float | None = _flag(
        float, "--mem-fraction-static", "Share of GPU memory for weights and L1.", above=0, high=1
    )
    radix_eviction_policy: str | None = _flag(
        str,
        "--radix-eviction-policy",
        "Who leaves L1 and L2 first.",
        "lru",
        choices=("lru", "lfu", "fifo", "mru", "filo", "priority", "slru"),
        our_choices=("hpt", "ttl", "session", "sieve", "s3fifo"),
        registered=EVICTION,
    )
    radix_eviction_policy_config: str | None = _flag(
        str, "--radix-eviction-policy-config", "Parameters of the eviction policy, a JSON object.", **_NEW
    )
    disable_radix_cache: bool | None = _flag(bool, "--disable-radix-cache", "Reuse nothing.", False)
    enable_unified_memory: bool | None = _flag(
        bool, "--enable-unified-memory", "One buffer for all pools of a hybrid model.", False, **_NEW
    )

    # L2 and L3
    enable_hierarchical_cache: bool | None = _flag(
        bool, "--enable-hierarchical-cache --enable-hicache", "Switch L2 (and L3) on.", False
    )
    hicache_ratio: float | None = _flag(float, "--hicache-ratio", "L2 size over L1 size.", 2.0, above=0)
    hicache_size: int | None = _flag(
        int, "--hicache-size", "L2 of a rank, in GB of 10^9 bytes; 0: by --hicache-ratio.", 0, low=0
    )
    hicache_total_tokens: int | None = _flag(
        int,
        "--hicache-total-tokens",
        "L2 of a rank, in tokens, exactly; goes before size and ratio.",
        low=1,
        suffixes=True,
        only=OURS,
    )
    hicache_host_memory_mode: str | None = _flag(
        str,
        "--hicache-host-memory-mode",
        "Host memory as a level, or as a staging buffer.",
        "cache",
        choices=("cache", "buffer_only"),
        **_NEW,
    )
    hicache_host_memory_fraction: float | None = _flag(
        float,
        "--hicache-host-memory-fraction",
        "Share of free host memory that L2's default ratio may take.",
        above=0,
        high=1,
        **_NEW,
    )
    hicache_write_policy: str | None = _flag(
        str,
        "--hicache-write-policy",
        "When L1 is copied to L2.",
        "write_through",
        choices=("write_back", "write_through", "write_through_selective"),
        our_choices=("write_back_watermark", "boundary"),
        registered=WRITE,
    )
    hicache_write_back_threshold: float | None = _flag(
        float,
        "--hicache-write-back-threshold",
        "write_back_watermark: share of L1 that may be without a host copy [SGLang PR #40576].",
        0.7,
        low=0,
        high=1,
        only=OURS,
    )
    hicache_io_backend: str | None = _flag(
        str,
        "--hicache-io-backend",
        "How pages travel between L1 and L2.",
        "kernel",
        choices=("direct", "kernel", "kernel_ascend"),
    )
    hicache_mem_layout: str | None = _flag(
        str,
        "--hicache-mem-layout",
        "Order of bytes in L2.",
        "layer_first",
        choices=("layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head"),
    )
    hicache_storage_backend: str | None = _flag(
        str,
        "--hicache-storage-backend",
        "L3; none if not given.",
        choices=("file", "mooncake", "hf3fs", "nixl", "aibrix", "dynamic", "eic"),
        later_choices=("sim", "npu_memcache", "simm", "mori", "shm", "tensorcast", "seaweedfs"),
        our_choices=("redis", "lmdb", "lmcache"),
    )
    hicache_storage_prefetch_policy: str | None = _flag(
        str,
        "--hicache-storage-prefetch-policy",
        "How long a request waits for L3.",
        "best_effort",
        choices=("best_effort", "wait_complete", "timeout"),
        our_choices=("learned",),
        registered=PREFETCH,
    )
    hicache_storage_backend_extra_config: str | None = _flag(
        str,
        "--hicache-storage-backend-extra-config",
        "A JSON object: prefetch_threshold (tokens), prefetch_timeout_base (s), prefetch_timeout_per_ki_token "
        "(s per 1024 tokens), hicache_storage_pass_prefix_keys, and what the backend takes.",
    )
    hicache_storage_prefetch_retry_poll_interval: int | None = _flag(
        int,
        "--hicache-storage-prefetch-retry-poll-interval",
        "Scheduler passes between two looks at L3; 0: no second look after a miss.",
        8,
        low=0,
        **_NEW,
    )
    hicache_storage_prefetch_retry_max_attempts: int | None = _flag(
        int,
        "--hicache-storage-prefetch-retry-max-attempts",
        "Repeated looks at L3 a request may take.",
        8,
        low=0,
        **_NEW,
    )
    enable_unified_cache_external_linker: bool | None = _flag(
        bool, "--enable-unified-cache-external-linker", "L1 straight to an external store, no L2.", False, **_NEW
    )

    # Scheduler
    chunked_prefill_size: int | None = _flag(
        int, "--chunked-prefill-size", "Tokens of a prefill chunk; -1: whole prompts.", low=-1
    )
    max_prefill_tokens: int | None = _flag(
        int, "--max-prefill-tokens", "Tokens of a prefill batch.", 16384, low=1, suffixes=True
    )
    prefill_max_requests: int | None = _flag(int, "--prefill-max-requests", "Requests of a prefill batch.", low=1)
    max_running_requests: int | None = _flag(int, "--max-running-requests", "Requests that run at once.", low=1)
    schedule_policy: str | None = _flag(
        str,
        "--schedule-policy",
        "Order of the waiting queue.",
        "fcfs",
        choices=("lpm", "random", "fcfs", "dfs-weight", "lof", "priority"),
        later_choices=("routing-key", "hrrn", "shortest-prefill-first"),
    )
    schedule_conservativeness: float | None = _flag(
        float,
        "--schedule-conservativeness",
        "How much of the running requests' outputs admission sets aside.",
        1.0,
        low=0,
    )
    enable_mixed_chunk: bool | None = _flag(bool, "--enable-mixed-chunk", "Prefill and decode in one batch.", False)
    enable_priority_scheduling: bool | None = _flag(
        bool, "--enable-priority-scheduling", "Requests of a higher priority value first.", False
    )
    schedule_low_priority_values_first: bool | None = _flag(
        bool, "--schedule-low-priority-values-first", "Lower priority values first instead.", False
    )

    # Attention kernels and speculation: they force page sizes, and how pages travel
    attention_backend: str | None = _flag(str, "--attention-backend", "Attention kernels.", **_KERNELS)
    prefill_attention_backend: str | None = _flag(
        str, "--prefill-attention-backend", "Attention kernels of prefill.", **_KERNELS
    )
    decode_attention_backend: str | None = _flag(
        str, "--decode-attention-backend", "Attention kernels of decode.", **_KERNELS
    )
    speculative_algorithm: str | None = _flag(
        str,
        "--speculative-algorithm --speculative-algo",
        "Speculative decoding; EAGLE keys the cache by bigrams.",
        choices=("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"),
        later_choices=("DFLASH", "DSPARK", "UNO"),
    )
    speculative_num_steps: int | None = _flag(int, "--speculative-num-steps", "Draft steps of a round.", low=1)
    speculative_eagle_topk: int | None = _flag(
        int, "--speculative-eagle-topk", "Draft tokens kept at each step.", low=1
    )
    speculative_num_draft_tokens: int | None = _flag(
        int, "--speculative-num-draft-tokens", "Draft tokens verified a round.", low=1
    )


FLAGS: tuple[Flag, ...] = tuple(Flag(field=f.name, **f.metadata) for f in fields(ServerArgs))
FLAG_OF: Mapping[str, Flag] = {flag.field: flag for flag in FLAGS}

DIFFERENCES: dict[str, dict[str, object]] = {
    "v0.5.7": {},
    "article": {"hicache_write_policy": "write_through_selective"},  # article §6
    "v0.5.23": {
        "hicache_mem_layout": "page_first",
        "hicache_storage_prefetch_policy": "timeout",
        "hicache_ratio": None,
    },
}
"""What a profile takes instead of the flag's default; None: it asks the machine first."""


def is_known_to(flag: Flag, profile: str) -> bool:
    """Does the profile's SGLang version have this flag? Ours are known to all."""
    return flag.only in (None, OURS, UPSTREAM[profile])


def defaults_for(profile: str) -> dict[str, object]:
    """Values of the flags that are not given, by field; no entry where upstream derives the value from the machine."""
    if profile not in DIFFERENCES:
        raise ConfigError(
            f"profile {profile!r}", "no such profile", _instead(profile, DIFFERENCES), "hicache_ref.control.rules"
        )
    known = {f.field: f.default for f in FLAGS if is_known_to(f, profile)}
    return {name: value for name, value in (known | DIFFERENCES[profile]).items() if value is not None}


_SUFFIX = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_value(flag: Flag, text: str) -> object:
    """The value a word of the command line stands for. Choices and bounds are `resolve`'s to check."""
    try:
        if flag.suffixes and (short := re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", text)):
            return round(float(short[1]) * _SUFFIX[short[2]])
        return flag.kind(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[flag.kind]
        raise ConfigError(
            f"{flag.name} {text}", f"the flag takes {wanted}", "correct the value", "server_args.py"
        ) from None


def check_value(flag: Flag, value: object, profile: str) -> None:
    """Raise `ConfigError` unless the flag can have this value under this profile."""
    what = f"{flag.name} {value}"
    if flag.choices and value not in flag.all_choices:
        raise ConfigError(what, "no such choice", _instead(str(value), flag.all_choices), "server_args.py")
    if value in flag.later_choices and UPSTREAM[profile] == "v0.5.7":
        raise ConfigError(what, "v0.5.7 does not have this choice", "take profile v0.5.23", "server_args.py")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(what, "it must be finite", "give a number", "server_args.py")
        if flag.low is not None and value < flag.low:
            raise ConfigError(what, f"it must be at least {flag.low:g}", "raise it", "server_args.py")
        if flag.above is not None and value <= flag.above:
            raise ConfigError(what, f"it must be above {flag.above:g}", "raise it", "server_args.py")
        if flag.high is not None and value > flag.high:
            raise ConfigError(what, f"it must be at most {flag.high:g}", "lower it", "server_args.py")


def _instead(word: str, known: Iterable[str]) -> str:
    """What to do about a misspelt word: the close matches, or else all there are."""
    options = list(known)
    close = difflib.get_close_matches(word, options)
    return f"did you mean {' or '.join(close)}?" if close else f"take one of {', '.join(options)}"
