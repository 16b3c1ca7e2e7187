"""Population-based training (Jaderberg et al., 2017): evolution on Φ and weights together, without a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec, heirs


class PopulationBasedController:
    """From time to time the worst of n children take over weights and Φ of the best, and their Φ is moved at random.

    Args:
        spec: the loss's parameters.
        children: n.
        groups: which groups of parameters are searched.
        generator: of the random moves.
        times: how often in a run children are compared.
        share: of children that give up and inherit.
        far: β that exploring moves a parameter at most; 0 leaves Φ at its start, and only the fittest weights survive.
        ties: how much of the finer error counts, for a metric that often stands still.
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
        ties: float = 0.0,
    ) -> None:
        self._spec, self._moved, self._generator = spec, spec.select(groups), generator
        self._times, self._share, self._far, self._ties = times, share, far, ties
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
        """With whose weights each child goes on [n]."""
        return self._parents

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Exploit and explore, if it is time."""
        ready, self._parents = math.floor(self._times * seen.progress + 1e-9), None
        if self._ready < ready < self._times:
            self._parents = parents = heirs(seen.told_apart(self._ties).metric, self._share, self._generator)
            self._phi = self._phi[parents]
            self._explore((parents != torch.arange(len(parents))).nonzero().flatten())
        self._ready = ready
        return {}

    def _explore(self, children: Tensor) -> None:
        far = torch.randint(-self._far, self._far + 1, (len(children), len(self._moved)), generator=self._generator)
        low, high, step = (value[self._moved] for value in (self._spec.low, self._spec.high, self._spec.step))
        moved = (self._phi[children][:, self._moved] + far * step).clamp(low, high)
        self._phi[children[:, None], self._moved] = moved

    def state_dict(self) -> dict[str, Any]:
        """Φ, the time, and the random stream."""
        return {"phi": self._phi, "ready": self._ready, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._phi, self._ready = state["phi"], state["ready"]
        self._generator.set_state(state["generator"])
