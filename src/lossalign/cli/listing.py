"""``lossalign list [methods | metrics | losses | models | tasks | policies]``: every name, with one line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lossalign.core import InputError, Registry
from lossalign.experiments import METHODS, TASKS
from lossalign.losses.registry import LOSSES
from lossalign.metrics.registry import METRICS
from lossalign.models.registry import ENDINGS, MODELS
from lossalign.runs import find_policies

REGISTRIES: dict[str, tuple[Registry[Any], ...]] = {
    "tasks": (TASKS,),
    "methods": (METHODS,),
    "metrics": (METRICS,),
    "losses": (LOSSES,),
    "models": (MODELS, ENDINGS),
}
POLICIES = "policies"
PRETRAINED = "comes with lossalign; trained on long-tailed digits, moves the offsets of the loss aligned"


def main(args: list[str], console: Console) -> int:
    """List one category, or all."""
    known = (*REGISTRIES, POLICIES)
    if {"-h", "--help"} & set(args):
        console.print(f"usage: lossalign list [{' | '.join(known)}]", markup=False, highlight=False)
        return 0
    for name in args:
        if name not in known:
            raise InputError(f"list {name!r}: choose from {', '.join(known)}.")
    for name in args or known:
        console.print(_table(name, list(_rows(name))))
    return 0


def _rows(name: str) -> Iterator[tuple[str, str]]:
    """Names with their summaries."""
    for registry in REGISTRIES.get(name, ()):
        yield from ((each, registry.summary(each)) for each in registry)
        if registry.hint:
            yield "…", f"or {registry.hint}"
    if name == POLICIES:
        yield "pretrained", PRETRAINED
        yield from ((path.as_posix(), f"learned by {task}") for path, task in find_policies(Path("runs")))


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False, pad_edge=False
    )
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
