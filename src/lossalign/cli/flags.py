"""The flags of ``train`` and ``compare``: one for every key of a config, in the config's sections."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lossalign.cli.parser import WIDTH, Parser
from lossalign.core import InputError
from lossalign.experiments import KEYS, SECTIONS, Config, Key, by_key, check_key, compared, configure, is_recipe
from lossalign.experiments.methods.names import GUARDED, REFITTED
from lossalign.runs import Existing

COMMANDS = {
    "train": "Train networks on a task with a loss that is adapted to the metric.",
    "compare": "Compare methods on paired seeds: a table with 95 % intervals.",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A parsed command line."""

    config: Config
    out: Path
    existing: Existing
    final: bool
    json: bool
    print_config: bool


def parse(command: str, task: str, args: list[str]) -> Asked:
    """The flags of ``lossalign <command> <task>``."""
    make = compared if command == "compare" else configure
    wants_help = bool({"-h", "--help"} & set(args))
    parser = _parser(command, task, by_key(make(task)) if wants_help else {})
    found, unknown = parser.parse_known_args(args)
    if unknown:
        _refuse(unknown[0])
    given: dict[str, Any] = {name: value for name, value in vars(found).items() if name in KEYS}
    config = make(task, given)
    more = GUARDED * hasattr(found, "guard") + REFITTED * hasattr(found, "refit")
    if more:
        texts = [spec.text for spec in config.methods.specs]
        config = make(task, {**given, "methods": list(dict.fromkeys((*texts, *more)))})
    return Asked(
        config=config,
        out=getattr(found, "out", None) or default_out(command, task),
        existing=_existing(hasattr(found, "resume"), hasattr(found, "overwrite")),
        final=hasattr(found, "final"),
        json=hasattr(found, "json"),
        print_config=hasattr(found, "print_config"),
    )


def _existing(resume: bool, overwrite: bool) -> Existing:
    if resume and overwrite:
        raise InputError("resume, overwrite: choose one of the two.")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


def _refuse(word: str) -> NoReturn:
    """Raise ``InputError`` for an argument that belongs to no flag."""
    if not word.startswith("--"):
        raise InputError(f"{word!r} belongs to no flag; write --flag value.")
    name = word[2:].partition("=")[0].replace("-", "_")
    check_key(name.removeprefix("no_"), "flag", as_flag)
    raise InputError(f"flag {word!r}: write {as_flag(name.removeprefix('no_'))} true or false.")


def as_flag(key: str) -> str:
    """The flag of a key.

    Example:
        >>> as_flag("validation_per_class")
        '--validation-per-class'
    """
    return f"--{key.replace('_', '-')}"


def default_out(command: str, task: str) -> Path:
    """The run folder if none is given.

    Example:
        >>> default_out("train", "table:my data/churn.csv").as_posix()
        'runs/train-table-churn'
        >>> default_out("compare", "recipes/cifar10-lt.toml").as_posix()
        'runs/compare-cifar10-lt'
    """
    kind, _, path = task.partition(":")
    name = Path(task).stem if is_recipe(task) else f"{kind}-{Path(path).stem}" if path else kind
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]+", "-", f"{command}-{name}")


def _parser(command: str, task: str, defaults: Mapping[str, Any]) -> Parser:
    parser = Parser(f"lossalign {command} {task}", COMMANDS[command], usage="%(prog)s [--FLAG VALUE …]")
    folder = parser.add_argument_group("run folder and output")
    folder.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=_text("Folder for all files of the run.", default_out(command, task).as_posix()),
    )
    for flag, text in (
        ("resume", "Resume the run in the run folder."),
        ("overwrite", "Delete the run in the run folder and start again."),
        ("final", "Score the test split, which can be done once; otherwise the selection split is scored."),
        ("json", "Print the result as JSON instead of a table."),
        ("print-config", "Print a recipe file of this run, and exit without training."),
    ):
        folder.add_argument(f"--{flag}", action="store_true", help=text)
    about = parser.add_argument_group("metric")
    _add(about, KEYS["metric"], defaults)
    for section, cls in SECTIONS.items():
        group = parser.add_argument_group(section, textwrap.fill(" ".join((cls.__doc__ or "").split()), WIDTH - 2))
        for key in KEYS.values():
            if key.section == section:
                _add(group, key, defaults)
        if section == "methods":
            group.add_argument(
                "--guard",
                action="store_true",
                help="Train fixed too; keep it where it beats ala on the selection split.",
            )
            group.add_argument(
                "--refit",
                action="store_true",
                help="After training, train again on the train and validation splits, with the Φ that ala learned.",
            )
    return parser


def _add(group: argparse._ArgumentGroup, key: Key, defaults: Mapping[str, Any]) -> None:
    text = _text(key.doc, defaults.get(key.name, ""))
    if key.many:
        group.add_argument(as_flag(key.name), nargs="+", metavar=key.placeholder, help=text)
    elif key.hint is bool:
        group.add_argument(as_flag(key.name), nargs="?", const="true", metavar="true|false", help=text)
        off = f"--no-{key.name.replace('_', '-')}"
        group.add_argument(off, dest=key.name, action="store_const", const="false", help=argparse.SUPPRESS)
    else:
        group.add_argument(as_flag(key.name), metavar=key.placeholder, help=text)


def _text(doc: str, default: Any) -> str:
    """The help of one flag, with its default."""
    shown = {True: "true", False: "false", None: "none"}.get(default, default) if not _is_number(default) else default
    shown = " ".join(map(str, shown)) if isinstance(shown, tuple) else shown
    return f"{doc.rstrip('.')}. [{shown}]".replace("%", "%%")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
