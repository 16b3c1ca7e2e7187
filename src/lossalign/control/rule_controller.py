"""A controller whose Φ follows a rule that does not learn."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from lossalign.control.rules import Rule, needed_by, rule_move
from lossalign.core import Observation, ParameterSpec, Wanted

Move = Callable[[Tensor, Observation], Tensor]
"""(current Φ [n, P], observation) → the next Φ [n, P], or one for all children [P]."""


class RuleController:
    """Moves Φ of n children by a rule, and keeps it in range.

    Args:
        spec: the loss's parameters.
        children: n.
        rule: the next Φ.
        start: the first Φ [n, P] or [P]; the loss's own start if None.
        generator: the rule's random stream, if it has one; it is saved, so that a resumed run continues it.
        wants: costly fields of the observation that the rule reads.
    """

    def __init__(
        self,
        spec: ParameterSpec,
        children: int,
        rule: Move,
        start: Tensor | None = None,
        generator: torch.Generator | None = None,
        wants: Collection[Wanted] = (),
    ) -> None:
        self.wants = frozenset(wants)
        self._spec, self._children, self._rule, self._generator = spec, children, rule, generator
        self._phi = self._fitted(spec.initial if start is None else start)

    def _fitted(self, phi: Tensor) -> Tensor:
        return phi.clamp(self._spec.low, self._spec.high).expand(self._children, -1).clone()

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._phi

    def start_at(self, phi: Tensor) -> None:
        """Continue from this Φ [n, P] or [P]."""
        self._phi = self._fitted(phi)

    @property
    def parents(self) -> Tensor | None:
        """None: no child copies weights."""
        return None

    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Set Φ by the rule."""
        self._phi = self._fitted(self._rule(self._phi, observation))
        return {}

    def inherit(self, parents: Tensor) -> None:
        """Each child takes over the Φ of the child whose index ``parents`` [n] gives."""
        self._phi = self._phi[parents]

    def state_dict(self) -> dict[str, Any]:
        """The current Φ, and the random stream."""
        state = None if self._generator is None else self._generator.get_state()
        return {"phi": self._phi, "generator": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self._phi = state["phi"]
        if self._generator is not None:
            self._generator.set_state(state["generator"])


def following(rule: Rule, spec: ParameterSpec, children: int) -> RuleController:
    """Offsets follow a rule; other groups of Φ stay at their start.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> following("metric-gradient", AlignedLoss(3).spec, children=2).wants
        frozenset({'gradient'})
    """
    offsets = spec.select(["offsets"])
    beta = spec.beta[offsets]

    def moved(phi: Tensor, observation: Observation) -> Tensor:
        phi = phi.clone()
        phi[:, offsets] += rule_move(rule, observation, offsets, beta)
        return phi

    return RuleController(spec, children, moved, wants=[needed_by(rule)])
