"""What the moves of Φ were: one record for each, and a history of bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MOVES = 1000
_NUMBERS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Move:
    """What K iterations led to, when Φ has just moved.

    Args:
        step: number of the move, from 1.
        iteration: optimiser iterations so far.
        metric: validation metric of the (averaged) weights at this iteration, in its own direction.
        phi: Φ that these K iterations trained under, by group; the next ones train under ``aligner.phi``.
        reward: centred reward of the previous move; None at the first, and from a controller that gives none.
    """

    step: int
    iteration: int
    metric: float
    phi: dict[str, Tensor]
    reward: float | None


@dataclass(frozen=True, kw_only=True)
class History:
    """Past moves as tensors on the CPU, oldest first.

    Args:
        iterations: optimiser iterations after which Φ moved [T].
        metric: as ``Move.metric`` [T].
        phi: as ``Move.phi``, all groups in one vector [T, P].
        reward: as ``Move.reward``, NaN where it is None [T].
    """

    iterations: Tensor
    metric: Tensor
    phi: Tensor
    reward: Tensor

    def __len__(self) -> int:
        return len(self.iterations)


class MoveLog:
    """Moves of P parameters: all of them, or every second, fourth … where they would be too many.

    At most 1,000 moves are kept, and fewer where P is so large that they would be more than 20 million numbers.

    Example:
        >>> log = MoveLog(parameters=1, limit=4)
        >>> for step in range(1, 7):
        ...     log.add(iteration=10 * step, metric=0.5, phi=torch.zeros(1), reward=None)
        >>> log.history.iterations
        tensor([10, 30, 50])
    """

    def __init__(self, parameters: int, limit: int = _MOVES) -> None:
        self._parameters = parameters
        self._limit = max(2, min(limit, _NUMBERS // parameters))
        self._seen, self._stride = 0, 1
        self._rows: list[tuple[int, float, float]] = []
        self._phi: list[Tensor] = []

    def add(self, *, iteration: int, metric: float, phi: Tensor, reward: float | None) -> None:
        """Take in one move; ``phi`` [P]."""
        if self._seen % self._stride == 0:
            self._rows.append((iteration, metric, torch.nan if reward is None else reward))
            self._phi.append(phi.cpu())
        self._seen += 1
        if len(self._rows) > self._limit:
            self._rows, self._phi, self._stride = self._rows[::2], self._phi[::2], 2 * self._stride

    @property
    def history(self) -> History:
        """The kept moves."""
        rows = torch.tensor(self._rows, dtype=torch.float64).reshape(-1, 3)
        return History(
            iterations=rows[:, 0].long(),
            metric=rows[:, 1].float(),
            phi=torch.stack(self._phi) if self._phi else torch.empty(0, self._parameters),
            reward=rows[:, 2].float(),
        )

    def state_dict(self) -> dict[str, Any]:
        """The kept moves as tensors and numbers."""
        return {**vars(self.history), "seen": self._seen, "stride": self._stride}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        columns = [state[name].tolist() for name in ("iterations", "metric", "reward")]
        self._rows, self._phi = list(zip(*columns, strict=True)), [row.cpu() for row in state["phi"]]
        self._seen, self._stride = state["seen"], state["stride"]
