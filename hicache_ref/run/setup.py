"""From a configuration to a real machine: pools, copies, store, model and plane.

Rules of this file
- Everything a run depends on is in `RealConfig`: what SGLang's flags say, which device, how far the model is shrunk.
- Errors are raised here, before anything runs, in one line each. What was allocated when one is raised is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ..build import changed_rules
from ..config.layouts import KvGeometry, find_layout
from ..config.models import ModelError, load_model
from ..config.records import DeviceFacts, Resolved
from ..config.resolve import resolve
from ..config.server_args import ConfigError, ServerArgs
from ..config.sizing import HOST_RESERVE_BYTES
from ..control.types import Op
from ..data.compute import BatchRows, ModelComputer
from ..data.copy import Copier, make_copier
from ..data.formats import KvCodec, codec_for
from ..data.memory import available_bytes
from ..data.plane import RealPlane
from ..data.pools import DevicePool, HostPool
from ..data.storage.client import StorageClient, StorageIdentity
from ..data.storage.registry import make_client
from ..data.workers import StorageWorkers
from ..model.attention.choose import Kernels, choose_attention
from ..model.batching import Batching, Tiles, Whole
from ..model.decoder import Model, alone, build
from ..model.runner import Runner
from ..model.scaling import scale
from ..model.spec import ModelSpec, spec_from_folder, spec_of
from ..model.weights import AllReduce, Folder, Part, Seeded
from ..ranks.seats import ALONE, Seat

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_PARAMETERS = 1_000_000
"""What a model without --model-scale is shrunk to on a CPU."""
CPU_L1_BYTES = 1 << 30
"""L1 on a CPU, where nothing says how much of the memory it may take."""
TILE_TOKENS = 16
FRESH = "fresh"
"""The tag of pages that nobody else shall find, or lose."""


@dataclass(frozen=True)
class RealConfig:
    """What a run is a function of, besides its requests, the machine, and chance in time."""

    args: ServerArgs = field(default_factory=ServerArgs)
    profile: str = "v0.5.7"
    rules: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    model_scale: float | None = None
    """Every width times this, or, above 1, so many parameters at most. None: whole on a GPU, a million on a CPU."""
    dtype: str | None = None
    """Of the computation: float32 on a CPU, the model's own on a GPU."""
    exact: bool = False
    """Results do not depend, bit by bit, on what was cached, chunked or batched (slower)."""
    poison: bool = False
    """Free pages are NaN, so that reading one before it has arrived shows."""
    device_memory_bytes: int = CPU_L1_BYTES
    """L1 on a CPU without --max-total-tokens."""
    host_reserve_bytes: int = HOST_RESERVE_BYTES
    store_timeout_s: float = 30.0
    """The longest a call to the store may take."""
    fresh_store: bool = False
    """Pages are kept in a part of the store of their own, empty at the start and at the end."""
    threads: int | None = None
    """That compute on a CPU; None: torch's own choice."""
    seed: int = 0
    """Of the weights, where they are not read from a folder."""


@dataclass(frozen=True)
class RealPlan:
    """A configuration resolved: what will run, and what was changed to make it run."""

    config: RealConfig
    resolved: Resolved
    spec: ModelSpec

    @cached_property
    def geometry(self) -> KvGeometry:
        args = self.resolved.args
        kv_dtype = args.kv_cache_dtype or "auto"
        return self.spec.geometry(self.resolved.page_size, self.resolved.attention_tp_size, kv_dtype)

    @property
    def page_tokens(self) -> int:
        return self.resolved.page_size

    @property
    def codec(self) -> KvCodec:
        return codec_for(self.spec.shape, self.resolved.args.kv_cache_dtype or "auto")

    @cached_property
    def kernels(self) -> Kernels:
        """Attention kernels; exact results are torch's own."""
        return _EXACT if self.config.exact else choose_attention(self.resolved, self.device)

    @property
    def device(self) -> torch.device:
        return torch.device(self.config.device)

    @property
    def dtype(self) -> torch.dtype:
        name = self.config.dtype or ("float32" if self.device.type == "cpu" else self.spec.shape.kv_dtype)
        return _DTYPES[name]

    @property
    def stored_page_bytes(self) -> int:
        """A page in the store: of all ranks, or once where they hold the same."""
        ranks = 1 if self.spec.shape.attention.replicated else self.resolved.attention_tp_size
        return self.geometry.page_bytes * ranks


