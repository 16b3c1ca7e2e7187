"""How much of the reward the actions of a random walk explain: whether there is anything to learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def r_squared(actions: Array, returns: Array) -> float:
    """R² of the least-squares fit of returns [n] on actions [n, P] and a constant.

    Example:
        >>> actions = np.array([[-1.0], [0.0], [1.0], [1.0]])
        >>> round(r_squared(actions, 2 * actions[:, 0] + 1), 6)
        1.0
    """
    design = np.column_stack([np.ones(len(actions)), actions])
    fitted = design @ np.linalg.lstsq(design, returns, rcond=None)[0]
    total = float(((returns - returns.mean()) ** 2).sum())
    return 1 - float(((returns - fitted) ** 2).sum()) / total if total > 0 else 0.0


def t_step_returns(rewards: Array, horizon: int) -> Array:
    """Σ of the next ``horizon`` rewards for every step that has them [steps − horizon + 1, n], from [steps, n].

    Example:
        >>> t_step_returns(np.array([[1.0], [2.0], [3.0]]), 2)
        array([[3.],
               [5.]])
    """
    sums = np.cumsum(np.concatenate([np.zeros((1, rewards.shape[1])), rewards]), 0)
    result: Array = sums[horizon:] - sums[:-horizon]
    return result


@dataclass(frozen=True, kw_only=True)
class Learnable:
    """R² of T-step returns on the actions of a random walk, and the R² expected by chance."""

    r2: float
    null: float
    """Mean R² after shuffling the returns."""
    decisions: int


def learnable(phi: Array, rewards: Array, horizon: int, seed: int = 0, shuffles: int = 20) -> Learnable | None:
    """R² of the returns on the moves of Φ.

    Args:
        phi: Φ under which each step trained [steps, n, P]; the move at step t is phi[t] − phi[t−1].
        rewards: centred reward after each step [steps, n]; NaN where there was none.
        horizon: T.
        seed: seed of the shuffles.
        shuffles: number of shuffles.

    Returns:
        R², or None if there are too few decisions for the number of parameters.
    """
    if len(phi) <= horizon:
        return None
    moves = np.sign(np.diff(phi, axis=0))
    returns = t_step_returns(rewards[1:], horizon)
    moves = moves[: len(returns)].reshape(-1, phi.shape[-1])
    flat = returns.reshape(-1)
    known = np.isfinite(flat)
    moves, flat = moves[known], flat[known]
    if len(flat) < 3 * phi.shape[-1]:
        return None
    rng = np.random.default_rng(seed)
    null = float(np.mean([r_squared(moves, rng.permutation(flat)) for _ in range(shuffles)]))
    return Learnable(r2=r_squared(moves, flat), null=null, decisions=len(flat))
