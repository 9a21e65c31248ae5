"""From a configuration to an engine on a machine: the one place where the parts are put together.

Rules of this file
- Everything a run depends on is in `RunConfig`: what SGLang's flags say, which machine and store, what goes wrong, the
  seed. The same config and requests give the same run.
- Errors are raised here, before anything runs, in one line each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from simpy import Environment

from hicache_ref.config.layouts import geometry
from hicache_ref.config.models import ModelShape, load_model
from hicache_ref.config.records import DeviceFacts, Resolved
from hicache_ref.config.resolve import resolve
from hicache_ref.config.server_args import ConfigError, ServerArgs
from hicache_ref.control.active import Active
from hicache_ref.control.budget import SchedulerLimits
from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.counters import Drop
from hicache_ref.control.engine import Engine
from hicache_ref.control.keys import AtomKeys
from hicache_ref.control.rules import Rules, rules_for
from hicache_ref.control.scheduler import Scheduler
from hicache_ref.control.storage import PrefetchLimits, StorageSide
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.schedule import SCHEDULE
from hicache_ref.policy.write import WRITE
from workloads.request import Request

from .compute import Roofline
from .copies import CopyModel
from .faults import FaultyStore, parse_fault
from .hardware import DEFAULT_STORES, HardwareProfile, StoreProfile, load_profile, load_store
from .plane import SimPlane
from .stores import make_store

DEFAULT_MODEL = "llama-3.1-8b"


@dataclass(frozen=True)
class RunConfig:
    """What a run is a function of, besides its requests."""

    args: ServerArgs = field(default_factory=ServerArgs)
    profile: str = "v0.5.7"
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Single knobs of `control.rules.Rules`, changed from the profile's."""
    hardware: str = "h100-pcie5"
    hardware_numbers: Mapping[str, Any] = field(default_factory=dict)
    store: str | None = None
    """A store profile; None: the one for the storage backend."""
    store_numbers: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    untimed: bool = False
    """No machine: sizes are what the flags say, whether they fit a GPU or not."""
    seed: int = 0


@dataclass(frozen=True)
class Plan:
    """A configuration resolved: what will run, and what was changed to make it run."""

    config: RunConfig
    resolved: Resolved
    model: ModelShape
    hardware: HardwareProfile
    store: StoreProfile | None

    @property
    def page_tokens(self) -> int:
        return self.resolved.page_size

    @property
    def rank_page_bytes(self) -> int:
        return self.resolved.token_bytes * self.resolved.page_size

    @property
    def node_page_bytes(self) -> int:
        """A page in the store: of all ranks, or once where they hold the same."""
        ranks = 1 if self.model.attention.replicated else self.resolved.attention_tp_size
        return self.rank_page_bytes * ranks


def plan(config: RunConfig) -> Plan:
    """Resolve flags, model, machine and store. ValueError (ConfigError, ModelError, ProfileError): one line."""
    args = config.args
    if args.enable_hierarchical_cache is None:
        args = replace(args, enable_hierarchical_cache=True)
    hardware = load_profile(config.hardware, **config.hardware_numbers)
    model = load_model(args.model_path or DEFAULT_MODEL)
    device = DeviceFacts()
    if not config.untimed:
        device = DeviceFacts(int(hardware.hbm_bytes), int(hardware.dram_bytes), is_sm100=hardware.name.startswith("b"))
    resolved = resolve(args, config.profile, model=model, device=device, rules=_rules(config))
    store = None
    if resolved.storage is not None:
        backend = resolved.storage.backend
        if config.store is None and backend not in DEFAULT_STORES:
            why, do = "no numbers for this store were found", "say which to use with --store"
            raise ConfigError(f"--hicache-storage-backend {backend}", why, do, "hicache list stores")
        store = load_store(config.store or DEFAULT_STORES[backend], **config.store_numbers)
    elif config.store or config.store_numbers or config.faults:
        what = "a store profile, its numbers and faults"
        raise ConfigError(what, "there is no L3 in this configuration", "add --hicache-storage-backend", "replay")
    return Plan(config, resolved, model, hardware, store)


def _rules(config: RunConfig) -> Rules:
    """The profile's, with the single knobs that were asked for."""
    rules = rules_for(config.profile)
    known = [each.name for each in fields(rules)]
    for name in config.rules:
        if name not in known:
            raise ConfigError(f"--rule {name}: unknown; known are {', '.join(known)}")
    return replace(rules, **config.rules)


