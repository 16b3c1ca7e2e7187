"""What the policy sees of one loss parameter: its statistics, their change, Φ, the time, and the metric's sensitivity.

Everything is normalised, so that a policy does not see a task's scale and can be reused on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec

_AVERAGE_DECAY = 0.9


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """Which features one parameter has, in order; two policies are exchangeable if their layouts are equal.

    Args:
        statistics: S, statistics per parameter.
        history: at how many past steps they are seen.
        sensitivity: whether the metric's sensitivity is seen too.

    Example:
        >>> StateLayout(statistics=2, history=10, sensitivity=True).size
        26
    """

    statistics: int
    history: int = 10
    sensitivity: bool = True

    @property
    def size(self) -> int:
        """F, the number of features."""
        return self.statistics * (self.history + 1) + 2 + 2 * self.sensitivity


@dataclass(frozen=True, kw_only=True)
class Space:
    """Where Φ may go, as tensors on the controller's device [P], and where each group lies in it.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> Space.of(AlignedLoss(3, groups=("weights", "offsets")).spec).groups
        (slice(0, 3, None), slice(3, 6, None))
    """

    low: Tensor
    high: Tensor
    step: Tensor
    groups: tuple[slice, ...]

    @classmethod
    def of(cls, spec: ParameterSpec, device: torch.device | str = "cpu") -> Space:
        """The space of a loss's parameters."""
        low, high, step = (tensor.to(device) for tensor in (spec.low, spec.high, spec.step))
        return cls(low=low, high=high, step=step, groups=tuple(spec.slices.values()))


@dataclass(frozen=True, kw_only=True)
class StateMemory:
    """What must be remembered between steps.

    Args:
        history: normalised statistics of the last steps, newest first [n, P, H, S].
        average: moving average of the raw statistics [n, P, S].
        change: relative change of the newest statistics from that average [n, P, S].
    """

    history: Tensor
    average: Tensor
    change: Tensor


def standardise(values: Tensor, groups: Sequence[slice], average: Tensor) -> Tensor:
    """Statistics standardised over the parameters of a group; a group of one against its own moving average.

    Args:
        values: raw statistics [n, P, S].
        groups: where each group lies in P, one after another.
        average: moving average of the statistics [n, P, S].

    Example:
        >>> values = torch.tensor([[[1.0], [3.0], [6.0]]])
        >>> average = torch.tensor([[[1.0], [1.0], [4.0]]])
        >>> standardise(values, [slice(0, 2), slice(2, 3)], average).flatten()
        tensor([-1.0000,  1.0000,  0.5000])
    """
    parts = []
    for group in groups:
        part = values[:, group]
        if part.shape[1] == 1:
            parts.append(relative_change(part, average[:, group]))
        else:
            centred = part - part.mean(1, keepdim=True)
            parts.append(centred / centred.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6))
    return torch.cat(parts, 1)


def relative_change(values: Tensor, average: Tensor) -> Tensor:
    """(s − s̄) / |s̄|, within ±3."""
    return ((values - average) / average.abs().clamp(min=1e-6)).clamp(-3, 3)


def remember(memory: StateMemory | None, statistics: Tensor, groups: Sequence[slice], history: int) -> StateMemory:
    """Push one step's statistics [n, P, S]; the first step fills the whole history."""
    average = statistics if memory is None else memory.average
    newest = standardise(statistics, groups, average)[:, :, None]
    change = relative_change(statistics, average)
    average = _AVERAGE_DECAY * average + (1 - _AVERAGE_DECAY) * statistics
    if memory is None:
        return StateMemory(history=newest.expand(-1, -1, history, -1).clone(), average=average, change=change)
    past = memory.history[:, :, : history - 1]
    return replace(memory, history=torch.cat([newest, past], 2), average=average, change=change)


def share(sensitivity: Tensor, groups: Sequence[slice]) -> Tensor:
    """Each parameter's share of the gain still to be had in its group, times the group's size, minus one [n, P, 2].

    Zero says "as much as the others"; a metric with nothing to gain, or that cannot tell, gives zeros.

    Example:
        >>> share(torch.tensor([[[3.0, 0.0], [1.0, 0.0]]]), [slice(0, 2)])
        tensor([[[ 0.5000,  0.0000],
                 [-0.5000,  0.0000]]])
    """
    parts = []
    for group in groups:
        gain = sensitivity[:, group].clamp(min=0)
        total = gain.sum(1, keepdim=True)
        parts.append(torch.where(total > 1e-12, gain.shape[1] * gain / total.clamp(min=1e-12) - 1, 0.0))
    return torch.cat(parts, 1)


def features(layout: StateLayout, memory: StateMemory, seen: Observation, phi: Tensor, space: Space) -> Tensor:
    """The state s_t of every parameter of every child [n, P, F].

    In order: normalised statistics of the last steps, newest first; their relative change; Φ on its range as −1 … 1;
    t over the number of steps; the metric's sensitivity.
    """
    n, p = phi.shape
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    parts = [
        memory.history.reshape(n, p, -1),
        memory.change,
        ((phi - middle) / half)[:, :, None],
        torch.full((n, p, 1), seen.progress, device=phi.device),
    ]
    if layout.sensitivity:
        parts.append(share(seen.sensitivity, space.groups))
    return torch.cat(parts, -1)
