"""From a configuration to an engine on a machine: the one place where the parts are put together.

Rules of this file
- Everything a run depends on is in `RunConfig`: what SGLang's flags say, which machine and store, what goes wrong, the
  seed. The same config and requests give the same run.
- Errors are raised here, before anything runs, in one line each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simpy import Environment

from hicache_ref.build import changed_rules
from hicache_ref.config.layouts import geometry
from hicache_ref.config.models import ModelShape, load_model
from hicache_ref.config.records import DeviceFacts, Resolved
from hicache_ref.config.resolve import resolve
from hicache_ref.config.server_args import ConfigError, ServerArgs

from .calibration import Calibration, find_calibration
from .compute import Roofline
from .copies import CopyModel
from .faults import FaultyStore, parse_fault
from .hardware import DEFAULT_STORES, HardwareProfile, StoreProfile, load_profile, load_store
from .plane import NEVER_ASLEEP, SimPlane
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
    calibration: Calibration | None = None
    """Where the machine was measured: what it computes, and how its copies and stores did."""

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
    calibration = find_calibration(config.hardware)
    if calibration is not None:
        args = calibration.fill(args)
    model = calibration.model() if calibration else load_model(args.model_path or DEFAULT_MODEL)
    device = DeviceFacts()
    if not config.untimed:
        gpu = DeviceFacts(int(hardware.hbm_bytes), int(hardware.dram_bytes), is_sm100=hardware.name.startswith("b"))
        device = calibration.device if calibration else gpu
    resolved = resolve(
        args, config.profile, model=model, device=device, rules=changed_rules(config.profile, config.rules)
    )
    store = None
    if resolved.storage is not None:
        store = _store(config, resolved.storage.backend, calibration)
    elif config.store or config.store_numbers or config.faults:
        what = "a store profile, its numbers and faults"
        raise ConfigError(what, "there is no L3 in this configuration", "add --hicache-storage-backend", "replay")
    return Plan(config, resolved, model, hardware, store, calibration)


def _store(config: RunConfig, backend: str, calibration: Calibration | None) -> StoreProfile:
    """The profile that was named, else what was measured here, else the one for this backend."""
    measured = calibration.store(backend, **config.store_numbers) if calibration and config.store is None else None
    if measured is not None:
        return measured
    if config.store is None and backend not in DEFAULT_STORES:
        why, do = "no numbers for this store were found", "say which to use with --store"
        raise ConfigError(f"--hicache-storage-backend {backend}", why, do, "hicache list stores")
    return load_store(config.store or DEFAULT_STORES[backend], **config.store_numbers)


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
    measured = made.calibration
    priced = measured.copies(backend, layout, made.hardware) if measured else None
    copies = CopyModel(layout, backend, shape, made.hardware, priced)
    costs = measured.costs if measured else Roofline(made.model, made.hardware, tp_size, kv_dtype)
    between_s = measured.between_batches_s if measured else 0.0
    wake = measured.wake if measured else NEVER_ASLEEP
    replicated = made.model.attention.replicated
    return SimPlane(
        env, made.hardware, copies, costs, tp_size, store, made.store, replicated, made.config.seed, between_s, wake
    )