def make_cache(made: Plan, facts: list[tuple[Drop | None, bytes]] | None = None) -> HiCache:
    """The control plane's cache, with its L3 side if there is one."""
    resolved, args = made.resolved, made.resolved.args
    write = (args.hicache_write_policy or "write_through") if resolved.l2_pages else "none"
    cache = HiCache(
        CacheShape(resolved.page_size, resolved.l1_pages, resolved.l2_pages),
        EVICTION.make(args.radix_eviction_policy or "lru", **resolved.eviction_options),
        WRITE.make(write),
        resolved.rules,
        AtomKeys(),
        facts,
    )
    storage = resolved.storage
    if storage is not None:
        name = args.hicache_storage_prefetch_policy or "best_effort"
        page_s = resolved.page_size / 1024 * storage.prefetch_timeout_per_ki_token
        of_request = resolved.rules.prefetch_clock_from_poll
        parameters: dict[str, Mapping[str, object]] = {
            "timeout": {"base_s": storage.prefetch_timeout_base, "per_page_s": page_s, "of_request": of_request}
        }
        policy = PREFETCH.make(name, **parameters.get(name, {}))
        threshold = max(storage.prefetch_threshold, resolved.page_size)
        StorageSide(cache, policy, PrefetchLimits(threshold, resolved.prefetch_limit_tokens))
    return cache


def make_engine(made: Plan, cache: HiCache) -> Engine:
    """Scheduler and engine over `cache`."""
    resolved, args = made.resolved, made.resolved.args
    limits = SchedulerLimits(
        max_running_requests=resolved.max_running_requests,
        max_prefill_tokens=args.max_prefill_tokens or 16384,
        chunked_prefill_tokens=resolved.chunk_tokens if resolved.chunk_tokens > 0 else None,
        context_tokens=args.context_length,
        schedule_conservativeness=resolved.conservativeness,
        key_lag_tokens=int(resolved.bigram_keys),
    )
    return Engine(cache, Scheduler(cache, cache.storage, limits, SCHEDULE.make(args.schedule_policy or "fcfs")))


def make_faulty_store(made: Plan) -> FaultyStore | None:
    """The L3 store, empty, with its faults; None without L3."""
    profile = made.store
    if profile is None:
        return None
    pages = profile.capacity_bytes / made.node_page_bytes
    store = make_store(profile.eviction, pages, profile.high_watermark, profile.low_watermark, profile.lease_s)
    faults = [parse_fault(text, profile, made.config.seed) for text in made.config.faults]
    return FaultyStore(store, faults)


def make_plane(made: Plan, env: Environment, store: FaultyStore | None) -> SimPlane:
    """The simulated machine."""
    resolved, args = made.resolved, made.resolved.args
    tp_size, kv_dtype = resolved.attention_tp_size, args.kv_cache_dtype or "auto"
    shape = geometry(made.model, resolved.page_size, tp_size, kv_dtype)
    layout, backend = args.hicache_mem_layout or "layer_first", args.hicache_io_backend or "kernel"
    copies = CopyModel(layout, backend, shape, made.hardware)
    costs = Roofline(made.model, made.hardware, tp_size, kv_dtype)
    replicated = made.model.attention.replicated
    return SimPlane(env, made.hardware, copies, costs, tp_size, store, made.store, replicated, made.config.seed)


def activator(page_tokens: int) -> Callable[[Request], Active]:
    """Turns a workload's request into the engine's: names every page that it will compute.

    Pages that the workload does not name (answers, unnamed tails) get atoms of their own, negative, so that nobody
    else can hit them.
    """

    def activate(request: Request) -> Active:
        pages = (request.input_tokens + request.output_tokens) // page_tokens
        named = min(request.content_tokens // page_tokens, pages)
        key = request.content.atoms(page_tokens, named)
        if named < pages:
            first = -1 - (request.id << 24)
            key += np.arange(first, first - (pages - named), -1, dtype=np.int64).tobytes()
        return Active(
            request.id,
            key,
            request.input_tokens,
            request.output_tokens,
            request.arrival_s,
            request.extra_key,
            request.priority,
        )

    return activate
