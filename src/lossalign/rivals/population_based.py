"""Population-based training (Jaderberg et al., 2017): evolution on Φ and weights together, without a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec, heirs

READY = 20
"""How often in a run children are compared."""
SHARE = 0.25
"""Of children that give up and inherit."""
FAR = 2
"""β that exploring moves a parameter at most."""


class PopulationBasedController:
    """Every twentieth of a run the worst quarter of n children take over the weights and Φ of the best quarter, and
    their Φ is moved at random.

    Args:
        spec: the loss's parameters.
        children: n.
        groups: which groups of parameters are searched.
        generator: of the random moves.
    """

    def __init__(
        self, spec: ParameterSpec, *, children: int, groups: Sequence[str], generator: torch.Generator
    ) -> None:
        self._spec, self._moved, self._generator = spec, spec.select(groups), generator
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
        ready, self._parents = math.floor(READY * seen.progress + 1e-9), None
        if ready > self._ready and ready < READY:
            self._parents = parents = heirs(seen.metric, SHARE, self._generator)
            self._phi = self._phi[parents]
            self._explore((parents != torch.arange(len(parents))).nonzero().flatten())
        self._ready = ready
        return {}

    def _explore(self, children: Tensor) -> None:
        far = torch.randint(-FAR, FAR + 1, (len(children), len(self._moved)), generator=self._generator)
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
