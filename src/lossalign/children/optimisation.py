"""How children are trained: momentum SGD, a learning-rate schedule, and an average of the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.core.values import Checked

Tensors = list[Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Optimisation(Checked):
    """How children are trained, the same for every method."""

    iterations: int
    """Optimiser iterations of the whole run."""
    learning_rate: float = 0.1
    """Initial learning rate."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Nesterov's momentum."""
    weight_decay: float = 5e-4
    """Weight decay, on all weights."""
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    """``cosine`` to zero; ``steps``: a tenth at each milestone; ``constant``."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Where ``steps`` drop, as fractions of the run."""
    average_decay: float = 0.995
    """Decay of the exponential moving average of the weights."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """``bfloat16``: forward passes under autocast."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise InputError(f"iterations={self.iterations}: train for at least 1.")
        if self.learning_rate <= 0:
            raise InputError(f"learning_rate={self.learning_rate}: it must be positive.")
        if not 0 <= self.average_decay < 1:
            raise InputError(f"average_decay={self.average_decay}: a decay lies in [0, 1).")


def learning_rate(optimisation: Optimisation, iteration: int) -> float:
    """The learning rate of iteration 0, 1, …

    Example:
        >>> optimisation = Optimisation(iterations=100, learning_rate=0.1)
        >>> [round(learning_rate(optimisation, i), 4) for i in (0, 50, 100)]
        [0.1, 0.05, 0.0]
    """
    progress = iteration / optimisation.iterations
    if optimisation.schedule == "cosine":
        return optimisation.learning_rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    if optimisation.schedule == "steps":
        return float(optimisation.learning_rate * 0.1 ** sum(progress >= at for at in optimisation.milestones))
    return optimisation.learning_rate


def sgd_(
    weights: list[Tensor], grads: Tensors, momenta: list[Tensor], optimisation: Optimisation, rate: float | Tensor
) -> None:
    """One iteration of SGD in place: v ← μv + g + λw, w ← w − η v (or w − η (g + λw + μv) with Nesterov).

    η may be a number on the device, so that a captured iteration can use another value.
    """
    with torch.no_grad():
        grads = torch._foreach_add(grads, weights, alpha=optimisation.weight_decay)
        torch._foreach_mul_(momenta, optimisation.momentum)
        torch._foreach_add_(momenta, grads)
        update: Tensors = momenta
        if optimisation.nesterov:
            update = torch._foreach_add(grads, momenta, alpha=optimisation.momentum)
        if isinstance(rate, Tensor):
            torch._foreach_sub_(weights, torch._foreach_mul(update, rate))
        else:
            torch._foreach_add_(weights, update, alpha=-rate)


def average_decay(decay: float, iteration: int) -> float:
    """The decay at an iteration: smaller at first, so that the random initial weights are soon forgotten.

    Example:
        >>> average_decay(0.995, 0), average_decay(0.995, 10_000)
        (0.1, 0.995)
    """
    return min(decay, (1 + iteration) / (10 + iteration))


def average_(averaged: dict[str, Tensor], current: dict[str, Tensor], decay: float | Tensor) -> None:
    """Exponential moving average in place; whole numbers (such as BatchNorm's counter) are copied."""
    with torch.no_grad():
        floats = [name for name, tensor in current.items() if tensor.is_floating_point()]
        mine, theirs = [averaged[n] for n in floats], [current[n].detach() for n in floats]
        if isinstance(decay, Tensor):
            change = torch._foreach_sub(theirs, mine)
            torch._foreach_mul_(change, 1 - decay)
            torch._foreach_add_(mine, change)
        else:
            torch._foreach_lerp_(mine, theirs, 1 - decay)
        for name in current.keys() - set(floats):
            averaged[name].copy_(current[name])
