"""Rivals that look at the children and do not learn: a rule of thumb, and the paper's two matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec


def proportional_move(statistics: Tensor, step: Tensor) -> Tensor:
    """Lower the offset of classes that are worse than the others: −β · z, z the standardised loss, |z| ≤ 1 [n, C].

    An offset b_c below the others makes the training loss ask for larger logits of class c, as logit adjustment does
    for rare classes.

    Example:
        >>> proportional_move(torch.tensor([[0.1, 0.3]]), torch.tensor([0.3, 0.3]))
        tensor([[ 0.3000, -0.3000]])
    """
    z = (statistics - statistics.mean(1, keepdim=True)) / statistics.std(1, keepdim=True, correction=0).clamp(min=1e-6)
    return -step * z.clamp(-1, 1)


class ProportionalRule:
    """Told that classes matter equally: offsets follow the validation loss of each class."""

    def __init__(self, spec: ParameterSpec, *, children: int) -> None:
        self._spec, self._offsets = spec, spec.select(["offsets"])
        self._phi = spec.initial.expand(children, -1).clone()

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._phi

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Move the offsets against the classes' losses."""
        move = proportional_move(seen.statistics[:, self._offsets, 0], self._spec.step[self._offsets])
        phi = self._phi.clone()
        phi[:, self._offsets] += move
        self._phi = phi.clamp(self._spec.low, self._spec.high)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Today's Φ."""
        return {"phi": self._phi}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._phi = state["phi"]


class RandomMatrix:
    """The paper's control "random matrix": Φ_t is the identity with 10 % noise, drawn anew at every step."""

    def __init__(self, spec: ParameterSpec, *, children: int, generator: torch.Generator, noise: float = 0.1) -> None:
        self._spec, self._children, self._generator, self._noise = spec, children, generator, noise
        self._phi = self._draw()

    def _draw(self) -> Tensor:
        noise = torch.randn(self._children, self._spec.size, generator=self._generator)
        return (self._spec.initial + self._noise * noise).clamp(self._spec.low, self._spec.high)

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._phi

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Draw a new Φ."""
        self._phi = self._draw()
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Today's Φ and the generator."""
        return {"phi": self._phi, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._phi = state["phi"]
        self._generator.set_state(state["generator"])


def confusion_phi(statistics: Tensor) -> Tensor:
    """Eq. 7 as Φ: the mean of e^{−C_ij} and e^{−C_ji}, from log(1 + [C_ij, C_ji]) [n, P, 2].

    C_ij itself grows as classes separate and leaves [−1, 1]; e^{−C_ij} is the (geometric) mean probability of class j
    on samples of class i, and tends to the identity of Φ_0 as the network learns.

    Example:
        >>> confusion_phi(torch.zeros(1, 1, 2))
        tensor([[1.]])
    """
    return torch.exp(-torch.expm1(statistics)).mean(-1)


class ConfusionMatrix:
    """The paper's control "confusion matrix": Φ_t is what the children confuse now."""

    def __init__(self, spec: ParameterSpec, *, children: int) -> None:
        self._phi = spec.initial.expand(children, -1).clone()

    @property
    def phi(self) -> Tensor:
        """Φ of every child [n, P]."""
        return self._phi

    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Take the newest confusion as Φ."""
        self._phi = confusion_phi(seen.statistics)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Today's Φ."""
        return {"phi": self._phi}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._phi = state["phi"]
