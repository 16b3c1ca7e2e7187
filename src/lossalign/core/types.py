"""What passes between the rooms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a controller sees of its n children when a step ends.

    Args:
        metric: M_t of Eq. 4 as an error, lower is better [n].
        statistics: S(f, D_val) of every loss parameter [n, P, S].
        sensitivity: what the metric would gain if the errors out of, and into, the parameter's classes vanished
            [n, P, 2]; zeros where the metric cannot tell.
        progress: t over the total number of steps, 0 to 1.
        finer: for a metric that often stands still, an error that does not [n].
    """

    metric: Tensor
    statistics: Tensor
    sensitivity: Tensor
    progress: float
    finer: Tensor | None = None

    def told_apart(self, ties: float) -> Observation:
        """With ``ties`` of the finer error in the metric, if there is one: children all alike teach nothing."""
        return self if self.finer is None else replace(self, metric=self.metric + ties * self.finer, finer=None)


class Controller(Protocol):
    """Whatever moves Φ: the learning controller, and every rival."""

    @property
    def phi(self) -> Tensor:
        """Φ of every child for the coming K iterations [n, P]."""
        ...

    @property
    def parents(self) -> Tensor | None:
        """With whose weights each child goes on after the last move [n]; None if everybody with its own."""
        ...

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Take in what the last K iterations led to and move Φ.

        Returns:
            What is worth logging, one value a child [n]: the learning controller gives ``reward`` and ``entropy``.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly from here."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        ...
