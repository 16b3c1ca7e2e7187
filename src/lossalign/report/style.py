"""The common style of all figures: colours, frames, titles."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from lossalign.core.errors import InputError

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    _MISSING: ImportError | None = None
except ImportError as error:
    _MISSING = error

INK, SOFT, FRAME, GRID = "#222222", "#5f5f5f", "#bbbbbb", "#e4e4e4"
_BASELINE = "#7f7f7f"
_LETTERS = 30
# Okabe and Ito's colours without yellow and black, then three of Paul Tol's
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#999933")


def method_colours(methods: list[str], baselines: list[str], learners: list[str]) -> dict[str, str]:
    """Grey for the first baseline; the first colour for the first learner, so that it is the same in every figure."""
    grey = [name for name in baselines if name in methods][:1]
    first = [name for name in learners if name in methods][:1]
    others = [*first, *(name for name in methods if name not in grey + first)]
    shown = {name: _COLOURS[k % len(_COLOURS)] for k, name in enumerate(others)}
    return dict.fromkeys(grey, _BASELINE) | shown


def as_label(method: str) -> str:
    """A method's name in figures: a policy file is shortened to its folder and name; a long name takes two lines.

    Example:
        >>> print(as_label("ala:policy=runs/lfw/policy-302.safetensors,freeze=true,children=2"))
        ala:policy=lfw/policy-302,
        freeze=true, children=2
    """
    short = re.sub(r"(?<=:policy=)(?:[^,]*/)?([^,/]*/[^,/]*)\.safetensors", r"\1", method)
    if len(short) <= _LETTERS:
        return short
    return textwrap.fill(short.replace(",", ", "), _LETTERS, max_lines=2, placeholder=" …", break_on_hyphens=False)


def new_figure(title: str, height: float) -> Figure:
    """An empty figure of the usual width."""
    if _MISSING is not None:
        raise InputError("Figures need matplotlib; install it with: pip install 'lossalign[report]'.") from _MISSING
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(11.5, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, color=INK, fontweight="bold", parse_math=False)
    return figure


def dress(axes: Axes, title: str, size: int = 12) -> None:
    """Set the title on the left, grey labels, and no frame except the two axes."""
    axes.set_title(title, fontsize=size, color=INK, loc="left", parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(fontsize=10, color=SOFT)
    axes.tick_params(labelsize=10, color=FRAME, labelcolor=SOFT)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=FRAME)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure and return its path."""
    figure.savefig(path, dpi=150)
    return path
