"""Paired comparisons. The unit is one policy: children that share one are averaged first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """t with P(|T| < t) = confidence for Student's T.

    With T = √ν tan θ the density is proportional to cos^{ν−1} θ on (−π/2, π/2): integrate and look up.

    Example:
        >>> round(t_quantile(7), 3), round(t_quantile(1), 2)
        (2.365, 12.71)
    """
    theta = np.linspace(0, np.pi / 2, 200_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    at = np.interp(confidence, mass / mass[-1], theta)
    return float(np.sqrt(degrees) * np.tan(at))


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A method against a baseline, over the same seeds."""

    mean: float
    """Mean over policies."""
    difference: float | None
    """Mean of the paired difference to the baseline; None for the baseline itself."""
    half_width: float | None
    """Half the 95 % interval of that difference; None with fewer than two policies."""
    wins: int | None
    """Policies that were better than their baseline."""
    policies: int


def paired(values: Array, baseline: Array | None, higher_is_better: bool) -> Paired:
    """Mean of ``values``, one for each policy, and their paired difference to ``baseline`` with its t-interval.

    Example:
        >>> paired(np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 5.0]), higher_is_better=False)
        Paired(mean=2.0, difference=-1.33..., half_width=1.43..., wins=3, policies=3)
    """
    n = len(values)
    if baseline is None:
        return Paired(mean=float(values.mean()), difference=None, half_width=None, wins=None, policies=n)
    difference = values - baseline
    half = t_quantile(n - 1) * difference.std(ddof=1) / np.sqrt(n) if n > 1 else None
    better = difference > 0 if higher_is_better else difference < 0
    return Paired(
        mean=float(values.mean()),
        difference=float(difference.mean()),
        half_width=None if half is None else float(half),
        wins=int(better.sum()),
        policies=n,
    )
