"""ALA's inheritance for any controller that can pass Φ on."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from lossalign.core import Controller, InputError, Observation, choose_parents


class Heritable(Controller, Protocol):
    """A controller whose children can take over the Φ of others."""

    def inherit(self, parents: Tensor) -> None:
        """Each child takes over Φ, and what belongs to it, of the child whose index ``parents`` [n] gives."""
        ...


class Surviving:
    """A controller, and ALA's inheritance: every few steps the worst children copy weights and Φ of the best.

    The children inherit first, as under ALA; then the controller moves with what was observed of their parents.

    Args:
        controller: moves Φ; it must not copy weights itself.
        every: steps between two comparisons.
        share: fraction of the children that copy.
        generator: draws the parents.
        tie_breaker: weight of the tie-breaker, for metrics that often plateau.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        every: int,
        share: float,
        generator: torch.Generator,
        tie_breaker: float = 0.0,
    ) -> None:
        if not hasattr(controller, "inherit"):
            raise InputError(
                f"survival: a {type(controller).__name__} has no method inherit(parents), so its children cannot take "
                "over Φ; use a rule. Policies and population-based training have an inheritance of their own."
            )
        self._controller = cast("Heritable", controller)
        self._every, self._share, self._generator, self._tie_breaker = every, share, generator, tie_breaker
        self._steps = 0
        self._parents: Tensor | None = None
        self.wants = frozenset(getattr(controller, "wants", ()))

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._controller.phi

    @property
    def parents(self) -> Tensor | None:
        """Index of the child whose weights each child copies after the last move [n]; None: no copying."""
        return self._parents

    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Inherit, if a comparison is due, and let the controller move Φ."""
        self._steps, self._parents = self._steps + 1, None
        if self._steps % self._every == 0:
            errors = observation.with_tie_breaker(self._tie_breaker).error
            self._parents = choose_parents(errors, self._share, self._generator)
            self._controller.inherit(self._parents)
            observation = observation.of(self._parents)
        return self._controller.move(observation)

    def state_dict(self) -> dict[str, Any]:
        """The controller's state, the time, and the random stream."""
        return {
            "controller": self._controller.state_dict(),
            "steps": self._steps,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self._controller.load_state_dict(state["controller"])
        self._steps = state["steps"]
        self._generator.set_state(state["generator"])
