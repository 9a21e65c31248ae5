"""What a server makes of its flags: every rewrite, warning and refusal of SGLang, then the sizes of L1 and L2.

Rules of this file
- A version is a tuple of rules (`_RULES`, last in the file), run in upstream's order: tables, and functions where a
  table would not do. A rule fills in, rewrites, warns or raises, and later rules see what earlier ones did.
- A default is filled in silently. Whatever else changes is a `Change`, so that a user sees why the server does not run
  what was asked for.
- Resolving resolved arguments again rewrites nothing. What upstream divides among schedulers is therefore a field of
  `Resolved`, and the flag keeps its value.
- Mode strings end here: what comes out is numbers, `Rules`, and the flags as they took effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hicache_ref.config import sizing, tables
from hicache_ref.config.case import Case, have
from hicache_ref.config.records import AttentionFacts, Change, DeviceFacts, ModelFacts, Resolved, StorageConfig
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
from hicache_ref.config.tables import PageRow, Refusal, Row
from hicache_ref.control.rules import Rules, rules_for

__all__ = [
    "AttentionFacts",
    "Change",
    "ConfigError",
    "DeviceFacts",
    "ModelFacts",
    "Resolved",
    "StorageConfig",
    "resolve",
]


def resolve(
    args: ServerArgs,
    profile: str,
    *,
    model: ModelFacts,
    device: DeviceFacts | None = None,
    rules: Rules | None = None,
) -> Resolved:
    """The configuration that an SGLang of this profile would run with, or `ConfigError`.

    `rules` replaces the profile's, for single knobs changed; the arguments are handled as the profile does.
    """
    defaults_for(profile)  # raises for an unknown profile
    case = Case(args, profile, rules or rules_for(profile), model, device or DeviceFacts())
    for rule in _RULES[UPSTREAM[profile]]:
        rule(case)
    return case.result()


_Rule = Callable[[Case], None]


# Rules made of tables


def _rows(*rows: Row) -> _Rule:
    def apply(case: Case) -> None:
        for row in rows:
            if case.matches(row.when):
                if row.reason:
                    case.rewrite(row.reason, **row.sets)
                else:
                    case.put(**row.sets)

    return apply


def _page_rows(*rows: PageRow) -> _Rule:
    def apply(case: Case) -> None:
        for row in rows:
            chosen = row.kernel in (getattr(case.args, flag) for flag in row.flags)
            if chosen and case.matches(row.when) and case.args.page_size not in row.pages:
                case.rewrite(f"{row.kernel}: {row.reason}", page_size=row.pages[-1])

    return apply


def _refusals(*refusals: Refusal) -> _Rule:
    def check(case: Case) -> None:
        for refusal in refusals:
            if case.matches(refusal.when):
                what = refusal.what.format_map(vars(case.args))
                raise ConfigError(what, refusal.why, refusal.do, refusal.where)

    return check


# What was given, what was not


OUR_CHOICES = {
    "hicache_storage_backend": "no SGLang has this store built in: there it would be a dynamic one "
    "[storage/backend_factory.py]"
}
"""What to say of a choice that only we have."""


def _values(case: Case) -> None:
    """Choices and bounds, which upstream leaves to argparse and to whoever stumbles."""
    for flag in FLAGS:
        value = getattr(case.args, flag.field)
        if value is not None:
            check_value(flag, value, case.profile)
        if value in flag.our_choices:
            case.warn(flag.name, OUR_CHOICES.get(flag.field, "no SGLang offers this policy"), value, value)


def _flags_of_this_version(case: Case) -> None:
    for flag in FLAGS:
        if getattr(case.args, flag.field) is not None and not is_known_to(flag, case.profile):
            case.rewrite(f"{UPSTREAM[case.profile]} has no such flag, so it is dropped", **{flag.field: None})


def _defaults(case: Case) -> None:
    case.put(**{k: v for k, v in defaults_for(case.profile).items() if getattr(case.args, k) is None})


def _eviction(case: Case) -> None:
    policy = have(case.args.radix_eviction_policy)
    upstream = UPSTREAM[case.profile]
    offered = tables.EVICTION_ON_COMMAND_LINE[upstream]
    if policy not in offered + FLAG_OF["radix_eviction_policy"].our_choices:
        case.warn(
            "--radix-eviction-policy",
            f"the command line of {upstream} offers {', '.join(offered)} only [article §3; server_args.py]",
            policy,
            policy,
        )
    if case.args.radix_eviction_policy_config is not None:
        case.eviction_options = _json_object(
            "--radix-eviction-policy-config", case.args.radix_eviction_policy_config, "kv_cache_hook.py"
        )


# Guesses from the machine


def _machine(guess: Callable[[int | None, sizing.Load], float], case: Case) -> None:
    """Chunk and static share of GPU memory, where the user did not say."""
    args, device = case.args, case.device
    gpu = sizing.capacity_of(UPSTREAM[case.profile], device.gpu_mem_bytes, device.is_npu)
    if args.chunked_prefill_size is None:
        case.put(chunked_prefill_size=gpu.chunk_tokens)
    if args.mem_fraction_static is None:
        load = sizing.Load(
            chunk_tokens=have(case.args.chunked_prefill_size),
            max_prefill_tokens=have(args.max_prefill_tokens),
            graph_batch=gpu.graph_batch if have(args.tp_size) < 4 else gpu.graph_batch_tp4,
            tp_size=have(args.tp_size),
            pp_size=have(args.pp_size),
            attention_groups=case.groups,
            speculative_algorithm=args.speculative_algorithm,
            max_total_tokens=args.max_total_tokens,
            max_running_requests=args.max_running_requests,
            is_mla=case.is_mla,
            decodes=args.disaggregation_mode == "null",
        )
        case.put(mem_fraction_static=guess(device.gpu_mem_bytes, load))


def _draft_tokens(case: Case) -> None:
    """A speculation that was not spelled out takes upstream's for the kind of model; a line has one token a step."""
    args = case.args
    if args.speculative_algorithm not in ("EAGLE", "EAGLE3", "STANDALONE"):
        return
    source = "server_args.py; 0.5.23: speculative_hook.py"
    if args.speculative_num_steps is None:
        if args.speculative_eagle_topk is not None or args.speculative_num_draft_tokens is not None:
            raise ConfigError(
                "--speculative-eagle-topk or --speculative-num-draft-tokens without --speculative-num-steps",
                "upstream chooses all three or none",
                "give all three",
                source,
            )
        as_line = case.is_mla or args.speculative_algorithm == "STANDALONE"
        steps, topk, drafts = (3, 1, 4) if as_line else (5, 4, 8)
        case.put(speculative_num_steps=steps, speculative_eagle_topk=topk, speculative_num_draft_tokens=drafts)
    elif args.speculative_eagle_topk == 1:
        reason = f"a line of drafts verifies one token more than it has steps [{source}]"
        case.rewrite(reason, speculative_num_draft_tokens=args.speculative_num_steps + 1)


