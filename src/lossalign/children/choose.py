"""Which engine trains the children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from lossalign.children.base import Children, LossFunction, Member
from lossalign.children.recipe import Recipe
from lossalign.children.sequential import SequentialChildren
from lossalign.children.vmapped import VmapChildren
from lossalign.core import InputError

Engine = Literal["auto", "sequential", "vmap"]

_TINY = 20_000
"""Up to about this many weights, one vmapped call on CPU beats a loop (docs/performance.md)."""


def choose_engine(engine: Engine, members: Sequence[Member], device: torch.device) -> Literal["sequential", "vmap"]:
    """``auto`` is vmap for several tiny networks on CPU, else sequential."""
    if engine not in ("auto", "sequential", "vmap"):
        raise InputError(f"engine={engine!r}: choose from auto, sequential, vmap.")
    if engine != "auto":
        return engine
    weights = sum(p.numel() for p in members[0].model.parameters()) if members else 0
    return "vmap" if device.type == "cpu" and len(members) > 1 and weights <= _TINY else "sequential"


def make_children(
    members: Sequence[Member],
    loss: LossFunction,
    recipe: Recipe,
    *,
    engine: Engine = "auto",
    device: torch.device | str = "cpu",
) -> Children:
    """The children of ``members`` on the chosen engine."""
    chosen = choose_engine(engine, members, torch.device(device))
    kind = VmapChildren if chosen == "vmap" else SequentialChildren
    return kind(members, loss, recipe, device)
