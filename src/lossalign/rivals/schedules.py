"""Rivals that know the class frequencies and never look at the metric: Φ as a function of the time alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec

Schedule = Callable[[float], Tensor]
"""From progress, 0 to 1, to Φ [P]."""


def inverse_frequency(counts: Tensor) -> Tensor:
    """Log class weights u = −log π, centred so that they fit their range [C].

    Example:
        >>> inverse_frequency(torch.tensor([100, 1]))
        tensor([-2.3026,  2.3026])
    """
    u = -counts.double().log()
    return (u - u.mean()).float()


def effective_number(counts: Tensor, beta: float = 0.9999) -> Tensor:
    """Log class-balanced weights u = −log((1 − β^n) / (1 − β)), centred [C] (Cui et al., CVPR 2019)."""
    u = -torch.log1p(-(beta ** counts.double()))
    return (u - u.mean()).float()


def logit_adjustment(counts: Tensor, tau: float = 1.0) -> Tensor:
    """Logit offsets b = τ log π, centred [C] (Menon et al., ICLR 2021)."""
    return -tau * inverse_frequency(counts)


class ScheduledController:
    """Gives every child Φ(progress): the fixed loss, and every loss designed by hand."""

    def __init__(self, spec: ParameterSpec, *, children: int, schedule: Schedule) -> None:
        self._spec, self._children, self._schedule = spec, children, schedule
        self._phi = self._at(0.0)

    def _at(self, progress: float) -> Tensor:
        phi = self._schedule(progress).clamp(self._spec.low, self._spec.high)
        return phi.expand(self._children, -1).clone()

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._phi

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Move Φ to where the schedule is now."""
        self._phi = self._at(seen.progress)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Today's Φ."""
        return {"phi": self._phi}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._phi = state["phi"]


def fixed(spec: ParameterSpec, children: int) -> ScheduledController:
    """Φ stays at its start: cross-entropy, under ``AlignedLoss``."""
    return ScheduledController(spec, children=children, schedule=lambda progress: spec.initial)


def designed(spec: ParameterSpec, children: int, group: str, values: Tensor, since: float = 0.0) -> ScheduledController:
    """One group at ``values`` from ``since`` (a fraction of the run) on, everything else at its start."""
    where = spec.select([group])

    def schedule(progress: float) -> Tensor:
        phi = spec.initial.clone()
        if progress >= since:
            phi[where] = values
        return phi

    return ScheduledController(spec, children=children, schedule=schedule)
