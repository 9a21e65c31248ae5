"""Keys of stores that upstream does not have, where nobody else has to find a page.

Rules of this file
- An identity is a prefix, so that its pages lie together and can be cleared together.
- No identity's prefix begins another's: each part is quoted, and says whether there are ranks.
"""

from __future__ import annotations

from urllib.parse import quote

from .client import StorageIdentity


def prefix(identity: StorageIdentity) -> str:
    """`tag:model:rank.ranks:stage.stages:`, `all` for the ranks of replicas. Free of glob characters and spaces."""
    ranks = "all" if identity.replicated else f"{identity.tp_rank}.{identity.tp_size}"
    stage = f"{identity.pp_rank}.{identity.pp_size}"
    return ":".join((quote(identity.tag), quote(identity.model_name), ranks, stage, ""))