# Attention groups


def _spell_groups_the_new_way(case: Case) -> None:
    """0.5.23 moves the groups of --dp-size --enable-dp-attention to a flag of their own."""
    if case.args.enable_dp_attention:
        reason = "0.5.23 counts attention groups with a flag of their own [parallel_hook.py]"
        if case.args.attn_dp_size == 1:
            case.rewrite(reason, attn_dp_size=case.args.dp_size, dp_size=1)
        case.rewrite(reason, enable_dp_attention=False)


def _groups(case: Case) -> None:
    tp_size, chunk = have(case.args.tp_size), have(case.args.chunked_prefill_size)
    if case.groups == 1:
        return
    if tp_size % case.groups:
        raise ConfigError(
            f"--tp-size {tp_size} in {case.groups} attention groups",
            "a group has a whole number of ranks",
            "take a --tp-size that the number of groups divides",
            "_handle_data_parallelism",
        )
    source = "[_handle_data_parallelism]"
    if chunk > 0:
        case.warn("--chunked-prefill-size", f"attention groups share the chunk {source}", chunk, case.chunk_tokens)
    case.warn(
        "--schedule-conservativeness",
        f"with attention groups admission sets aside 0.3 times as much {source}",
        case.args.schedule_conservativeness,
        have(case.args.schedule_conservativeness) * 0.3,
    )


