"""Which engine trains the children."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from lossalign.children.base import Children, LossFunction, Member, autocast
from lossalign.children.recipe import Recipe
from lossalign.children.sequential import SequentialChildren
from lossalign.children.vmapped import VmapChildren
from lossalign.core import InputError

Engine = Literal["auto", "sequential", "vmap"]

_TINY = 20_000
"""Up to about this many weights, one vmapped call on CPU beats a loop (docs/performance.md)."""


def why_not_vmap(members: Sequence[Member], precision: str, device: torch.device) -> str | None:
    """Why vmap cannot lift the members' model, or None if it can: one forward and backward pass of two children.

    It cannot lift branches on values, recurrent layers, or BatchNorm under autocast.
    """
    pair = [copy.deepcopy(member.model).to(device) for member in (members[0], members[-1])]
    weights, buffers = stack_module_state(pair)
    inputs, _ = members[0].stream().next()

    def total(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = functional_call(pair[0], (weights, buffers), (inputs,))
        return outputs.float().sum()

    try:
        with torch.random.fork_rng(), autocast(device, precision):
            vmap(grad(total), randomness="different")(weights, buffers)
    except Exception as error:  # whatever a user's model raises under vmap
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def choose_engine(
    engine: Engine, members: Sequence[Member], precision: str, device: torch.device
) -> Literal["sequential", "vmap"]:
    """``auto`` is vmap for several tiny networks on CPU that it can lift, else sequential."""
    if engine not in ("auto", "sequential", "vmap"):
        raise InputError(f"engine={engine!r}: choose from auto, sequential, vmap.")
    if engine == "sequential" or not members:
        return "sequential"
    if engine == "vmap":
        reason = why_not_vmap(members, precision, device)
        if reason is not None:
            raise InputError(f"engine='vmap': it cannot lift this model ({reason}); use sequential.")
        return "vmap"
    weights = sum(p.numel() for p in members[0].model.parameters())
    tiny = device.type == "cpu" and len(members) > 1 and weights <= _TINY
    return "vmap" if tiny and why_not_vmap(members, precision, device) is None else "sequential"


def make_children(
    members: Sequence[Member],
    loss: LossFunction,
    recipe: Recipe,
    *,
    engine: Engine = "auto",
    device: torch.device | str = "cpu",
) -> Children:
    """The children of ``members`` on the chosen engine."""
    chosen = choose_engine(engine, members, recipe.precision, torch.device(device))
    kind = VmapChildren if chosen == "vmap" else SequentialChildren
    return kind(members, loss, recipe, device)
