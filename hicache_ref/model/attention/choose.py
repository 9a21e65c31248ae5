"""From what the configuration decided to what can run here.

Rules of this file
- `config.resolve` applies SGLang's rules (article 5.6); here they meet a machine. What cannot run is replaced by the
  first that can, and a note says so: results are the same, speed is not.
- What a backend needs is a fact about it, in one table.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch

from ...config.records import Resolved
from . import ATTENTION


class Needs(NamedTuple):
    """What a backend runs on: a GPU of at least this compute capability (none: any device), one of these packages."""

    capability: tuple[int, int] | None = None
    packages: tuple[str, ...] = ()
    newest: tuple[int, int] = (99, 0)


NEEDS: dict[str, Needs] = {
    "fa3": Needs((9, 0), ("flash_attn_interface", "sgl_kernel"), newest=(9, 9)),
    "flashinfer": Needs((7, 5), ("flashinfer",)),
    "triton": Needs((7, 0), ("triton",)),
    "torch_native": Needs(),
}
"""In the order they are preferred, as SGLang prefers them on Hopper."""


class Kernels(NamedTuple):
    """Backends of prefill and of decoding, and what had to be changed."""

    prefill: str
    decode: str
    notes: tuple[str, ...] = ()


def choose_attention(resolved: Resolved, device: torch.device | str) -> Kernels:
    """The backends for `resolved` on `device`."""
    args, device = resolved.args, torch.device(device)
    able = [name for name in NEEDS if lack(name, device) is None]
    chosen, notes = [], []
    for phase in ("prefill", "decode"):
        wanted = getattr(args, f"{phase}_attention_backend") or args.attention_backend
        runs = wanted if wanted in able else able[0]
        if wanted not in (None, runs):
            notes.append(f"{phase} attention {wanted} {lack(wanted, device)}: {runs} computes the same here")
        chosen.append(runs)
    return Kernels(chosen[0], chosen[1], tuple(notes))


def lack(name: str, device: torch.device) -> str | None:
    """Why a backend cannot run on `device`; None: it can."""
    if name not in ATTENTION or name not in NEEDS:
        return "is not among ours"
    needs = NEEDS[name]
    if needs.packages and not any(find_spec(package) for package in needs.packages):
        return f"needs the package {' or '.join(needs.packages)}"
    if needs.capability is None:
        return None
    if device.type != "cuda":
        return "needs a GPU"
    capability = torch.cuda.get_device_capability(device)
    return None if needs.capability <= capability <= needs.newest else f"is not for compute capability {capability}"
