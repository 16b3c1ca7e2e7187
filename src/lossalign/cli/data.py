"""``lossalign data list | fetch | check``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn

from lossalign.core import InputError
from lossalign.data import check, fetch, known


@dataclass(frozen=True, kw_only=True)
class List:
    """Which data sets there are, and which lie in the data folder."""

    data: Path = Path("data")
    """The data folder."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Download a data set, verify it and unpack it; an interrupted download goes on where it stopped."""

    name: tyro.conf.Positional[str]
    """Its name, as ``lossalign data list`` gives it."""
    data: Path = Path("data")
    """The data folder."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Compare a data set on disk with what was published."""

    name: tyro.conf.Positional[str]
    """Its name, as ``lossalign data list`` gives it."""
    data: Path = Path("data")
    """The data folder."""


def main(args: list[str], console: Console) -> int:
    """Run one of the three."""
    chosen: List | Fetch | Check = tyro.cli(
        List | Fetch | Check,
        prog="lossalign data",
        description="Data sets: list, fetch, check.",
        args=args,
    )
    if isinstance(chosen, List):
        console.print("digits: in the package", highlight=False)
        for name in known():
            state = "complete" if not check(name, chosen.data) else f"not in {chosen.data}"
            console.print(f"{name}: {state}", highlight=False)
        return 0
    if isinstance(chosen, Fetch):
        _fetch(chosen, console)
        return 0
    problems = check(chosen.name, chosen.data)
    if problems:
        raise InputError(f"{chosen.name} in {chosen.data}: {'; '.join(problems)}")
    console.print(f"{chosen.name} in {chosen.data}: complete, as published.", highlight=False)
    return 0


def _fetch(chosen: Fetch, console: Console) -> None:
    with Progress(*Progress.get_default_columns()[:2], DownloadColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(chosen.name, total=None)
        fetch(chosen.name, chosen.data, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(f"{chosen.name} is in {chosen.data}.", highlight=False)
