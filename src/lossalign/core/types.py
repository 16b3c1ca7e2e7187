"""Types passed between training and the controllers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

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
    """

    error: Tensor
    statistics: Tensor
    sensitivity: Tensor
    progress: float
    tie_breaker: Tensor | None = None

    def with_tie_breaker(self, weight: float) -> Observation:
        """A copy whose error includes ``weight`` times the tie-breaker, if there is one."""
        if self.tie_breaker is None:
            return self
        return replace(self, error=self.error + weight * self.tie_breaker, tie_breaker=None)


class Controller(Protocol):
    """Anything that moves Φ: the learning controller and every rival."""

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