_EXACT = Kernels("torch_native", "torch_native")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def plan(config: RealConfig) -> RealPlan:
    """Resolve flags, model and machine. ValueError (ConfigError, ModelError): one line."""
    _check(config)
    spec = _spec(config)
    args = config.args
    if args.enable_hierarchical_cache is None:
        args = replace(args, enable_hierarchical_cache=True)
    facts, args = device_facts(config, spec, args)
    resolved = resolve(
        args, config.profile, model=spec.shape, device=facts, rules=changed_rules(config.profile, config.rules)
    )
    _check_parallelism(resolved)
    return RealPlan(config, resolved, spec)


def _check_parallelism(resolved: Resolved) -> None:
    """One scheduler over tensor parallel ranks."""
    groups, ranks, stages = resolved.attention_groups, resolved.attention_tp_size, resolved.args.pp_size or 1
    if groups > 1:
        raise ConfigError(
            f"DP attention in {groups} groups",
            f"each is a scheduler of its own, with its own cache on {ranks} of the ranks, and a run serves one",
            f"give one group its share of the requests: --tp-size {ranks} without DP attention",
            "run",
        )
    if stages > 1:
        raise ConfigError(f"--pp-size {stages}", "a run computes all layers on every rank", "leave it out", "run")


def _check(config: RealConfig) -> None:
    kinds = ("cpu", "cuda")
    kind = config.device.partition(":")[0]
    if kind not in kinds:
        raise ConfigError(f"--device {config.device}: known are {', '.join(kinds)}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {config.device}", "torch sees no CUDA device here", "take --device cpu", "run")
    if config.dtype is not None and config.dtype not in _DTYPES:
        raise ConfigError(f"--dtype {config.dtype}: known are {', '.join(_DTYPES)}")


def _weights(config: RealConfig) -> Path | None:
    """The folder that weights are read from, if there are any and they are used as they are."""
    path = Path(config.args.model_path or DEFAULT_MODEL)
    return path if path.is_dir() and config.model_scale is None and any(path.glob("*.safetensors")) else None


def _spec(config: RealConfig) -> ModelSpec:
    name = config.args.model_path or DEFAULT_MODEL
    spec = spec_from_folder(name) if Path(name).is_dir() else spec_of(load_model(name))
    factor = config.model_scale
    if _weights(config) is not None:
        return spec
    if factor is None:
        return scale(spec, parameters=DEFAULT_PARAMETERS) if torch.device(config.device).type == "cpu" else spec
    if factor <= 0:
        raise ModelError(f"--model-scale {factor:g}: a share of every width (0.1), or a number of parameters (5e6)")
    return scale(spec, parameters=int(factor)) if factor > 1 else scale(spec, factor)