def _chunk_of_whole_pages(case: Case) -> None:
    if case.chunk_tokens > 0 and case.chunk_tokens % case.page_size:
        raise ConfigError(
            f"--chunked-prefill-size {case.args.chunked_prefill_size}",
            f"a chunk of {case.chunk_tokens} tokens is no whole number of pages of {case.page_size}",
            "take a multiple of --page-size (times the attention groups)",
            "check_server_args",
        )


# L2 and L3


def _model_has_whole_cache(case: Case) -> None:
    why = case.model.unsupported_reason
    if why is None:
        return
    if case.has_l2 and UPSTREAM[case.profile] == "v0.5.7":
        raise ConfigError(
            f"--enable-hierarchical-cache with {case.model.name} ({why})",
            "v0.5.7's L2 takes MHA and MLA caches only",
            "take another model, or leave L2 off in SGLang",
            "article §5.9; hiradix_cache.py, HiRadixCache.__init__",
        )
    raise ConfigError(
        f"model {case.model.name}", f"its cache is not modelled here ({why})", "take a model of MHA or MLA", "here"
    )


def _copies(case: Case) -> None:
    """There is no copy operator for every layout."""
    io_backend, layout = have(case.args.hicache_io_backend), have(case.args.hicache_mem_layout)
    known = tables.COPY_LAYOUTS[case.is_mla, io_backend]
    if case.has_l2 and layout not in known:
        raise ConfigError(
            f"--hicache-mem-layout {layout} with --hicache-io-backend {io_backend}",
            f"upstream has no such copy of an {'MLA' if case.is_mla else 'MHA'} cache",
            f"take {' or '.join(known)}",
            "article §5.3 and §5.4; memory_pool_host.py",
        )


def _edges_v057(case: Case) -> None:
    """Combinations that run in v0.5.7, and that the article lists as doubtful."""
    if case.has_l2 and case.model.attention.name == "nsa":
        case.warn(
            "--enable-hierarchical-cache",
            "L2 takes sparse attention for a plain MLA: it leaves out the indexer's keys, and with an FP8 cache its "
            "rows are shorter than the device's [article §5.9; memory_pool_host.py]",
        )
    if case.has_l2 and case.args.kv_cache_dtype == "fp4_e2m1":
        case.warn(
            "--kv-cache-dtype",
            "L2 takes an FP4 cache for a plain one; whether both sides agree on its bytes is not checked "
            "[article §5.9; memory_pool_host.py]",
            "fp4_e2m1",
            "fp4_e2m1",
        )


_NUMBER = (int, float)
_EXTRA: dict[str, tuple[tuple[type, ...], str]] = {
    "prefetch_threshold": ((int,), "int"),
    "prefetch_timeout_base": (_NUMBER, "number"),
    "prefetch_timeout_per_ki_token": (_NUMBER, "number"),
}
"""Types of what SGLang itself reads from the extra config. A bool is an int to upstream, and so it is here."""


