"""A calibration file: a machine that was measured, with the model it computed and the stores it used.

Rules of this file
- The file says all: which model, which numbers, how they came about. What a simulation is asked for beyond it (another
  model, another number of ranks) was not measured, and is refused.
- Single numbers can be overridden as those of any machine; stores that were not measured come from the catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hicache_ref.config.models import ModelShape, load_model
from hicache_ref.config.records import DeviceFacts
from hicache_ref.config.server_args import ConfigError, ServerArgs
from hicache_ref.model.scaling import scale

from .compute import Fitted
from .copies import Direction, Measured
from .hardware import HardwareProfile, ProfileError, StoreProfile, store_of
from .plane import Wake

FORMAT = "hicache calibration 1"


@dataclass(frozen=True)
class Calibration:
    """What `hicache calibrate` wrote."""

    path: Path
    content: Mapping[str, Any]

    @property
    def model_path(self) -> str:
        return str(self.content["model"]["model_path"])

    def model(self) -> ModelShape:
        """The shape that was measured, shrunk as it was then."""
        shape, factor = load_model(self.model_path), self.content["model"]["model_scale"]
        if factor is None:
            return shape
        return (scale(shape, parameters=int(factor)) if factor > 1 else scale(shape, factor)).shape

    def fill(self, args: ServerArgs) -> ServerArgs:
        """Flags as the measured run has them where they were not given. ConfigError: another model, or more ranks."""
        made = self.content["model"]
        if args.model_path is not None and args.model_path != self.model_path:
            self._refuse(f"--model-path {args.model_path}", f"the model that was measured is {self.model_path}")
        if (args.tp_size or 1) != made["tp_size"]:
            self._refuse(f"--tp-size {args.tp_size}", f"it was measured with {made['tp_size']}")
        if args.kv_cache_dtype not in (None, made["kv_cache_dtype"]):
            self._refuse(f"--kv-cache-dtype {args.kv_cache_dtype}", f"it was measured with {made['kv_cache_dtype']}")
        l1_bytes = self.content["device"]["l1_bytes"]
        tokens = args.max_total_tokens
        if tokens is None and l1_bytes is not None:
            tokens = l1_bytes // made["kv_bytes_per_token"]
        return replace(args, model_path=self.model_path, kv_cache_dtype=made["kv_cache_dtype"], max_total_tokens=tokens)

    def check_run(self, model_scale: float | None, dtype: str | None, device: str) -> None:
        """ConfigError: a run with these would not be of the model and the device that were measured."""
        made = self.content["model"]
        if model_scale is not None and model_scale != made["model_scale"]:
            self._refuse(f"--model-scale {model_scale:g}", f"it was measured with {made['model_scale'] or 'none'}")
        if dtype is not None and dtype != made["dtype"]:
            self._refuse(f"--dtype {dtype}", f"it was measured with {made['dtype']}")
        if device.partition(":")[0] != made["device"]:
            self._refuse(f"--device {device}", f"it was measured on {made['device']}")

    def _refuse(self, flag: str, why: str) -> None:
        raise ConfigError(flag, f"{self.path}: {why}", "calibrate with this flag", "replay")

    @property
    def device(self) -> DeviceFacts:
        """What the rules are told."""
        facts = dict(self.content["device"])
        facts.pop("l1_bytes")
        return DeviceFacts(**facts)

    @property
    def costs(self) -> Fitted:
        return Fitted.from_calibration(self.content["compute"])

    @property
    def between_batches_s(self) -> float:
        return float(self.content["compute"]["batch_overhead_s"]["value"])

    @property
    def arrival_s(self) -> float:
        return float(self.content["compute"]["arrival_s"]["value"])

    @property
    def wake(self) -> Wake:
        found = self.content["compute"]["wake"]
        start_s = float(self.content["compute"]["start_s"]["value"])
        return Wake(start_s, float(found["most_s"]), float(found["half_s"]))

    def copies(self, io_backend: str, layout: str, hardware: HardwareProfile) -> Measured | None:
        """Prices of one combination; None: it was not measured."""
        prices = self.content["copies"].get(f"{io_backend}/{layout}")
        if prices is None:
            return None
        share = float(self.content["compute"]["copy_share"]["value"])
        load = _direction(prices["load"], hardware.h2d_bytes_per_s)
        return Measured(load, _direction(prices["backup"], hardware.d2h_bytes_per_s), share)

    def store(self, backend: str, **overrides: Any) -> StoreProfile | None:
        """The profile of a storage backend; None: it was not measured."""
        given = self.content["stores"].get(backend)
        if given is None:
            return None
        return store_of(given, self.path, f"{backend} of {self.path.stem}", **overrides)


def _direction(price: Mapping[str, float], link_bytes_per_s: float) -> Direction:
    """A byte's price as a share of the link."""
    byte_s = price["byte_s"]
    efficiency = 1 / (byte_s * link_bytes_per_s) if byte_s > 0 else 1.0
    return Direction(price["launch_s"], price["segment_s"], efficiency)


def find_calibration(hardware: str) -> Calibration | None:
    """The calibration that --hardware names; None: a profile, by name or in a file. ProfileError: damaged."""
    path = Path(hardware)
    if path.suffix != ".json" or not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # `load_profile` says what is wrong with it
    if not isinstance(content, dict) or "format" not in content:
        return None
    missing = [part for part in PARTS if part not in content]
    if content["format"] != FORMAT or missing:
        lacks = f"it lacks {', '.join(missing)}" if missing else f"its format is {content['format']!r}"
        raise ProfileError(f"{path}: not a calibration this version can read, {lacks}; make it again")
    return Calibration(path, content)


PARTS = ("about", "model", "device", "hardware", "copies", "compute", "stores")