def device_facts(config: RealConfig, spec: ModelSpec, args: ServerArgs) -> tuple[DeviceFacts, ServerArgs]:
    """What the rules may know of this machine. A CPU has no memory of its own: L1 is what it is told to be."""
    host = available_bytes()
    if torch.device(config.device).type == "cuda":
        capability = torch.cuda.get_device_capability(config.device)
        total = torch.cuda.get_device_properties(config.device).total_memory
        return DeviceFacts(total, host, config.host_reserve_bytes, is_sm100=capability[0] == 10), args
    if args.max_total_tokens is None:
        token_bytes = spec.shape.device_bytes_per_token(args.tp_size or 1, args.kv_cache_dtype or "auto")
        args = replace(args, max_total_tokens=config.device_memory_bytes // token_bytes)
    return DeviceFacts(None, host, config.host_reserve_bytes, has_flashinfer=False), args


# --- the machine ----------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """Everything a run holds. Use as a context: it is let go at the end."""

    plan: RealPlan
    runner: Runner
    host: HostPool | None
    client: StorageClient | None
    plane: RealPlane

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.plane.close()
        if self.client is not None:
            self.client.close()


def make_machine(
    made: RealPlan,
    rows_of: Callable[[Op], BatchRows],
    most_slices: int = 0,
    clock: Callable[[], float] | None = None,
    client: StorageClient | None = None,
    seat: Seat = ALONE,
) -> Machine:
    """Allocate pools, build the model, start the streams. `client`: a store of one's own, else what the flags name.
    `seat`: which rank's machine this is."""
    if seat.device is not None:
        made = replace(made, config=replace(made.config, device=seat.device))
    if made.config.threads is not None:
        torch.set_num_threads(made.config.threads)
    with ExitStack() as undo:
        if client is None:
            client = store_client(made, seat.rank)
        if client is not None:  # first of all: a store that cannot be had costs no memory
            undo.callback(client.close)
        pool, host, copier = _pools(made)
        runner = make_runner(made, pool, make_model(made, seat.rank, seat.all_reduce))
        storage = None
        if client is not None and host is not None:
            storage = partial(StorageWorkers, client, host, call_timeout_s=made.config.store_timeout_s)
        more: dict[str, Any] = {"poison": made.config.poison, "most_slices": most_slices, "stops": seat.stops}
        if clock is not None:
            more["clock"] = clock
        plane = RealPlane(pool, ModelComputer(runner, rows_of), host, copier, storage, seat.size, **more)
        undo.pop_all()
    return Machine(made, runner, host, client, plane)


def store_client(made: RealPlan, rank: int) -> StorageClient | None:
    """The store that the flags name, if there is one."""
    storage = made.resolved.storage
    if storage is None or not made.resolved.l2_pages:
        return None
    settings = dict(storage.rest)
    if made.config.fresh_store:
        settings["extra_backend_tag"] = "-".join([*filter(None, [settings.get("extra_backend_tag")]), FRESH])
    return make_client(storage.backend, identity(made, rank), settings)


def _pools(made: RealPlan) -> tuple[DevicePool, HostPool | None, Copier | None]:
    """L1, and L2 with the copies between them."""
    resolved, args, dtype = made.resolved, made.resolved.args, made.codec.store_dtype
    pool = DevicePool(made.geometry, resolved.l1_pages, dtype, made.device)
    if not resolved.l2_pages:
        return pool, None, None
    layout = find_layout(args.hicache_mem_layout or "layer_first")
    host = HostPool(layout, made.geometry, resolved.l2_pages, dtype)
    return pool, host, make_copier(args.hicache_io_backend or "kernel", pool, host)


def make_model(made: RealPlan, rank: int = 0, all_reduce: AllReduce = alone) -> Model:
    """One rank's weights: from a folder, or of a seed."""
    folder, layers = _weights(made.config), made.spec.shape.layers
    source = Folder(folder, layers) if folder is not None else Seeded(made.config.seed, depth=(2 * layers) ** 0.5)
    part = Part(rank, made.resolved.attention_tp_size)
    return build(made.spec, source, part, all_reduce, made.dtype, made.device)


def make_runner(made: RealPlan, pool: DevicePool, model: Model) -> Runner:
    """`model` over `pool`, by the attention kernels that run here."""
    way: Batching = Tiles(TILE_TOKENS) if made.config.exact else Whole()
    kernels = made.kernels
    return Runner(model, pool, made.codec, kernels.prefill, way, decode_attention=kernels.decode)


def identity(made: RealPlan, rank: int = 0) -> StorageIdentity:
    """Whose pages these are in the store: those of this very model, shrunk as it is."""
    name = made.resolved.args.model_path or DEFAULT_MODEL
    if _weights(made.config) is None:
        # Other weights, other KV: nothing that was stored with them may be found.
        name = f"{name}-{made.spec.shape.parameters}-seed{made.config.seed}"
    size, replicated = made.resolved.attention_tp_size, made.spec.shape.attention.replicated
    layout = made.resolved.args.hicache_mem_layout or "layer_first"
    return StorageIdentity(name, rank, size, replicated=replicated, layout=layout, geometry=made.geometry)
