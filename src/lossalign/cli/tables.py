"""The table of a comparison, in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from lossalign.experiments import Result
from lossalign.experiments.statistics import Paired


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
        >>> difference(Paired(mean=0.1, difference=-0.03, half_width=0.01, wins=3, policies=3), percent=True)
        '-3.00 ± 1.00'
    """
    if row.difference is None:
        return "–"
    scale = 100 if percent else 1
    text = f"{scale * row.difference:+.2f}" if percent else f"{row.difference:+.4g}"
    if row.half_width is None:
        return text
    return f"{text} ± {scale * row.half_width:.2f}" if percent else f"{text} ± {row.half_width:.2g}"


def result_table(result: Result) -> Table:
    """One row for each method."""
    compared = len(result.rows) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold")
    middle = (f"against {result.baseline}", "wins", "p") if compared else ()
    trained = ("train",) if result.train_error else ()
    for column in ("selected", *middle, "last", *trained):
        table.add_column(column, justify="right", no_wrap=True)
    for method, row in result.rows.items():
        wins = "–" if row.wins is None else f"{row.wins}/{row.policies}"
        against = (difference(row, result.percent), wins, "–" if row.p is None else f"{row.p:.3f}") if compared else ()
        error = result.train_error.get(method)
        train = ("–" if error is None else f"{100 * error:.1f}",) if result.train_error else ()
        cells = (in_units(row.mean, result.percent), *against, in_units(result.last[method].mean, result.percent))
        table.add_row(method, *cells, *train, style="bold" if method == "ala" else "")
    return table


def heading(result: Result) -> str:
    """What the table shows."""
    unit, way = " (%)" if result.percent else "", "higher" if result.higher_is_better else "lower"
    policies = next(iter(result.rows.values())).policies
    number = "1 policy" if policies == 1 else f"{policies} policies"
    return (
        f"{result.metric.replace('-', ' ')}{unit} on the {result.split} split, {way} is better; mean over {number}.\n"
        "selected: weights picked on the selection split; last: weights at the end"
        + ("; train: error % on training data" if result.train_error else "")
        + ("; ± 95 % of the paired difference; p after Holm." if policies > 1 and len(result.rows) > 1 else ".")
    )


def verdict(result: Result) -> str | None:
    """One honest sentence on the learning method: won, lost, or neither."""
    row = result.rows.get("ala")
    if row is None or row.difference is None:
        return None
    against, unit = f"against {result.baseline}", " points" if result.percent else ""
    if row.half_width is None:
        return f"ala: {difference(row, result.percent)}{unit} {against}, one policy: no interval, so no claim."
    gain = row.difference if result.higher_is_better else -row.difference
    word = "better" if gain > row.half_width else "worse" if gain < -row.half_width else "no clear difference"
    corrected = "" if row.p is None or len(result.rows) < 3 else f" (p = {row.p:.3f} after Holm's correction)"
    return f"ala: {difference(row, result.percent)}{unit} {against}: {word}{corrected}.{_best_rival(result, unit)}"


def _best_rival(result: Result, unit: str) -> str:
    """How the best of the others, but for ``fixed`` and what is made of ``ala``, stands to it."""
    rivals = [name for name in result.against_ala if name not in ("ala", result.baseline) and "ala" not in name]
    if not rivals:
        return ""
    best = (max if result.higher_is_better else min)(rivals, key=lambda name: result.rows[name].mean)
    return f" Best rival: {best}, {difference(result.against_ala[best], result.percent)}{unit} against ala."


def notes(result: Result) -> list[str]:
    """How sure the gain is over pairs, what adapting costs, which children were lost, and what the guard keeps."""
    said = []
    row = result.over_pairs.get("ala")
    if row is not None and row.difference is not None:
        gain = f"{difference(row, result.percent)}{' points' if result.percent else ''} against {result.baseline}"
        said.append(f"ala over the test set's {row.policies:,} pairs instead of policies: {gain}.")
    if "ala" in result.cost:
        said.append(f"Time of ala over training and selecting alone: {result.cost['ala']:.2f}.")
    for method, number in result.failed.items():
        said.append(f"{method}: {number} children failed (their loss or outputs were not finite).")
    for method, number in result.collapsed.items():
        said.append(f"{method}: {number} of {result.children[method]} children collapsed to a point.")
    if result.kept:
        adapting = sum(method == "ala" for method in result.kept.values())
        said.append(f"The guard keeps adapting for {adapting} of {len(result.kept)} policies.")
    return said


def print_result(result: Result, console: Console) -> None:
    """The table, the verdict, whether there was anything to learn, and the files."""
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
        console.print("The selection split picked these weights; score the test split once with --final.")
    for path in result.files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)
    if not any(path.suffix == ".png" for path in result.files):
        console.print("No pictures: they need matplotlib, `pip install 'lossalign\\[report]'`.")