def _json_object(flag: str, text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(flag, f"not JSON: {error}", "quote the JSON for the shell", where) from None
    if not isinstance(value, dict):
        raise ConfigError(flag, f"must be a JSON object, got {type(value).__name__}", "write {...}", where)
    return value


def _extra_config(case: Case, strict: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What SGLang reads of the extra config, and the rest. `strict`: a bool must be one."""
    flag, where = "--hicache-storage-backend-extra-config", "hiradix_cache.py; 0.5.23: hybrid_cache_controller.py"
    text = case.args.hicache_storage_backend_extra_config or "{}"
    if text.startswith("@"):
        raise ConfigError(f"{flag} {text}", "files are not read here", "write its JSON in place of the name", where)
    rest = _json_object(flag, text, where)
    own = {name: rest.pop(name) for name in (*_EXTRA, "hicache_storage_pass_prefix_keys") if name in rest}
    expected = _EXTRA | {"hicache_storage_pass_prefix_keys": ((bool,) if strict else (object,), "bool")}
    for name, value in own.items():
        types, wanted = expected[name]
        if not isinstance(value, types):
            got = type(value).__name__
            raise ConfigError(f"{flag}: {name}", f"must be {wanted}, got {got}", "correct the JSON", where)
    return own, rest


def _storage(strict: bool, read_without_store: bool, case: Case) -> None:
    """L3's configuration. v0.5.7 reads it even where there is no store; 0.5.23 is stricter with it."""
    args = case.args
    backend = args.hicache_storage_backend
    if not case.has_l2 or (backend is None and not read_without_store):
        return
    own, rest = _extra_config(case, strict)
    if backend is None:
        return
    missing = [name for name in ("backend_name", "module_path", "class_name") if name not in rest]
    if backend == "dynamic" and missing:
        raise ConfigError(
            "--hicache-storage-backend dynamic",
            f"the extra config lacks {' and '.join(missing)}",
            "name the class that implements the store",
            "storage/backend_factory.py",
        )
    if own.get("prefetch_threshold", case.page_size) < case.page_size:
        case.warn(
            "prefetch_threshold",
            "less than a page is never fetched [article §6; cache_controller.py]",
            own["prefetch_threshold"],
            case.page_size,
        )
    if args.hicache_write_policy == "write_back" and not case.rules.write_back_stores:
        case.warn(
            "--hicache-write-policy",
            "writes nothing to L3: this version forgets write_back's copies once in L2 [hiradix_cache.py]",
            args.hicache_write_policy,
            args.hicache_write_policy,
        )
    defaults = StorageConfig(backend)
    case.storage = StorageConfig(
        backend,
        prefetch_threshold=max(int(own.get("prefetch_threshold", defaults.prefetch_threshold)), case.page_size),
        prefetch_timeout_base=float(own.get("prefetch_timeout_base", defaults.prefetch_timeout_base)),
        prefetch_timeout_per_ki_token=float(
            own.get("prefetch_timeout_per_ki_token", defaults.prefetch_timeout_per_ki_token)
        ),
        hicache_storage_pass_prefix_keys=bool(own.get("hicache_storage_pass_prefix_keys", False)),
        rest=rest,
    )


def _retries(case: Case) -> None:
    """0.5.23's two flags are knobs of `Rules` too, and a flag that was set goes before the knob."""
    if case.chose("hicache_storage_prefetch_retry_max_attempts"):
        attempts = case.args.hicache_storage_prefetch_retry_max_attempts
        case.rules = replace(case.rules, prefetch_retry_attempts=have(attempts))
    if case.chose("hicache_storage_prefetch_retry_poll_interval"):
        passes = case.args.hicache_storage_prefetch_retry_poll_interval
        case.rules = replace(case.rules, prefetch_retry_passes=have(passes))


# Sizes


def _whole_pages(case: Case) -> None:
    for name in ("max_total_tokens", "hicache_total_tokens"):
        tokens = getattr(case.args, name)
        if tokens is not None:
            if tokens < case.page_size:
                raise ConfigError(
                    f"{FLAG_OF[name].name} {tokens}",
                    f"not one page of {case.page_size} tokens fits",
                    "raise it, or lower --page-size",
                    "model_runner_kv_cache_mixin.py, init_memory_pool",
                )
            reason = f"a level has whole pages, here of {case.page_size} tokens [model_runner_kv_cache_mixin.py]"
            case.rewrite(reason, **{name: tokens - tokens % case.page_size})


def _l1(case: Case) -> None:
    """What --max-total-tokens says, but no more than the GPU has room for."""
    args, gpu_mem_bytes, page_size = case.args, case.device.gpu_mem_bytes, case.page_size
    if gpu_mem_bytes is not None:
        fraction = have(args.mem_fraction_static)
        tokens = sizing.profiled_l1_tokens(gpu_mem_bytes, fraction, case.weight_bytes, case.device_token_bytes)
        room = tokens // page_size * page_size
        if room <= 0:
            raise ConfigError(
                f"--mem-fraction-static {fraction:g}",
                f"that share of the GPU, {fraction * gpu_mem_bytes / 1e9:.2f} GB, does not hold the weights, "
                f"{case.weight_bytes / 1e9:.2f} GB, and a page of cache",
                "raise it, or --tp-size",
                "model_runner_kv_cache_mixin.py, init_memory_pool",
            )
        case.l1_pages = room // page_size
        if args.max_total_tokens is not None and args.max_total_tokens > room:
            reason = "the GPU has no room for more [model_runner_kv_cache_mixin.py, init_memory_pool]"
            case.rewrite(reason, max_total_tokens=room)
    elif args.max_total_tokens is None:
        raise ConfigError(
            "--max-total-tokens",
            "the size of L1 can be derived from GPU memory only, which is not known",
            "give the flag, or describe the GPU",
            "model_runner_kv_cache_mixin.py, init_memory_pool",
        )
    if case.args.max_total_tokens is not None:
        case.l1_pages = case.args.max_total_tokens // page_size


def _auto_ratio(case: Case) -> None:
    """0.5.23 shrinks its default ratio to what the host has. A ratio or size that was given stands."""
    args, host_bytes = case.args, case.device.host_available_bytes
    default = FLAG_OF["hicache_ratio"].default
    given = args.hicache_ratio is not None or args.hicache_size or args.hicache_total_tokens is not None
    if args.hicache_ratio is None:
        case.put(hicache_ratio=default)
    if not case.has_l2:
        return
    if given:
        reason = "a ratio or size that is given stands [hicache_hook.py, handle_hicache_ratio_default]"
        case.rewrite(reason, hicache_host_memory_fraction=None)
    elif host_bytes is not None:
        fraction = args.hicache_host_memory_fraction
        fraction = sizing.AUTO_SIZE_FRACTION if fraction is None else fraction
        l1_bytes = case.l1_tokens * case.device_token_bytes
        room_bytes = host_bytes - case.device.host_reserve_bytes
        ratio = sizing.auto_ratio(have(case.args.hicache_ratio), fraction, l1_bytes, room_bytes, _ranks_of_host(case))
        if ratio <= 0:
            raise ConfigError(
                "--enable-hierarchical-cache",
                f"the host has no memory left beside the {_gib(case.device.host_reserve_bytes)} it keeps",
                "give --hicache-size, or take a larger host",
                "hicache_auto_size.py",
            )
        case.rewrite("the host has no room for more [hicache_auto_size.py]", hicache_ratio=ratio)
    case.put(hicache_host_memory_fraction=None)  # spent: the ratio stands from here on


def _ranks_of_host(case: Case) -> int:
    """Ranks of one server on one host; other replicas on it are not counted, as upstream does not."""
    return max(have(case.args.tp_size) * have(case.args.pp_size) // have(case.args.nnodes), 1)


def _l2(case: Case) -> None:
    """Our exact size goes before upstream's size in GB, and that before the ratio."""
    if not case.has_l2:
        return
    args, page_size = case.args, case.page_size
    if args.hicache_total_tokens is not None:
        case.l2_pages = args.hicache_total_tokens // page_size
        case.rules = replace(case.rules, l2_must_exceed_l1=False)
    elif args.hicache_size:
        case.l2_pages = sizing.l2_pages_by_size(args.hicache_size, case.token_bytes, page_size)
    else:
        case.l2_pages = sizing.l2_pages_by_ratio(case.l1_tokens, have(args.hicache_ratio), page_size)
    if case.l2_pages <= case.l1_pages:
        _l2_is_small(case)


def _l2_is_small(case: Case) -> None:
    flag = _size_flag(case)
    sizes = f"L2 has {case.l2_tokens} tokens, L1 {case.l1_tokens}"
    source = "article §6; memory_pool_host.py; 0.5.23: pool_host/base.py"
    if case.rules.l2_must_exceed_l1:
        do = "raise it, or give --hicache-total-tokens, which may be any size"
        raise ConfigError(flag, f"L2 must exceed L1, but {sizes}", do, source)
    case.warn(flag, f"{sizes}: there is little that L1 forgets and L2 remembers [{source}]")


def _size_flag(case: Case) -> str:
    """The flag that has set the size of L2."""
    if case.args.hicache_total_tokens is not None:
        return "--hicache-total-tokens"
    return "--hicache-size" if case.args.hicache_size else "--hicache-ratio"


def _overridden_sizes(case: Case) -> None:
    setter = _size_flag(case)
    order = ("hicache_total_tokens", "hicache_size", "hicache_ratio")
    for name in order[[FLAG_OF[n].name for n in order].index(setter) + 1 :]:
        if case.has_l2 and case.chose(name):
            value = getattr(case.args, name)
            case.warn(FLAG_OF[name].name, f"does nothing: {setter} goes before it [article §6]", value, value)


def _host_room(ranks_share: bool, case: Case) -> None:
    """Both versions keep 10 GiB. v0.5.7 asks on every rank whether the whole host would do, 0.5.23 for its share."""
    if not case.has_l2 or case.device.host_available_bytes is None:
        return
    ranks = _ranks_of_host(case)
    room = case.device.host_available_bytes - case.device.host_reserve_bytes
    wanted = case.l2_tokens * case.token_bytes
    share = room // ranks if ranks_share else room
    if wanted > share:
        raise ConfigError(
            _size_flag(case),
            f"L2 of a rank takes {wanted / 1e9:.2f} GB, and the host has {share / 1e9:.2f} GB for it beside "
            + _gib(case.device.host_reserve_bytes),
            "lower it",
            "article §6; memory_pool_host.py; 0.5.23: pool_host/base.py",
        )
    if wanted * ranks > room:
        case.warn(
            _size_flag(case),
            f"L2 of {ranks} ranks takes {wanted * ranks / 1e9:.2f} GB of the host's {room / 1e9:.2f} GB: v0.5.7 checks "
            "each rank as if it were alone [memory_pool_host.py]",
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / sizing.GIB:g} GiB"


_SCARCE_PREFETCH = 0.25
"""Of L1. The article calls a ratio of 1.2 scarce, which makes 0.16; the defaults make 0.8."""


def _prefetch_room(case: Case) -> None:
    limit = case.prefetch_limit_tokens
    if case.storage is None or limit >= _SCARCE_PREFETCH * case.l1_tokens:
        return
    effect = "so nothing is ever fetched from L3" if limit <= 0 else "so under load L3 is often passed over"
    reason = f"prefetches in flight are limited to {max(limit, 0)} tokens, {effect} [article §6; cache_controller.py]"
    case.warn(_size_flag(case), reason)


def _running_v057(case: Case) -> None:
    limit = case.args.max_running_requests
    pool = _request_slots(case) if limit is None else limit
    running = case.l1_tokens // 2 if limit is None else limit // case.groups
    case.max_running_requests = min(running, pool)
    if case.max_running_requests <= 0:
        raise ConfigError(
            "--max-running-requests",
            "not one request per attention group may run",
            "raise it",
            "tp_worker.py",
        )


def _running_v0523(case: Case) -> None:
    limit = case.args.max_running_requests
    wanted = _request_slots(case) if limit is None else max(1, limit // case.groups)
    case.max_running_requests = min(wanted, case.l1_tokens // 2)


def _request_slots(case: Case) -> int:
    """Upstream's guess of how many requests L1 could serve. An unknown context length counts as a short one."""
    context = case.args.context_length
    return 4096 if context is None else min(max(int(case.l1_tokens / context * 512), 2048), 4096)


# Flags to no avail

_NEEDS_L2 = tuple(f.field for f in FLAGS if f.field.startswith("hicache_"))
_NEEDS_L3 = (
    "hicache_storage_prefetch_policy",
    "hicache_storage_backend_extra_config",
    "hicache_storage_prefetch_retry_poll_interval",
    "hicache_storage_prefetch_retry_max_attempts",
)


def _inert(case: Case) -> None:
    """Flags that were set and do nothing, because what they set is off."""
    names, needed = (
        (_NEEDS_L3, "--hicache-storage-backend")
        if case.has_l2
        else (_NEEDS_L2, FLAG_OF["enable_hierarchical_cache"].name)
    )
    for name in names:
        if case.storage is None and case.chose(name):
            value = getattr(case.args, name)
            case.warn(FLAG_OF[name].name, f"does nothing without {needed}", value, value)


# The order of things

_RULES: dict[str, tuple[_Rule, ...]] = {
    "v0.5.7": (
        _values,
        _flags_of_this_version,
        _defaults,
        _refusals(*tables.UNMODELLED),
        _eviction,
        _rows(*tables.NPU),
        partial(_machine, sizing.mem_fraction_v057),
        _rows(*tables.NSA_GROUPS_V057, *tables.NSA),
        _rows(*tables.BLACKWELL_MLA, *tables.HICACHE_V057, *tables.BLACKWELL_REST),
        _page_rows(*tables.PAGES_V057),
        _rows(*tables.DEFAULT_PAGE),
        _rows(*tables.ONE_GROUP_V057),
        _groups,
        _rows(*tables.SPECULATION, *tables.MIXED_CHUNK_V057),
        _draft_tokens,
        _rows(*tables.WITHOUT_TREE),
        _refusals(*tables.REFUSALS, *tables.REFUSALS_V057),
        _model_has_whole_cache,
        _copies,
        _edges_v057,
        _chunk_of_whole_pages,
        _whole_pages,
        _l1,
        _l2,
        _overridden_sizes,
        partial(_host_room, False),
        _running_v057,
        partial(_storage, False, True),
        _prefetch_room,
        _inert,
    ),
    "v0.5.23": (
        _values,
        _flags_of_this_version,
        _defaults,
        _refusals(*tables.OFFLOAD_V0523, *tables.UNMODELLED),
        _eviction,
        _spell_groups_the_new_way,
        _rows(*tables.NPU),
        partial(_machine, sizing.mem_fraction_v0523),
        _rows(*tables.NSA, *tables.BLACKWELL_MLA, *tables.BLACKWELL_REST),
        _page_rows(*tables.PAGES_V0523),
        _rows(*tables.DEFAULT_PAGE, *tables.HICACHE_V0523),
        _groups,
        _rows(*tables.SPECULATION, *tables.MIXED_CHUNK_V0523),
        _draft_tokens,
        _rows(*tables.WITHOUT_TREE),
        _refusals(*tables.REFUSALS, *tables.REFUSALS_V0523),
        _model_has_whole_cache,
        _copies,
        _chunk_of_whole_pages,
        _whole_pages,
        _l1,
        _auto_ratio,
        _l2,
        _overridden_sizes,
        partial(_host_room, True),
        _running_v0523,
        partial(_storage, True, False),
        _retries,
        _prefetch_room,
        _inert,
    ),
}
