"""What a population keeps of its past steps: Φ, rewards, resets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_NUMBERS = 20_000_000
"""Numbers of Φ kept at most; longer histories keep every second, third … step."""
_DIGITS = 7
"""Of a reward, as in the log of a run."""


class Past:
    """Φ and rewards of all steps of N children, or of every second, third … step where they would be too many.

    Args:
        steps: of the whole run.
        children: N.
        parameters: P.

    Example:
        >>> past = Past(steps=2, children=3, parameters=4)
        >>> past.add(0, torch.zeros(3, 4), {"reset": torch.tensor([0.0, 1.0, torch.nan])})
        >>> past.phi.shape, past.steps.tolist(), past.resets.tolist()
        (torch.Size([1, 3, 4]), [1], [0, 1, 0])
    """

    def __init__(self, *, steps: int, children: int, parameters: int) -> None:
        self._children, self._parameters = children, parameters
        self._stride = -(-steps * children * parameters // _NUMBERS)
        self._phi: list[Tensor] = []
        self._rewards: list[Tensor] = []
        self.resets = torch.zeros(children, dtype=torch.int64)
        """How often each child got its initial Φ back [N]."""

    def add(self, before: int, phi: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Take in one step, with the number of steps before it, Φ [N, P] that it trained under, and what was logged."""
        if "reset" in logs:
            self.resets = self.resets + (logs["reset"] > 0)
        if before % self._stride == 0:
            self._phi.append(phi.cpu())
            self._rewards.append(logs.get("reward", torch.full((self._children,), torch.nan)).cpu())

    @property
    def phi(self) -> Tensor:
        """Φ of the kept steps [T, N, P]."""
        return torch.stack(self._phi) if self._phi else torch.empty(0, self._children, self._parameters)

    @property
    def steps(self) -> Tensor:
        """The number of each kept step, from 1 [T]."""
        return torch.arange(len(self._phi)) * self._stride + 1

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """Rewards of the kept steps [T, N], NaN where there was none."""
        rewards = torch.stack(self._rewards) if self._rewards else torch.empty(0, self._children)
        return np.round(rewards.double().numpy(), _DIGITS)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as tensors."""
        rewards = torch.stack(self._rewards) if self._rewards else torch.empty(0, self._children)
        return {"phi": self.phi, "rewards": rewards, "resets": self.resets}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        self._phi, self._rewards = list(state["phi"]), list(state["rewards"])
        self.resets = state["resets"]
