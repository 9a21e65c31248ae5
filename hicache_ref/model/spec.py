"""What a decoder needs to know beyond its shape: how positions are encoded, how tokens are routed, what norms add.

Rules of this file
- The shape is `config.models.ModelShape`, which pools and simulator share; a spec adds only what no byte depends on.
- A family is one entry of `FAMILIES`, by the `model_type` of its config.json. What is not there is refused by name:
  a model that runs with the wrong formula would look right.
- A spec from the catalogue takes the family's own values, one from a folder what its config.json says.

Sources: the config.json of each family and the formulas of `transformers`' modelling files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.layouts import KvGeometry, geometry
from ..config.models import ModelError, ModelShape, from_config_json


@dataclass(frozen=True)
class Positions:
    """Rotary position encoding."""

    theta: float = 10000.0
    interleaved: bool = False
    """Pairs are neighbours (DeepSeek), else the halves of a head (Llama)."""
    share: float = 1.0
    """Of a head's elements that turn (GLM-4.5: half of them)."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """`rope_scaling` of a config.json; empty: none."""


@dataclass(frozen=True)
class Routing:
    """How a token chooses its experts."""

    score: str = "softmax"
    """`softmax` or `sigmoid`."""
    normalise: bool = True
    """The chosen weights add up to one."""
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    """Experts are chosen from the best `top_groups` of `groups`."""
    group_best: int = 1
    """A group's score is the sum of its best so many experts."""


@dataclass(frozen=True)
class Family:
    """Defaults of a `model_type`; a config.json overrides them."""

    positions: Positions = Positions()
    routing: Routing = Routing()
    eps: float = 1e-6
    output_bias: bool = False
    """`o_proj` has a bias where q, k and v have one."""


_DEEPSEEK = Family(Positions(interleaved=True), Routing("sigmoid", True, 2.5, 8, 4, 2))

FAMILIES: dict[str, Family] = {
    "llama": Family(Positions(500000.0), eps=1e-5, output_bias=True),
    "qwen2": Family(Positions(1000000.0)),
    "qwen3": Family(Positions(1000000.0)),
    "qwen3_moe": Family(Positions(1000000.0)),
    "glm4_moe": Family(Positions(1000000.0, share=0.5), Routing("sigmoid", group_best=2), eps=1e-5),
    "deepseek_v2": Family(Positions(interleaved=True), Routing("softmax", False, 1.0)),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "kimi_k2": Family(Positions(50000.0, interleaved=True), Routing("sigmoid", True, 2.827, group_best=2)),
}


@dataclass(frozen=True)
class ModelSpec:
    """A decoder to build."""

    shape: ModelShape
    positions: Positions = Positions()
    routing: Routing = Routing()
    eps: float = 1e-6
    output_bias: bool = False

    def geometry(self, page_size: int, tp_size: int = 1, kv_cache_dtype: str = "auto") -> KvGeometry:
        """What one of `tp_size` ranks keeps: the geometry of its pools."""
        return geometry(self.shape, page_size, tp_size, kv_cache_dtype)


def spec_of(shape: ModelShape) -> ModelSpec:
    """A spec with its family's own values. ModelError for a family whose formulas are not here."""
    family = _family(shape.family)
    return ModelSpec(shape, family.positions, family.routing, family.eps, family.output_bias and _biased(shape))


def spec_from_folder(folder: str | Path) -> ModelSpec:
    """A spec as a Hugging Face folder's config.json describes it."""
    shape = from_config_json(folder)
    family = _family(shape.family)
    path = Path(folder)
    config = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    return ModelSpec(
        shape,
        _positions(config, family.positions),
        _routing(config, family.routing),
        float(config.get("rms_norm_eps", family.eps)),
        family.output_bias and _biased(shape),
    )


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ModelError(f"no decoder for model type {name!r}; known: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _biased(shape: ModelShape) -> bool:
    return bool(getattr(shape.attention, "qkv_bias", False))


def _positions(config: Mapping[str, Any], family: Positions) -> Positions:
    scaling = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    theta = config.get("rope_theta", scaling.get("rope_theta", family.theta))
    share = config.get("partial_rotary_factor", family.share)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    scaling.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return Positions(float(theta), family.interleaved, float(share), {} if kind == "default" else scaling)


def _routing(config: Mapping[str, Any], family: Routing) -> Routing:
    """DeepSeek's keys; families without them keep their own values."""
    grouped = config.get("topk_method") not in (None, "greedy")
    groups = int(config.get("n_group") or family.groups) if grouped or "topk_method" not in config else 1
    return Routing(
        score=str(config.get("scoring_func", family.score)),
        normalise=bool(config.get("norm_topk_prob", family.normalise)),
        scale=float(config.get("routed_scaling_factor", family.scale)),
        groups=groups,
        top_groups=int(config.get("topk_group") or family.top_groups) if groups > 1 else 1,
        group_best=family.group_best,
    )
