"""Figures of a run folder: the metric of every child, and Φ, while training.

They are drawn from ``config.json``, ``arms.json``, ``metrics.jsonl`` and ``phi-<population>.npz``, without a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossalign.report.style import FRAME, GRID, INK, SOFT, as_label, dress, method_colours, new_figure, save
from lossalign.runs import Curves, PhiGroup, SavedRun, finite_mean, read_groups
from lossalign.runs.saved import Array

try:
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap, ListedColormap, Normalize
    from matplotlib.figure import SubFigure
    from matplotlib.ticker import FuncFormatter, MaxNLocator
except ImportError:
    pass  # ``new_figure`` reports it

_MOST_LINES = 60
_MOST_BANDS = 4
_MOST_LABELS = 12
_MOST_METHODS = 8
_BAND = "band: middle 80 % of the children"


def write_pictures(run: Path) -> list[Path]:
    """Draw every figure of the run folder ``run`` and return their paths."""
    return [curves_figure(run), phi_figure(run)]


def curves_figure(run: Path) -> Path:
    """Draw ``curves.png``: the metric of every child on the selection split while it trained, and at the end.

    Left: a thin line for each child (a band if a method has more than 60; neither in a comparison of more than eight
    methods, where colours repeat with dashed lines) and a strong line for each method's mean. Right, in the order of
    the curves: the last value of every child, the mean of every seed, and the mean of the method; the coloured names
    are the legend.

    Args:
        run: the run folder.

    Returns:
        The path of the figure.
    """
    read = SavedRun.read(run)
    methods = {name: Curves.read(read, name) for name in read.methods}
    colours = method_colours(read.methods, read.baselines, read.learners)
    figure = new_figure(
        f"{read.task}: {read.metric} on the selection split", height=max(4.8, 1.9 + 0.42 * len(methods))
    )
    left, right = figure.subplots(1, 2, width_ratios=(1.75, 1))
    _draw_curves(left, methods, colours, read.baselines)
    left.set_ylabel(f"{read.metric}, {read.direction}", parse_math=False)
    _draw_ends(right, methods, colours, read.percent)
    if read.percent:
        for axis in (left.yaxis, right.xaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    return save(figure, run / "curves.png")


def phi_figure(run: Path) -> Path:
    """Draw ``phi.png``: how the loss parameters Φ moved, as a mean over the children of the learning method.

    The method is the learner if the run has one, otherwise the first that is not a baseline. A group whose parameters
    belong to one class, or to none, is drawn as lines, coloured and labelled by class; a group of class pairs as
    matrices at up to four iterations. The title of a group says what a direction means; where only differences matter,
    values are centred. Groups that never moved are left out if another did.

    Args:
        run: the run folder.

    Returns:
        The path of the figure.
    """
    read = SavedRun.read(run)
    method = (*read.learners, *(name for name in read.methods if name not in read.baselines), *read.methods)[0]
    groups, iterations = read_groups(read, method)
    groups = [group for group in groups if group.moved] or groups
    children = groups[0].values.shape[1]
    heights = [3.4 if group.of_pairs else 3.8 for group in groups]
    title = f"{read.task}: Φ under {method}, mean of {children} {'child' if children == 1 else 'children'}"
    figure = new_figure(title, height=0.6 + sum(heights))
    rows = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, group in zip(rows, groups, strict=True):
        draw = _draw_matrices if group.of_pairs else _draw_lines
        draw(row, group, iterations)
    return save(figure, run / "phi.png")


def _draw_curves(axes: Axes, methods: dict[str, Curves], colours: dict[str, str], baselines: list[str]) -> None:
    crowded = len(methods) > _MOST_METHODS
    for name in () if crowded else sorted(methods, key=lambda name: name not in baselines):
        curves = methods[name]
        if curves.values.shape[1] > _MOST_LINES:
            _draw_band(axes, curves.iterations, curves.values, colours[name], alpha=0.15)
        else:
            axes.plot(curves.iterations, curves.values, color=colours[name], alpha=0.18, linewidth=0.7)
    drawn: set[str] = set()
    for name in (name for name in colours if name in methods):
        curves, colour = methods[name], colours[name]
        style, marker = "--" if colour in drawn else "-", "o" if len(methods[name].iterations) == 1 else ""
        drawn.add(colour)
        axes.plot(curves.iterations, curves.mean, color="white", linewidth=3.6, alpha=0.8, zorder=3)
        axes.plot(curves.iterations, curves.mean, style, color=colour, linewidth=2.2, marker=marker, zorder=4)
    banded = not crowded and any(curves.values.shape[1] > _MOST_LINES for curves in methods.values())
    dress(axes, f"while training ({_BAND})" if banded else "while training")
    _time_axis(axes, np.concatenate([curves.iterations for curves in methods.values()]))
    axes.set_ylim(*_late_limits(list(methods.values())))
    axes.yaxis.grid(True, color=GRID, linewidth=0.8)


def _draw_ends(axes: Axes, methods: dict[str, Curves], colours: dict[str, str], percent: bool) -> None:
    """One row for each method, highest value on top as in the curves: children, seeds, mean, and the mean in words."""
    means = {name: float(finite_mean(curves.last, axis=0)) for name, curves in methods.items()}
    order = sorted(methods, key=lambda name: (np.isnan(means[name]), -means[name]))
    for row, name in enumerate(order):
        curves, colour, mean = methods[name], colours[name], means[name]
        spread = ((np.arange(len(curves.last)) + 0.809) * 0.618034 % 1 - 0.5) * 0.36
        axes.scatter(curves.last, row + spread, s=9, color=colour, alpha=0.35, linewidths=0)
        seeds = curves.last_by_seed
        axes.scatter(seeds, np.full(len(seeds), row), marker="|", s=170, color=colour, linewidths=1.6)
        axes.scatter(mean, row, marker="D", s=52, color=colour, edgecolors="white", linewidths=1.2, zorder=4)
        text = "no value" if np.isnan(mean) else f"{100 * mean:.2f} %" if percent else f"{mean:#.4g}"
        axes.text(1.03, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=10, color=colour)
    last = max(curves.iterations[-1] for curves in methods.values())
    dress(axes, f"after {last:,.0f} iterations")
    axes.set_yticks(range(len(order)), [as_label(name) for name in order], parse_math=False, fontweight="bold")
    for label, name in zip(axes.get_yticklabels(), order, strict=True):
        label.set(color=colours[name], fontsize=8.5 if "\n" in label.get_text() else 11)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.4, -0.6)
    low, high, outside = _end_limits(list(methods.values()))
    axes.set_xlim(low, high)
    cut = f"\n{outside} {'child lies' if outside == 1 else 'children lie'} outside" if outside else ""
    axes.set_xlabel(f"• child   | mean of a seed   ◆ mean{cut}")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.grid(True, color=GRID, linewidth=0.8)


def _draw_lines(figure: SubFigure, group: PhiGroup, iterations: Array) -> None:
    axes = figure.subplots()
    mean = finite_mean(group.values, axis=1)
    count, few = mean.shape[1], mean.shape[1] <= _MOST_LABELS
    rank = group.classes[:, 0] if group.of_classes else np.arange(count)
    scale, colour_map = Normalize(rank.min(), max(rank.max(), rank.min() + 1)), _sequential()
    colours = colour_map(scale(rank))
    banded = count <= _MOST_BANDS and group.values.shape[1] > 1
    for k in range(count):
        if banded:
            _draw_band(axes, iterations, group.values[:, :, k], colours[k], alpha=0.09)
        marker = "o" if len(iterations) == 1 else ""
        width = 1.9 if few else 1.0 if count <= 100 else 0.5
        axes.plot(iterations, mean[:, k], color=colours[k], linewidth=width, marker=marker, zorder=3)
    dress(axes, _group_title(group) + (f" ({_BAND})" if banded and group.moved else ""))
    _time_axis(axes, iterations)
    axes.set_ylabel("Φ", rotation=0)
    axes.axhline(0, color=SOFT, linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
    axes.yaxis.grid(True, color=GRID, linewidth=0.8)
    if not group.moved:
        axes.set_ylim(min(mean.min(), 0) - 0.5, max(mean.max(), 0) + 0.5)
    if few:
        _label_ends(axes, iterations[-1], mean[-1], group.shown_labels, colours)
    else:
        _colour_bar(figure, axes, ScalarMappable(scale, colour_map), "class" if group.of_classes else "parameter")


def _draw_matrices(figure: SubFigure, group: PhiGroup, iterations: Array) -> None:
    size = int(group.classes.max()) + 1
    moments = np.unique(np.linspace(0, len(iterations) - 1, 4).round().astype(int))
    means = finite_mean(group.values[moments], axis=1)
    limit = max(float(np.abs(means).max()), 0.05)
    panels = figure.subplots(1, 4)
    for axes in panels[len(moments) :]:
        axes.set_visible(False)
    shown = list(panels[: len(moments)])
    scale, colour_map = Normalize(-limit, limit), colormaps["RdBu_r"].with_extremes(bad="#d4d4d4")
    i, j = group.classes.T
    for axes, moment, mean in zip(shown, moments, means, strict=True):
        matrix = np.full((size, size), np.nan)
        matrix[i, j] = matrix[j, i] = mean
        axes.imshow(matrix, cmap=colour_map, norm=scale, interpolation="nearest")
        dress(axes, f"iteration {iterations[moment]:,.0f}", size=10)
        axes.set_xlabel("class")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(min(size, 6), integer=True))
    shown[0].set_ylabel("class")
    figure.suptitle(_group_title(group), fontsize=12, color=INK, x=0.012, ha="left", parse_math=False)
    _colour_bar(figure, shown, ScalarMappable(scale, colour_map), "Φ")


def _draw_band(axes: Axes, x: Array, values: NDArray[Any], colour: str, alpha: float) -> None:
    low, high = _middle(values)
    axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)


def _middle(values: NDArray[Any]) -> tuple[Array, Array]:
    """The 10th and the 90th percentile [T] of what is finite in ``values`` [T, n]; NaN where nothing is.

    Example:
        >>> _middle(np.array([np.arange(11.0), [np.nan] * 11]))
        (array([ 1., nan]), array([ 9., nan]))
    """
    finite = np.where(np.isfinite(values), values, np.nan)
    middle = np.full((2, len(values)), np.nan)
    present = ~np.isnan(finite).all(1)
    middle[:, present] = np.nanpercentile(finite[present], (10, 90), axis=1)
    return middle[0], middle[1]


def _colour_bar(figure: SubFigure, axes: Axes | list[Axes], colours: ScalarMappable, label: str) -> None:
    bar = figure.colorbar(colours, ax=axes, pad=0.015, aspect=28, shrink=0.8 if isinstance(axes, list) else 1.0)
    bar.set_label(label, fontsize=10, color=SOFT, rotation=90 if len(label) > 1 else 0)
    bar.locator = MaxNLocator(8, integer=label != "Φ")
    bar.update_ticks()
    bar.ax.tick_params(labelsize=9, color=FRAME, labelcolor=SOFT)
    bar.outline.set_visible(False)


def _label_ends(axes: Axes, x: float, ends: Array, labels: list[str], colours: Array) -> None:
    """Write each line's label to the right of the axes, apart from its neighbours and tied to the line's end."""
    low, high = axes.get_ylim()
    for k, height in enumerate(_spread((ends - low) / (high - low), gap=0.062)):
        axes.annotate(
            labels[k],
            (x, ends[k]),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=10,
            color=colours[k],
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colours[k], "linewidth": 0.7, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def _spread(wanted: Array, gap: float) -> Array:
    """Heights near ``wanted``, in its order, at least ``gap`` apart, and within 0 and 1 if there is room.

    The mean of pushing crowded ones up and pushing them down, each of which keeps the gaps.

    Example:
        >>> _spread(np.array([0.5, 0.5, 0.1]), gap=0.125).tolist()
        [0.4375, 0.5625, 0.1]
    """
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    slack = wanted[order] - steps
    between = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) / 2 + steps
    placed: Array = np.empty(len(wanted))
    placed[order] = np.clip(between, steps, 1 - steps[::-1])
    return placed


def _late_limits(methods: list[Curves]) -> tuple[float, float]:
    """A range for the mean and the middle of every method's children after the first tenth of training."""
    late = [curves.values[len(curves.values) // 10 :] for curves in methods]
    shown = np.concatenate([np.concatenate([*_middle(values), finite_mean(values, axis=1)]) for values in late])
    shown = shown[np.isfinite(shown)]
    return _with_margin(float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)


def _end_limits(methods: list[Curves]) -> tuple[float, float, int]:
    """A range for the last values with every mean but without outliers, and the number of children outside."""
    last = np.concatenate([curves.last for curves in methods])
    last = last[np.isfinite(last)]
    if not len(last):
        return 0.0, 1.0, 0
    first, third = np.percentile(last, (25, 75))
    near = last[(last >= first - 3 * (third - first)) & (last <= third + 3 * (third - first))]
    seeds = np.concatenate([curves.last_by_seed for curves in methods])
    low, high = min(near.min(), np.nanmin(seeds)), max(near.max(), np.nanmax(seeds))
    return *_with_margin(float(low), float(high)), int(((last < low) | (last > high)).sum())


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.06
    return low - margin, high + margin


def _sequential() -> Colormap:
    """Viridis without its palest end, which is hard to see on white."""
    return ListedColormap(colormaps["viridis"](np.linspace(0, 0.87, 256)))


def _group_title(group: PhiGroup) -> str:
    """``offsets, centred: lower favours the class``."""
    name = f"{group.name}, centred" if group.relative else group.name
    if not group.moved:
        return f"{name}: did not move"
    return f"{name}: {group.reading}" if group.reading else name


def _time_axis(axes: Axes, iterations: Array) -> None:
    axes.set_xlabel("iteration")
    first, last = iterations.min(), iterations.max()
    if first == last:
        axes.set_xticks([last])
    else:
        axes.set_xlim(min(first, 0), last)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
