"""Rewards (Eq. 4 and 5), from the validation metric measured within a step.

Metrics are errors here: lower is better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lossalign.core import InputError

Evaluation = Literal["literal", "minibatch", "window"]


def evaluation_points(evaluation: Evaluation, every: int, evaluations: int) -> list[int]:
    """The iterations of a step, of 1 to K, after which the metric is measured; the last is always K.

    ``literal`` and ``minibatch`` measure after every iteration, as Eq. 4 is printed; ``window`` at the last few, a
    twentieth of the step apart: γ = 0.9 puts 99 % of Eq. 4's weight on the last 44 iterations.

    Args:
        evaluation: when the metric is measured.
        every: K.
        evaluations: number of measurements of a ``window``.

    Example:
        >>> evaluation_points("window", every=200, evaluations=3)
        [180, 190, 200]
        >>> evaluation_points("literal", every=3, evaluations=1)
        [1, 2, 3]
    """
    if evaluation not in get_args(Evaluation):
        raise InputError(f"evaluation={evaluation!r}: choose from {get_args(Evaluation)}.")
    if every < 1 or evaluations < 1:
        raise InputError(f"every={every}, evaluations={evaluations}: a step is measured at least once; give 1 or more.")
    if evaluation != "window":
        return list(range(1, every + 1))
    stride = max(1, every // 20)
    return [point for point in range(every - stride * (evaluations - 1), every + 1, stride) if point >= 1]


def discounted_metric(values: Tensor, gamma: float, points: list[int] | None = None) -> Tensor:
    """Eq. 4: M = Σ_j γ^{K−j} M(f_{w^j}, D_val), divided by Σ_j γ^{K−j} so that it keeps the metric's scale.

    Args:
        values: the metric at the measured iterations [E, …].
        gamma: γ.
        points: the iterations j of the measurements, the last being K; consecutive if None.

    Returns:
        M [...].

    Example:
        >>> discounted_metric(torch.tensor([1.0, 0.0]), gamma=0.5)
        tensor(0.3333)
    """
    at = torch.arange(len(values)) if points is None else torch.tensor(points)
    weights = torch.pow(gamma, (at[-1] - at).to(values.dtype)).to(values.device)
    return (values.movedim(0, -1) * weights).sum(-1) / weights.sum()


def sign_reward(before: Tensor, after: Tensor) -> Tensor:
    """Eq. 5: r_t = sign(M_t − M_t+1).

    Example:
        >>> sign_reward(torch.tensor([0.3, 0.2]), torch.tensor([0.2, 0.3]))
        tensor([ 1., -1.])
    """
    return torch.sign(before - after)


def against_others(improvement: Tensor) -> Tensor:
    """Each child's improvement minus the mean improvement of the *other* children [..., n].

    Every child improves as it trains, and when the learning rate drops. Only the difference from the others shows which
    action was good.

    Example:
        >>> against_others(torch.tensor([3.0, 1.0, 1.0]))
        tensor([ 2., -1., -1.])
    """
    n = improvement.shape[-1]
    assert n > 1, "one child has no others"
    return improvement - (improvement.sum(-1, keepdim=True) - improvement) / (n - 1)


class Reward(ABC):
    """From M_t and M_t+1 of n children to centred rewards r_t − b_t [n], or of those of G policies [G, n]."""

    @abstractmethod
    def __call__(self, before: Tensor, after: Tensor) -> Tensor:
        """The centred reward of every child; also updates the baselines."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The running averages."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""


class SignReward(Reward):
    """Eq. 5 minus b, the exponential moving average of past rewards of all children of a policy (Eq. 3)."""

    def __init__(self, decay: float = 0.9) -> None:
        self.decay = decay
        self.baseline = torch.zeros(())

    def __call__(self, before: Tensor, after: Tensor) -> Tensor:
        """sign(M_t − M_t+1) − b_t."""
        reward = sign_reward(before, after)
        centred = reward - self.baseline
        self.baseline = self.decay * self.baseline + (1 - self.decay) * reward.mean(-1, keepdim=True)
        return centred

    def state_dict(self) -> dict[str, Any]:
        """The baselines b."""
        return {"baseline": self.baseline}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self.baseline = state["baseline"]


def ranks(improvement: Tensor) -> Tensor:
    """Ranks among the children, spread evenly over ±√3 so that their variance is near one; equal ones share [..., n].

    Example:
        >>> ranks(torch.tensor([0.1, 9.0, 0.2]))
        tensor([-1.7321,  1.7321,  0.0000])
    """
    one, other = improvement[..., :, None], improvement[..., None, :]
    above = (one > other).sum(-1) - (one < other).sum(-1)
    return above * 3**0.5 / (improvement.shape[-1] - 1)


class RelativeReward(Reward):
    """Improvement relative to the other children, divided by its running deviation.

    The mean of the others is the baseline too: rewards are centred once. One child is compared with its own forecast,
    the exponential moving average of its past improvements.
    """

    def __init__(self, decay: float = 0.95) -> None:
        self.decay = decay
        self.forecast = torch.zeros(())
        self.square = torch.zeros(())
        self.count = torch.zeros(())

    def __call__(self, before: Tensor, after: Tensor) -> Tensor:
        """(improvement − expected improvement) / running deviation, within ±5."""
        improvement = before - after
        expected = self.forecast / (1 - self.decay**self.count).clamp(min=1e-9)
        gain = self._against_others(improvement, after) if improvement.shape[-1] > 1 else improvement - expected
        self.forecast = self.decay * self.forecast + (1 - self.decay) * improvement.mean(-1, keepdim=True)
        self.square = self.decay * self.square + (1 - self.decay) * gain.square().mean(-1, keepdim=True)
        self.count = self.count + 1
        deviation = (self.square / (1 - self.decay**self.count)).sqrt()
        largest = torch.maximum(before.abs(), after.abs()).amax(-1, keepdim=True)
        rounding = 1e-6 * largest  # equal improvements differ by rounding
        return (gain / torch.maximum(deviation, rounding).clamp(min=1e-12)).clamp(-5, 5)

    def _against_others(self, improvement: Tensor, after: Tensor) -> Tensor:
        return against_others(improvement)

    def state_dict(self) -> dict[str, Any]:
        """The running averages."""
        return {"forecast": self.forecast, "square": self.square, "seen": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self.forecast, self.square, self.count = state["forecast"], state["square"], state["seen"]


class RankReward(RelativeReward):
    """The rank of the improvement among the children; its size does not count."""

    def _against_others(self, improvement: Tensor, after: Tensor) -> Tensor:
        return ranks(improvement)


class LevelReward(RelativeReward):
    """The error of a child relative to the others, not its change."""

    def _against_others(self, improvement: Tensor, after: Tensor) -> Tensor:
        return against_others(-after)


REWARDS: dict[str, Callable[[], Reward]] = {
    "sign": SignReward,
    "relative": RelativeReward,
    "rank": RankReward,
    "level": LevelReward,
}


def make_reward(name: str) -> Reward:
    """The reward called ``name``."""
    if name not in REWARDS:
        raise InputError(f"reward={name!r}: choose from {tuple(REWARDS)}.")
    return REWARDS[name]()
