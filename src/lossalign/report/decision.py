"""A picture of a decision: its gains, and how its candidates scored out of fold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lossalign.core import InputError
from lossalign.decision import Decision
from lossalign.report.style import INK, SOFT, dress, new_figure, save

_METHOD = "#0072B2"


def decision_figure(decision: Decision, path: str | Path, classes: list[str] | None = None) -> Path:
    """Draw the gains of a decision as a matrix, and the gain of every candidate over doing nothing, with ± 1 s.e.

    Args:
        decision: of classes or binary outputs.
        path: the file to write, by its ending a .png, .pdf or .svg.
        classes: names of the classes; None: their numbers.

    Returns:
        ``path``.
    """
    if decision.gains is None:
        raise InputError("decision is of several labels and has no gains; look at decision.thresholds.")
    figure = new_figure(f"{decision.metric}: {decision.chosen}", height=5.2)
    left, right = figure.subplots(1, 2)
    gains = decision.gains.numpy()
    limit = float(np.abs(gains).max()) or 1.0
    image = left.imshow(gains, cmap="PuOr", vmin=-limit, vmax=limit)
    figure.colorbar(image, ax=left, shrink=0.8)
    names = classes or [str(c) for c in range(len(gains))]
    left.set_xticks(range(len(gains)), names)
    left.set_yticks(range(len(gains)), names)
    left.set(xlabel="decision", ylabel="true class")
    dress(left, "gain of deciding j for class i")
    rows = decision.rows[::-1]
    places = range(len(rows))
    kept = [(row.name, row.shrinkage) == (decision.chosen, decision.shrinkage) for row in rows]
    for place, row, mine in zip(places, rows, kept, strict=True):
        colour = _METHOD if mine else SOFT
        right.errorbar(row.gain, place, xerr=row.error, fmt="o", color=colour, markersize=7 if mine else 4)
    right.set_yticks(places, [f"{row.name} {row.shrinkage:g}" for row in rows])
    right.axvline(0, color=INK, linewidth=0.8)
    right.set(xlabel="better than none, out of fold")
    dress(right, "candidates")
    return save(figure, Path(path))
