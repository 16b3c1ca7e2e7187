"""Choice of the engine that trains the children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lossalign.children.base import Children, IsolatedRng, Losses, Member, autocast, blocks
from lossalign.children.compiled import CompiledChildren
from lossalign.children.fused import FusedChildren, FusedLift, why_not_fused
from lossalign.children.optimisation import Optimisation
from lossalign.children.sequential import SequentialChildren
from lossalign.children.vmapped import VmapChildren, VmapLift
from lossalign.core import InputError

Chosen = Literal["sequential", "vmap", "fused"]
Engine = Literal["auto", "sequential", "vmap", "fused"]
Compile = Literal["auto", "on", "whole", "off"]

TINY = 20_000
"""On a CPU, computing all children at once is faster up to about this many weights (docs/performance.md)."""
SMALL = 100_000
"""The same limit for networks with convolutions, on batches of at most ``SMALL_BATCH`` numbers."""
SMALL_BATCH = 4096
"""Numbers in a batch up to which vmap is faster for a small network with convolutions on a CPU."""
SEVERAL = 8
"""Children from which vmap is faster for a small network with convolutions on a CPU."""
WORTH_COMPILING = 500
"""Iterations of a run from which compiling on a GPU saves time."""


def why_not_vmap(members: Sequence[Member], precision: str, device: torch.device) -> str | None:
    """Why vmap cannot lift the members' model, or None if it can: one forward and backward pass of two children.

    It cannot lift branches on values, or recurrent layers.
    """
    inputs, _ = members[0].stream().next()

    def passes() -> Tensor:
        lift = VmapLift([members[0], members[-1]], device)
        weights = [lift.state[name].requires_grad_() for name in lift.trained]
        with autocast(device, precision):
            outputs = lift.train(lift.state, torch.stack([inputs, inputs]))
        return torch.autograd.grad(outputs.float().sum(), weights, materialize_grads=True)[0]

    try:
        IsolatedRng(0, device).run(passes)
    except Exception as error:  # anything a user's model raises under vmap
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def _why_not(engine: Chosen, members: Sequence[Member], precision: str, device: torch.device) -> str | None:
    if engine == "fused":
        return why_not_fused([members[0].model, members[-1].model], members[0].stream().next()[0])
    return why_not_vmap(members, precision, device) if engine == "vmap" else None


def candidates(members: Sequence[Member], device: torch.device) -> tuple[Chosen, ...]:
    """Engines worth trying, the fastest first; ``sequential`` always works."""
    if device.type == "cuda":
        return ("fused", "vmap", "sequential")
    weights = sum(p.numel() for p in members[0].model.parameters())
    if len(members) > 1 and weights <= TINY:
        return ("fused", "vmap", "sequential")
    convolves = any(isinstance(module, nn.Conv2d) for module in members[0].model.modules())
    if len(members) >= SEVERAL and convolves and weights <= SMALL:
        inputs, _ = members[0].stream().next()
        return ("vmap", "sequential") if inputs.numel() <= SMALL_BATCH else ("sequential",)
    return ("sequential",)


def choose_engine(
    engine: Engine, members: Sequence[Member], precision: str, device: torch.device, *, vectorised: bool = True
) -> tuple[Chosen, str]:
    """The engine, and why faster ones are not used (empty if this is the fastest).

    ``auto`` is the fastest that can compute the model: fused, else vmap, else sequential on a GPU; on a CPU the first
    two only for small networks. A loss that is not ``vectorised``, which vmap cannot lift over children, is
    always computed by sequential.
    """
    if engine not in get_args(Engine):
        raise InputError(f"engine={engine!r}: choose from {', '.join(get_args(Engine))}.")
    if engine == "sequential" or not members:
        return "sequential", ""
    if not vectorised:
        return "sequential", _why_one_by_one(engine, members, device)
    if engine != "auto":
        reason = _why_not(engine, members, precision, device)
        if reason is not None:
            raise InputError(f"engine={engine!r}: it cannot compute this model ({reason}); use auto.")
        return engine, ""
    reasons: list[str] = []
    for candidate in candidates(members, device):
        reason = _why_not(candidate, members, precision, device)
        if reason is None:
            return candidate, "; ".join(reasons)
        reasons.append(f"not {candidate}: {reason}")
    raise AssertionError("sequential always works")


def _why_one_by_one(engine: Engine, members: Sequence[Member], device: torch.device) -> str:
    """Which engine would be faster if the loss were vectorised; only ``auto`` is accepted."""
    reason = "the loss is not vectorised, so children train one after another"
    if engine != "auto":
        raise InputError(f"engine={engine!r}: it cannot compute this loss ({reason}); use auto.")
    fastest = candidates(members, device)[0]
    return "" if fastest == "sequential" else f"not {fastest}: {reason}"


def make_children(
    members: Sequence[Member],
    losses: Losses,
    optimisation: Optimisation,
    *,
    engine: Engine = "auto",
    compile: Compile = "auto",
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = lambda sentence: None,
) -> Children:
    """The children of ``members`` on the chosen engine; their ``engine`` describes it.

    Args:
        members: the children.
        losses: the loss of one child, for all of them or for each; if the attribute ``vectorised`` of one is False,
            engines may not lift it over children.
        optimisation: the same for all.
        engine: see :func:`choose_engine`.
        compile: whether an iteration is compiled; ``auto``: on a GPU, in runs of 500 iterations or more; ``whole``: as
            one graph, not by the network's repeated blocks.
        device: the device to train on.
        say: called with a progress message before slow work.
    """
    device = torch.device(device)
    if compile not in get_args(Compile):
        raise InputError(f"compile={compile!r}: choose from {', '.join(get_args(Compile))}.")
    vectorised = all(getattr(block.loss, "vectorised", True) for block in blocks(losses, len(members)))
    chosen, reasons = choose_engine(engine, members, optimisation.precision, device, vectorised=vectorised)
    compiled = chosen != "sequential" and (
        compile in ("on", "whole")
        or (compile == "auto" and device.type == "cuda" and optimisation.iterations >= WORTH_COMPILING)
    )
    kinds: dict[Chosen, Callable[..., Children]] = {
        "sequential": SequentialChildren,
        "vmap": VmapChildren,
        "fused": FusedChildren,
    }
    if compiled:
        lift = FusedLift if chosen == "fused" else VmapLift
        children: Children = CompiledChildren(
            members, losses, optimisation, device, lift=lift, whole=compile == "whole", say=say
        )
    else:
        children = kinds[chosen](members, losses, optimisation, device)
    children.engine = f"{chosen}{', compiled' if compiled else ''}, {optimisation.precision}"
    children.engine += f" ({reasons})" if reasons else ""
    return children
