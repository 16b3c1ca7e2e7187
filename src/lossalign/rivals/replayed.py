"""Refit: training again on more data, under the Φ of an earlier training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lossalign.core import Observation, ParameterSpec

Schedule = dict[str, Tensor]
"""Φ at every step by group, each [steps, size]."""

FOLLOWING = ("offsets", "weights")
"""Groups whose Φ depends on the class frequencies."""


def rescaled(schedule: Schedule, before: Tensor, after: Tensor) -> Schedule:
    """A schedule learned on classes of size ``before`` [C], for classes of size ``after`` [C].

    Offsets and class weights are split, at every step, into what follows the class frequencies and the rest,
    b = τ log π + r (least squares; log π centred); b′ = τ log π′ + r. So logit adjustment stays logit adjustment, zero
    stays zero, and what does not follow the frequencies is kept.

    Example:
        >>> import torch
        >>> before, after = torch.tensor([10, 1]), torch.tensor([20, 10])
        >>> learned = {"offsets": torch.tensor([[0.5, -0.5]]) * torch.tensor(10.0).log()}
        >>> rescaled(learned, before, after)["offsets"]
        tensor([[ 0.3466, -0.3466]])
    """
    old, new = (_centred(counts.double().log()) for counts in (before, after))
    if not bool(old.any()):
        return schedule
    changed = {}
    for name in FOLLOWING:
        if name in schedule:
            tau = schedule[name].double() @ old / old.square().sum()
            changed[name] = (schedule[name] + tau[:, None] * (new - old)).float()
    return schedule | changed


def _centred(values: Tensor) -> Tensor:
    return values - values.mean()


class ReplayedController:
    """Φ of n children follows a schedule.

    Args:
        spec: the loss's parameters; groups without a schedule stay at their start.
        children: n.
        schedule: returns the schedule; while that has no steps, because it is not learned yet, Φ is at its start.
    """

    def __init__(self, spec: ParameterSpec, *, children: int, schedule: Callable[[], Schedule]) -> None:
        self._spec, self._children, self._make, self._step = spec, children, schedule, 0
        self._schedule: Schedule = {}

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        if not self._schedule:
            self._schedule = {name: values for name, values in self._make().items() if len(values)}
        phi = self._spec.initial.clone()
        for name, values in self._schedule.items():
            if name in self._spec.slices:
                phi[self._spec.slices[name]] = values[min(self._step, len(values) - 1)]
        return phi.clamp(self._spec.low, self._spec.high).expand(self._children, -1).clone()

    @property
    def parents(self) -> Tensor | None:
        """None: no child copies weights."""
        return None

    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Advance by one step of the schedule."""
        self._step += 1
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The position in the schedule."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self._step = state["step"]
