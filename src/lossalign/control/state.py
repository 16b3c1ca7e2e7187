"""The state that the policy observes of one loss parameter: statistics, their change, Φ, time and sensitivity.

All features are normalised, so that they do not depend on the scale of a task and a policy can be reused on another.
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
    """The features of one parameter, in order; policies with equal layouts are interchangeable.

    Args:
        statistics: S, statistics per parameter.
        history: number of past steps kept.
        sensitivity: whether the state holds the metric's sensitivity.
        prior: whether its last feature is a rule's logit, which is added to those of the actions.

    Example:
        >>> StateLayout(statistics=2, history=10, sensitivity=True).size
        26
    """

    statistics: int
    history: int = 10
    sensitivity: bool = True
    prior: bool = False

    @property
    def size(self) -> int:
        """F, the number of features."""
        return self.statistics * (self.history + 1) + 2 + 2 * self.sensitivity + self.prior


@dataclass(frozen=True, kw_only=True)
class Space:
    """The range and β of Φ as tensors on the controller's device [P], and the slice of each group.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> Space.of(AlignedLoss(3, groups=("weights", "offsets")).spec).groups
        (slice(0, 3, None), slice(3, 6, None))
    """

    low: Tensor
    high: Tensor
    beta: Tensor
    groups: tuple[slice, ...]

    @classmethod
    def of(cls, spec: ParameterSpec, device: torch.device | str = "cpu") -> Space:
        """The space of a loss's parameters."""
        low, high, beta = (tensor.to(device) for tensor in (spec.low, spec.high, spec.beta))
        return cls(low=low, high=high, beta=beta, groups=tuple(spec.slices.values()))


@dataclass(frozen=True, kw_only=True)
class StateMemory:
    """Statistics kept between steps.

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
    """Add the statistics of one step [n, P, S]; the first step fills the whole history."""
    average = statistics if memory is None else memory.average
    newest = standardise(statistics, groups, average)[:, :, None]
    change = relative_change(statistics, average)
    average = _AVERAGE_DECAY * average + (1 - _AVERAGE_DECAY) * statistics
    if memory is None:
        return StateMemory(history=newest.expand(-1, -1, history, -1).clone(), average=average, change=change)
    past = memory.history[:, :, : history - 1]
    return replace(memory, history=torch.cat([newest, past], 2), average=average, change=change)


def share(sensitivity: Tensor, groups: Sequence[slice]) -> Tensor:
    """Each parameter's share of the remaining gain in its group, times the group's size, minus one [n, P, 2].

    Zero means as much as the others. All are zero if there is nothing to gain, or the sensitivity is not known.

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


def features(
    layout: StateLayout,
    memory: StateMemory,
    observation: Observation,
    phi: Tensor,
    space: Space,
    prior: Tensor | None = None,
) -> Tensor:
    """The state s_t of every parameter of every child [n, P, F].

    In order: normalised statistics of the last steps, newest first; their relative change; Φ on its range as −1 … 1;
    t over the number of steps; the metric's sensitivity; the logit of a rule [n, P], if the layout has one.
    """
    n, p = phi.shape
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    parts = [
        memory.history.reshape(n, p, -1),
        memory.change,
        ((phi - middle) / half)[:, :, None],
        torch.full((n, p, 1), observation.progress, device=phi.device),
    ]
    if layout.sensitivity:
        parts.append(share(observation.sensitivity, space.groups))
    if layout.prior:
        assert prior is not None
        parts.append(prior[:, :, None])
    return torch.cat(parts, -1)
