"""Refit: train again on more data, under the Φ that a policy moved the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lossalign.core import Observation, ParameterSpec

Schedule = dict[str, Tensor]
"""Φ at every step by group, each [steps, size]."""

FOLLOWING = ("offsets", "weights")
"""Groups whose Φ answers to the class frequencies."""


def rescaled(schedule: Schedule, before: Tensor, after: Tensor) -> Schedule:
    """A schedule learned on classes of size ``before`` [C], for classes of size ``after`` [C].

    Offsets and class weights are split, at every step, into what follows the class frequencies and the rest,
    b = τ log π + r (least squares; log π centred); b′ = τ log π′ + r. So logit adjustment stays logit adjustment, zero
    stays zero, and what the metric asked for beside the frequencies is kept.

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
        schedule: gives it; as long as it has no steps it still has to be learned, and Φ is at its start.
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
        """Everybody goes on with its own weights."""
        return None

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """On to the next."""
        self._step += 1
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Where in the schedule it stands."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._step = state["step"]
