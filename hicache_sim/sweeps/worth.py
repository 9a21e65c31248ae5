"""The flags to set, and what each is worth: what is lost when it alone goes back to its default.

Rules of this file
- Only flags that the profile's SGLang knows, with values it takes, are put on the line; the rest is named beside it.
- What makes no sense alone goes with its flag: without L3 its store and faults, without HiCache all of it.
- The model and how it is spread over GPUs are on the line and have no worth, unless they were varied.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hicache_ref.config.server_args import FLAG_OF, FLAGS, OURS, UPSTREAM, Flag, defaults_for, is_known_to
from hicache_ref.config.tables import EVICTION_ON_COMMAND_LINE

from .ask import Ask

SWITCH = "enable_hierarchical_cache"
_BACKEND = "hicache_storage_backend"
_L3, _HICACHE = "hicache_storage_", "hicache_"
GIVEN = (
    *("model_path", "tp_size", "pp_size", "dp_size", "nnodes", "enable_dp_attention", "attn_dp_size", "dcp_size"),
    *("context_length", "disaggregation_mode"),
)


@dataclass(frozen=True)
class Use:
    """A flag at a value. `default`: what SGLang takes without it; None: it asks the machine, or nothing."""

    flag: Flag
    value: Any
    default: Any

    @property
    def words(self) -> str:
        """As on a command line."""
        if self.flag.kind is bool:
            return self.flag.name
        value = f"{self.value:g}" if self.flag.kind is float else str(self.value)
        return f"{self.flag.name} {shlex.quote(value)}"


def uses(ask: Ask) -> list[Use]:
    """Flags that have to be set for this ask, SGLang's or ours, in the order of the table."""
    flags = {SWITCH: True, **ask.flags}
    if not flags[SWITCH]:
        flags = {name: value for name, value in flags.items() if not name.startswith(_HICACHE)}
    defaults = defaults_for(ask.profile)
    found = [Use(flag, flags[flag.field], defaults.get(flag.field)) for flag in FLAGS if flag.field in flags]
    return [use for use in found if use.value != use.default and not (use.flag.kind is bool and not use.value)]


def sglang_knows(use: Use, profile: str) -> bool:
    """Whether the profile's SGLang takes this flag with this value."""
    offered = _offered(use.flag, profile)
    return use.flag.only != OURS and is_known_to(use.flag, profile) and (not offered or use.value in offered)


def _offered(flag: Flag, profile: str) -> tuple[str, ...]:
    """Values that upstream's command line takes; none: any of the kind."""
    if flag is FLAG_OF["radix_eviction_policy"]:  # the code knows more than its command line offers
        return EVICTION_ON_COMMAND_LINE[UPSTREAM[profile]]
    return flag.choices + flag.later_choices


def why_not(use: Use, profile: str) -> str:
    """Why it is not on the line."""
    if not is_known_to(use.flag, profile):
        return f"{use.words}: SGLang {UPSTREAM[profile]} does not have this flag"
    if use.value in use.flag.choices:
        return f"{use.words}: the command line of SGLang {UPSTREAM[profile]} does not offer this"
    return f"{use.words}: no SGLang has this"


def worth_asking(found: list[Use], varied: Collection[str]) -> Iterator[Use]:
    """Those whose worth is a question."""
    return (use for use in found if use.flag.field in varied or use.flag.field not in GIVEN)


def without(ask: Ask, field: str) -> Ask:
    """The ask with this flag at its default, and what hangs on it gone."""
    gone: tuple[str, ...] = {SWITCH: (_HICACHE,), _BACKEND: (_L3,)}.get(field, ())
    flags = {name: value for name, value in ask.flags.items() if name != field and not any(map(name.startswith, gone))}
    if field == SWITCH:
        flags[SWITCH] = False
    if not gone:
        return replace(ask, flags=flags)
    return replace(ask, flags=flags, store=None, store_numbers={}, faults=())


def beside(ask: Ask) -> dict[str, Any]:
    """What the answer rests on that is no flag of SGLang."""
    plain: dict[str, Any] = {"profile": ask.profile, "hardware": ask.hardware}
    more = {
        "model": ask.flags.get("model_path"),
        "rules": dict(ask.rules),
        "hardware_numbers": dict(ask.hardware_numbers),
        "store": ask.store,
        "store_numbers": dict(ask.store_numbers),
    }
    return plain | {name: value for name, value in more.items() if value}
