"""The table of a comparison, in a terminal."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

from rich import box
from rich.console import Console
from rich.table import Table

from lossalign.evaluation import Result, difference, in_units

LEVEL = 0.05
"""Largest p, after Holm's correction, at which a difference is called one."""


def result_table(result: Result) -> Table:
    """One row for each method."""
    compared = len(result.rows) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    middle = (f"against {result.baseline}", "wins", "p") if compared else ()
    trained = ("train",) if result.train_error else ()
    several = ("networks",) if any(number > 1 for number in result.networks.values()) else ()
    for column in ("selected", *middle, "last", *trained, *several):
        table.add_column(column, justify="right", no_wrap=True)
    for method, row in result.rows.items():
        wins = "–" if row.wins is None else f"{row.wins}/{row.seeds}"
        against = (difference(row, result.percent), wins, "–" if row.p is None else f"{row.p:.3f}") if compared else ()
        error = result.train_error.get(method)
        train = ("–" if error is None else f"{100 * error:.1f}",) if result.train_error else ()
        cells = (in_units(row.mean, result.percent), *against, in_units(result.last[method].mean, result.percent))
        number = (str(result.networks[method]),) if several else ()
        table.add_row(method, *cells, *train, *number, style="bold" if method == result.learner else "")
    return table


def heading(result: Result) -> str:
    """The caption of the table."""
    unit, way = " (%)" if result.percent else "", "higher" if result.higher_is_better else "lower"
    seeds = next(iter(result.rows.values())).seeds
    number = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return (
        f"{result.metric.replace('-', ' ')}{unit} on the {result.split} split, {way} is better; mean over {number}.\n"
        "selected: weights picked on the selection split; last: weights at the end"
        + ("; train: error % on training data" if result.train_error else "")
        + ("; networks: how many predict together" if max(result.networks.values()) > 1 else "")
        + ("; ± 95 % of the paired difference; p after Holm." if seeds > 1 and len(result.rows) > 1 else ".")
    )


def verdict(result: Result) -> str | None:
    """One sentence on the learner: better or worse if Holm's corrected p is below 0.05, else no clear difference."""
    name = result.learner
    row = result.rows.get(name) if name is not None else None
    if row is None or row.difference is None:
        return None
    against, unit = f"against {result.baseline}", " points" if result.percent else ""
    shown = f"{name}: {difference(row, result.percent)}{unit} {against}"
    if row.half_width is None:
        return f"{shown}, one seed: no interval, so no claim."
    gain = row.difference if result.higher_is_better else -row.difference
    clear = row.p is not None and row.p < LEVEL
    word = "no clear difference" if not clear else "better" if gain > 0 else "worse"
    corrected = "" if row.p is None or len(result.rows) < 3 else f" (p = {row.p:.3f} after Holm's correction)"
    return f"{shown}: {word}{corrected}.{_best_rival(result, unit)}"


def _best_rival(result: Result, unit: str) -> str:
    """How the best rival compares with the learner."""
    best = result.best_rival
    if best is None:
        return ""
    gap = difference(result.against_learner[best], result.percent)
    number = result.networks[best]
    size = f" ({number} networks)" if number > 1 else ""
    return f" Best rival: {best}{size}, {gap}{unit} against {result.learner}."


def notes(result: Result) -> list[str]:
    """The gain over pairs, the cost of adapting, failed children, and what the guard keeps."""
    said, learner = [], result.learner
    row = result.over_pairs.get(learner) if learner else None
    if row is not None and row.difference is not None:
        gain = f"{difference(row, result.percent)}{' points' if result.percent else ''} against {result.baseline}"
        said.append(f"{learner} with an interval over the test set's {row.seeds:,} pairs instead of seeds: {gain}.")
    if learner in result.cost:
        said.append(f"Time of {learner}, relative to training and selecting alone: {result.cost[learner]:.2f}.")
    for method, number in result.failed.items():
        said.append(f"{method}: {number} children failed (their loss or outputs were not finite).")
    for method, number in result.collapsed.items():
        said.append(f"{method}: {number} of {result.children[method]} children collapsed to a point.")
    if result.kept:
        times = ", ".join(f"{method} for {n}" for method, n in Counter(result.kept.values()).most_common())
        said.append(f"The guard keeps {times} of {len(result.kept)} seeds.")
        if result.split == "selection":
            said.append("It chose on the selection split, which is scored here: its row is too good; use --final.")
    return [*said, *result.said]


def print_result(result: Result, console: Console) -> None:
    """Print the table, the verdict, the explained reward, and the files."""
    console.print(heading(result), highlight=False, markup=False)
    console.print(result_table(result))
    sentence = verdict(result)
    for line in [*([sentence] if sentence else []), *notes(result)]:
        console.print(line, highlight=False, markup=False)
    if result.learnable is not None:
        found = result.learnable
        console.print(
            f"R² of reward on actions along the random walk: {found.r2:.3f} (by chance {found.null:.3f}, "
            f"{found.decisions:,} decisions).",
            highlight=False,
        )
    if result.split == "selection":
        console.print("The selection split also picked these weights; score the test split once with --final.")
    for path in result.files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)
    if find_spec("matplotlib") is None:
        console.print("No figures: they need matplotlib, `pip install 'lossalign[report]'`.", markup=False)
