"""Population-based training (Jaderberg et al., 2017): evolution of Φ and weights, without a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec, choose_parents


class PopulationBasedController:
    """Several times in a run the worst children copy weights and Φ of the best, and their Φ is moved at random.

    Args:
        spec: the loss's parameters.
        children: n.
        groups: groups of parameters that are moved.
        generator: draws the parents and the moves.
        times: number of comparisons in a run.
        share: fraction of the children that copy.
        far: largest random move of a parameter, in β; 0 leaves Φ at its start, so that only weights are copied.
        tie_breaker: weight of the tie-breaker, for metrics that often plateau.
    """

    def __init__(
        self,
        spec: ParameterSpec,
        *,
        children: int,
        groups: Sequence[str],
        generator: torch.Generator,
        times: int = 20,
        share: float = 0.25,
        far: int = 2,
        tie_breaker: float = 0.0,
    ) -> None:
        self._spec, self._moved, self._generator = spec, spec.select(groups), generator
        self._times, self._share, self._far, self._tie_breaker = times, share, far, tie_breaker
        self._phi = spec.initial.expand(children, -1).clone()
        self._explore(torch.arange(children))
        self._ready = 0
        self._parents: Tensor | None = None

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._phi

    @property
    def parents(self) -> Tensor | None:
        """Index of the child whose weights each child copies [n]; None: no copying."""
        return self._parents

    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Copy and explore, if a comparison is due."""
        ready, self._parents = math.floor(self._times * observation.progress + 1e-9), None
        if self._ready < ready < self._times:
            self._parents = parents = choose_parents(
                observation.with_tie_breaker(self._tie_breaker).error, self._share, self._generator
            )
            self._phi = self._phi[parents]
            self._explore((parents != torch.arange(len(parents))).nonzero().flatten())
        self._ready = ready
        return {}

    def _explore(self, children: Tensor) -> None:
        far = torch.randint(-self._far, self._far + 1, (len(children), len(self._moved)), generator=self._generator)
        low, high, beta = (value[self._moved] for value in (self._spec.low, self._spec.high, self._spec.beta))
        moved = (self._phi[children][:, self._moved] + far * beta).clamp(low, high)
        self._phi[children[:, None], self._moved] = moved

    def state_dict(self) -> dict[str, Any]:
        """Φ, the time, and the random stream."""
        return {"phi": self._phi, "ready": self._ready, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self._phi, self._ready = state["phi"], state["ready"]
        self._generator.set_state(state["generator"])
