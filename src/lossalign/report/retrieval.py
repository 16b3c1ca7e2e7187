"""Figures of metric learning: nearest neighbours of samples, and distances of pairs before and after training.

They are drawn from ``config.json`` and ``retrieval.npz``, without a model.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lossalign.report.style import GRID, INK, SOFT, as_label, dress, method_colours, new_figure, save
from lossalign.runs import RETRIEVAL, SavedRetrieval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Counts = NDArray[np.int64]

_RIGHT, _WRONG = "#009E73", "#D55E00"
# a tile is 1 wide; from tile to tile, between blocks of tiles, and for the name of a class
_STEP, _BETWEEN, _NAME = 1.22, 0.5, 2.9
_LETTERS, _LINES = 18, 3


def write_retrieval(run: Path) -> list[Path]:
    """Draw the figures of metric learning and return their paths; none in a run of classification."""
    if not (run / RETRIEVAL).exists():
        return []
    return [*([neighbours_figure(run)] if SavedRetrieval.read(run).has_images else []), distances_figure(run)]


def neighbours_figure(run: Path) -> Path:
    """Draw ``neighbours.png``: a few samples, and their nearest neighbours under each method's best child.

    A row is a query: the name of its class, its image, and for each method its nearest neighbours. A neighbour of the
    query's class has a solid green frame and a ✓, one of another class a dashed orange frame and a ✗.

    Args:
        run: the run folder.

    Returns:
        The path of the figure.
    """
    found = SavedRetrieval.read(run)
    images, neighbours = found.arrays["images"], found.arrays["neighbours"]
    queries, count = neighbours.shape[1:]
    first, block = _NAME + _STEP + _BETWEEN, count * _STEP + _BETWEEN
    width, height = first + len(neighbours) * block - _BETWEEN, queries * _STEP + 0.7
    inch = 11.2 / width if len(neighbours) > 1 else 0.62
    figure = new_figure(f"{found.task}: nearest neighbours", height=inch * height + 1.15)
    figure.set_size_inches(inch * width + 0.3, figure.get_figheight())
    axes = figure.subplots()
    for row, query in enumerate(found.arrays["queries"]):
        name = _short(found.arrays["names"][query])
        _write(axes, _NAME - 0.25, row * _STEP + 0.5, name, ha="right", va="center", color=INK)
        _draw_image(axes, images[query], _NAME, row * _STEP)
    colours = method_colours(found.methods, found.baselines, found.learners)
    for method, name in enumerate(found.methods):
        left = first + method * block
        title = {"fontsize": 12, "fontweight": "bold", "color": colours[name]}
        _write(axes, left, -0.18, as_label(name), va="bottom", **title)
        _write(axes, left + (count - 1) * _STEP + 1, -0.18, found.score(method), ha="right", va="bottom", color=INK)
        for row, column in np.ndindex(queries, count):
            x, y = left + column * _STEP, row * _STEP
            _draw_image(axes, images[neighbours[method, row, column]], x, y)
            _draw_frame(axes, x, y, bool(found.arrays["right"][method, row, column]))
    axes.set(xlim=(-0.1, width), ylim=(height - 0.7, -0.7), aspect="equal")
    axes.axis("off")
    caption = textwrap.fill(_caption(found), int(13 * figure.get_figwidth()))
    figure.supxlabel(caption, fontsize=10, color=SOFT, parse_math=False)
    return save(figure, run / "neighbours.png")


def distances_figure(run: Path) -> Path:
    """Draw ``distances.png``: distances of positive and negative pairs, before and after training.

    One panel for the untrained network and one for each method; a panel's title says how much the two
    distributions overlap.

    Args:
        run: the run folder.

    Returns:
        The path of the figure.
    """
    found = SavedRetrieval.read(run)
    edges = found.arrays["edges"]
    panels = {"before training": found.arrays["before"], **dict(zip(found.methods, found.arrays["after"], strict=True))}
    # an untrained network may put all pairs into a few bins; the scale is that of the trained ones
    peaks = {name: float(_shares(counts).max()) for name, counts in panels.items()}
    top = 1.06 * min(max(peaks.values()), 3 * max(peaks[name] for name in found.methods))
    figure = new_figure(f"{found.task}: distances between {found.samples}", height=4.2)
    row = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, counts) in zip(row, panels.items(), strict=True):
        _draw_pairs(axes, counts, edges)
        cut = f", peak {100 * peaks[name]:.0f} %" if peaks[name] > top else ""
        dress(axes, f"{as_label(name)}\noverlap {100 * overlap(counts):.0f} %{cut}")
        axes.yaxis.grid(True, color=GRID, linewidth=0.8)
        axes.set_xlabel("distance between embeddings of length 1")
    row[0].set(xlim=(edges[0], edges[-1]), ylim=(0, top), ylabel="share of the pairs")
    row[0].yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")
    row[0].legend(frameon=False, fontsize=10, labelcolor=INK, title="pairs of", alignment="left")
    return save(figure, run / "distances.png")


def overlap(counts: Counts) -> float:
    """Σ_b min(p_b, n_b) for the shares p of positive and n of negative pairs by bin.

    Args:
        counts: [2, bins].

    Returns:
        From 0, if distances separate the two kinds, to 1, if their distributions are equal.

    Example:
        >>> overlap(np.array([[2, 2, 0], [0, 3, 9]]))
        0.25
    """
    return float(_shares(counts).min(0).sum())


def _shares(counts: Counts) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def _draw_pairs(axes: Axes, counts: Counts, edges: NDArray[np.float64]) -> None:
    kinds = (("one class", _RIGHT, "-"), ("two classes", _WRONG, (0, (4, 2))))
    for shares, (label, colour, style) in zip(_shares(counts), kinds, strict=True):
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.28)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, linestyle=style, label=label)


def _draw_image(axes: Axes, image: NDArray[np.uint8], x: float, y: float) -> None:
    """Draw an image in the middle of the tile at (x, y), as large as possible."""
    sides = np.array(image.shape[:2]) / max(image.shape[:2])
    top, left = np.array([y, x]) + (1 - sides) / 2
    extent = (left, left + sides[1], top + sides[0], top)
    axes.imshow(image.squeeze(2) if image.shape[2] == 1 else image, cmap="gray", vmin=0, vmax=255, extent=extent)


def _draw_frame(axes: Axes, x: float, y: float, right: bool) -> None:
    colour, style, mark = (_RIGHT, "-", "✓") if right else (_WRONG, (0, (2, 1)), "✗")
    low, high = -0.02, 1.02
    across, down = np.array([low, high, high, low, low]), np.array([low, low, high, high, low])
    axes.plot(x + across, y + down, color=colour, linestyle=style, linewidth=2.2)
    badge = {"boxstyle": "square,pad=0.12", "facecolor": colour, "edgecolor": "none"}
    axes.text(x + 0.95, y + 0.95, mark, fontsize=6.5, color="white", ha="center", va="center", bbox=badge)


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(x, y, text, **{"fontsize": 10, "parse_math": False} | style)


def _caption(found: SavedRetrieval) -> str:
    return (
        f"A query, then its nearest neighbours among {found.samples}: ✓ of its class, ✗ of another. Best child of "
        f"seed\u00a0{found.arrays['seed']}. Queries: spread over the classes; two with a wrong first neighbour, if any."
    )


def _short(name: str) -> str:
    """A class's name on a few lines."""
    return "\n".join(textwrap.wrap(name, _LETTERS, max_lines=_LINES, placeholder=" …"))
