"""The arguments while the rules of `resolve` work on them.

Rules of this file
- One mutable record, alive within one call of `resolve`. A rule changes it by `put`, `rewrite` and `warn`, or sets the
  size it is about.
- `facts` is the whole vocabulary of the tables. What can be derived from the arguments is derived at every look, so
  that it never disagrees with a rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hicache_ref.config.records import Change, DeviceFacts, ModelFacts, Resolved, StorageConfig
from hicache_ref.config.server_args import FLAG_OF, FLAGS, ServerArgs, defaults_for
from hicache_ref.config.tables import When
from hicache_ref.control.rules import Rules

T = TypeVar("T")


def have(value: T | None) -> T:
    """A value that an earlier rule has filled in."""
    assert value is not None
    return value


@dataclass
class Case:
    """The arguments while the rules work on them, and what has come of it so far."""

    args: ServerArgs
    profile: str
    rules: Rules
    model: ModelFacts
    device: DeviceFacts
    changes: list[Change] = field(default_factory=list)
    storage: StorageConfig | None = None
    eviction_options: Mapping[str, Any] = field(default_factory=dict)
    l1_pages: int = 0
    l2_pages: int = 0
    max_running_requests: int = 0

    def put(self, **values: Any) -> None:
        """Fill in what the user left open."""
        self.args = replace(self.args, **values)

    def rewrite(self, reason: str, **values: object) -> None:
        """Take something else than the flags say, and tell."""
        for name, after in values.items():
            before = getattr(self.args, name)
            if before != after:
                self.changes.append(Change("rewrite", FLAG_OF[name].name, before, after, reason))
                self.put(**{name: after})

    def warn(self, flag: str, reason: str, before: object = None, after: object = None) -> None:
        self.changes.append(Change("warning", flag, before, after, reason))

    def chose(self, name: str) -> bool:
        """Does this flag differ from what would be taken without it?"""
        return getattr(self.args, name) not in (None, defaults_for(self.profile).get(name, FLAG_OF[name].default))

    def matches(self, when: When) -> bool:
        facts = self.facts()
        return all(facts[name] in allowed for name, allowed in when.items())

    def facts(self) -> dict[str, object]:
        """Everything the tables may ask about, by name."""
        args = self.args
        return {
            **vars(args),
            "is_mla": self.is_mla,
            "is_nsa": self.model.attention.name == "nsa",
            "is_npu": self.device.is_npu,
            "is_sm100": self.device.is_sm100,
            "has_flashinfer": self.device.has_flashinfer,
            "has_storage": args.hicache_storage_backend is not None,
            "is_replicated": (args.dp_size or 1) > 1,
            "is_staged": (args.pp_size or 1) > 1,
            "is_dcp": (args.dcp_size or 1) > 1,
            "is_grouped": self.groups > 1,
            "is_speculative": args.speculative_algorithm is not None,
            "is_draft_line": args.speculative_eagle_topk == 1,
            "is_token_tree": (args.speculative_eagle_topk or 1) > 1,
            "is_paged": (args.page_size or 1) > 1,
        }

    @property
    def is_mla(self) -> bool:
        """A latent cache, sparse attention's too: upstream's question before most of its choices."""
        return self.model.attention.name != "mha"

    @property
    def page_size(self) -> int:
        return have(self.args.page_size)

    @property
    def has_l2(self) -> bool:
        return bool(self.args.enable_hierarchical_cache)

    @property
    def groups(self) -> int:
        """Attention groups: v0.5.7 counts them with --dp-size, 0.5.23 has a flag for them."""
        return max(self.args.attn_dp_size or 1, (self.args.dp_size or 1) if self.args.enable_dp_attention else 1)

    @property
    def attention_tp_size(self) -> int:
        return have(self.args.tp_size) // self.groups

    @property
    def chunk_tokens(self) -> int:
        return have(self.args.chunked_prefill_size) // self.groups

    @property
    def token_bytes(self) -> int:
        """In L2."""
        return self._of_a_stage(self.model.kv_bytes_per_token(self.attention_tp_size, have(self.args.kv_cache_dtype)))

    @property
    def device_token_bytes(self) -> int:
        dtype = have(self.args.kv_cache_dtype)
        return self._of_a_stage(self.model.device_bytes_per_token(self.attention_tp_size, dtype))

    @property
    def weight_bytes(self) -> int:
        return self._of_a_stage(self.model.weight_bytes(have(self.args.tp_size)))

    def _of_a_stage(self, of_all_layers: int) -> int:
        """A stage holds its share of the layers, rounded up: the fullest one bounds them all."""
        return -(-of_all_layers // have(self.args.pp_size))

    @property
    def l1_tokens(self) -> int:
        return self.l1_pages * self.page_size

    @property
    def l2_tokens(self) -> int:
        return self.l2_pages * self.page_size

    @property
    def prefetch_limit_tokens(self) -> int:
        share = self.rules.prefetch_limit_of_l2
        return int(0.8 * (self.l2_tokens - self.l1_tokens)) if share is None else int(share * self.l2_tokens)

    def told(self) -> tuple[Change, ...]:
        """The changes, but for rewrites of a flag that two rules pulled to and fro until it was what it had been."""
        rewritten = {c.flag: c.before for c in reversed(self.changes) if c.kind == "rewrite"}
        back = {f.name for f in FLAGS if f.name in rewritten and rewritten[f.name] == getattr(self.args, f.field)}
        return tuple(c for c in self.changes if c.kind == "warning" or c.flag not in back)

    def result(self) -> Resolved:
        return Resolved(
            args=self.args,
            profile=self.profile,
            rules=self.rules,
            changes=self.told(),
            page_size=self.page_size,
            token_bytes=self.token_bytes,
            l1_pages=self.l1_pages,
            l2_pages=self.l2_pages,
            storage=self.storage,
            prefetch_limit_tokens=self.prefetch_limit_tokens if self.storage else 0,
            attention_tp_size=self.attention_tp_size,
            attention_groups=self.groups,
            chunk_tokens=self.chunk_tokens,
            conservativeness=have(self.args.schedule_conservativeness) * (0.3 if self.groups > 1 else 1.0),
            max_running_requests=self.max_running_requests,
            bigram_keys=self.args.speculative_algorithm in ("EAGLE", "EAGLE3"),
            eviction_options=self.eviction_options,
        )
