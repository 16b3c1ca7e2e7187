"""Paired comparisons. The unit is one seed: its children are averaged first."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def _student(degrees: int) -> tuple[Array, Array]:
    """Angles θ and P(|T| < √ν tan θ) for Student's T with ν degrees of freedom.

    With T = √ν tan θ the density is proportional to cos^{ν−1} θ on (−π/2, π/2): integrate.
    """
    theta = np.linspace(0, np.pi / 2, 200_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return theta, mass / mass[-1]


def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """t with P(|T| < t) = confidence for Student's T.

    Example:
        >>> round(t_quantile(7), 3), round(t_quantile(1), 2)
        (2.365, 12.71)
    """
    theta, mass = _student(degrees)
    return float(np.sqrt(degrees) * np.tan(np.interp(confidence, mass, theta)))


def t_test(t: float, degrees: int) -> float:
    """P(|T| ≥ |t|), the two-sided p-value.

    Example:
        >>> round(t_test(2.365, 7), 3)
        0.05
    """
    theta, mass = _student(degrees)
    return float(1 - np.interp(np.arctan(abs(t) / np.sqrt(degrees)), theta, mass))


def holm(p: list[float]) -> list[float]:
    """Holm's correction of the p-values of several comparisons: each times the number of p-values not below it.

    Example:
        >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[at]))
        corrected[at] = largest
    return corrected


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A method against a baseline, over the same seeds."""

    mean: float
    """Mean over seeds."""
    difference: float | None
    """Mean of the paired difference to the baseline; None for the baseline itself."""
    half_width: float | None
    """Half the 95 % interval of that difference; None with fewer than two seeds."""
    wins: int | None
    """Seeds on which it was better than the baseline."""
    seeds: int
    p: float | None = None
    """Two-sided p-value of the difference; in a table, after Holm's correction for its rows."""


def paired(values: Array, baseline: Array | None, higher_is_better: bool) -> Paired:
    """Mean of ``values``, one for each seed, and their paired difference to ``baseline`` with its t-interval.

    Example:
        >>> paired(np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 5.0]), higher_is_better=False)
        Paired(mean=2.0, difference=-1.33..., half_width=1.43..., wins=3, seeds=3, p=0.05...)
    """
    n = len(values)
    if baseline is None:
        return Paired(mean=float(values.mean()), difference=None, half_width=None, wins=None, seeds=n)
    difference = values - baseline
    half = p = None
    if n > 1:
        deviation = float(difference.std(ddof=1)) / np.sqrt(n)
        half = t_quantile(n - 1) * deviation
        p = t_test(float(difference.mean()) / deviation, n - 1) if deviation > 0 else float(not difference.any())
    better = difference > 0 if higher_is_better else difference < 0
    return Paired(
        mean=float(values.mean()),
        difference=float(difference.mean()),
        half_width=None if half is None else float(half),
        wins=int(better.sum()),
        seeds=n,
        p=p,
    )


def table(values: dict[str, Array], baseline: str, higher_is_better: bool) -> dict[str, Paired]:
    """Every method against ``baseline``; their p-values are corrected for their number."""
    rows = {
        name: paired(each, None if name == baseline else values[baseline], higher_is_better)
        for name, each in values.items()
    }
    tested = [name for name, row in rows.items() if row.p is not None]
    corrected = holm([row.p for row in rows.values() if row.p is not None])
    return rows | {name: replace(rows[name], p=p) for name, p in zip(tested, corrected, strict=True)}


def in_units(value: float, percent: bool) -> str:
    """A value of the metric, in percent if people read it so.

    Example:
        >>> in_units(0.12345, percent=True), in_units(1.5, percent=False)
        ('12.35', '1.5')
    """
    return f"{100 * value:.2f}" if percent else f"{value:.4g}"


def difference(row: Paired, percent: bool) -> str:
    """A paired difference with its 95 % interval.

    Example:
        >>> difference(Paired(mean=0.1, difference=-0.03, half_width=0.01, wins=3, seeds=3), percent=True)
        '-3.00 ± 1.00'
    """
    if row.difference is None:
        return "–"
    scale = 100 if percent else 1
    text = f"{scale * row.difference:+.2f}" if percent else f"{row.difference:+.4g}"
    if row.half_width is None:
        return text
    return f"{text} ± {scale * row.half_width:.2f}" if percent else f"{text} ± {row.half_width:.2g}"
