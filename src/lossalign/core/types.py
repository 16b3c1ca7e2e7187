"""Types passed between training and the controllers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a controller sees of its n children at the end of a step.

    Args:
        error: M_t of Eq. 4 as an error, lower is better [n].
        statistics: S(f, D_val) of every loss parameter [n, P, S].
        sensitivity: gain of the metric if the errors out of, and into, the parameter's classes vanished [n, P, 2];
            zeros where the metric has none.
        progress: t over the total number of steps, 0 to 1.
        tie_breaker: a second error that still differs between children where the metric plateaus [n], or None.
        gradient: gain of the metric per unit added to the logits of the parameter's classes [n, P], zeros where it is
            not known; None unless a controller ``wants`` it.
    """

    error: Tensor
    statistics: Tensor
    sensitivity: Tensor
    progress: float
    tie_breaker: Tensor | None = None
    gradient: Tensor | None = None

    def with_tie_breaker(self, weight: float) -> Observation:
        """A copy whose error includes ``weight`` times the tie-breaker, if there is one."""
        if self.tie_breaker is None:
            return self
        return replace(self, error=self.error + weight * self.tie_breaker, tie_breaker=None)

    def of(self, children: slice | Tensor) -> Observation:
        """What is seen of some children, given as rows or as indices."""

        def rows(values: Tensor) -> Tensor:
            return values[children.to(values.device) if isinstance(children, Tensor) else children]

        chosen: dict[str, Any] = {name: rows(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **chosen)

    def to(self, device: torch.device | str) -> Observation:
        """A copy whose values of parameters are on ``device``; errors stay on the CPU."""
        return replace(
            self,
            statistics=self.statistics.to(device),
            sensitivity=self.sensitivity.to(device),
            gradient=None if self.gradient is None else self.gradient.to(device),
        )


class Controller(Protocol):
    """Anything that moves Φ: the learning controller and every rival.

    An optional attribute ``wants``, a set of names, asks for fields of the observation that cost something:
    ``"sensitivity"``, ``"gradient"``.
    """

    @property
    def phi(self) -> Tensor:
        """Φ of every child for the next K iterations [n, P]."""
        ...

    @property
    def parents(self) -> Tensor | None:
        """Index of the child whose weights each child copies after the last move [n]; None: no copying."""
        ...

    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Use the result of the last K iterations to move Φ.

        Returns:
            Values to log, one for each child [n]; the learning controller gives ``reward`` and ``entropy``.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        ...


Wanted = Literal["sensitivity", "gradient"]
"""Fields of an observation that are computed where a controller wants them."""


def wants(controller: Controller, field: Wanted) -> bool:
    """Whether ``controller`` asks for a field of the observation, in its attribute ``wants``."""
    return field in getattr(controller, "wants", ())
