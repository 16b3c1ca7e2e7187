"""``lossalign data list | fetch | check``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn

from lossalign.cli.parser import choose
from lossalign.core import InputError
from lossalign.data import check, fetch, known

VERBS = {
    "list": "List the data sets, and which are complete in the data folder.",
    "fetch": "Download, verify and unpack a data set; an interrupted download is resumed.",
    "check": "Verify a data set on disk.",
}


def main(args: list[str], console: Console) -> int:
    """Run one of the three commands."""
    chosen = choose("data", VERBS, args)
    if chosen is None:
        return 0
    verb, parser, rest = chosen
    if verb != "list":
        parser.add_argument("name", help="Name of the data set, see `lossalign data list`.")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="FOLDER", help="The data folder. [data]")
    given = parser.parse_args(rest)
    if verb == "list":
        _list(given.data, console)
    elif verb == "fetch":
        _fetch(given.name, given.data, console)
    else:
        _check(given.name, given.data, console)
    return 0


def _list(folder: Path, console: Console) -> None:
    console.print("digits: part of the package", highlight=False)
    for name in known():
        state = "complete" if not check(name, folder) else f"not in {folder}"
        console.print(f"{name}: {state}", highlight=False)


def _fetch(name: str, folder: Path, console: Console) -> None:
    with Progress(*Progress.get_default_columns()[:2], DownloadColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(name, total=None)
        fetch(name, folder, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(f"{name} is in {folder}.", highlight=False)


def _check(name: str, folder: Path, console: Console) -> None:
    problems = check(name, folder)
    if problems:
        raise InputError(f"{name} in {folder}: {'; '.join(problems)}")
    console.print(f"{name} in {folder}: complete, as published.", highlight=False)
