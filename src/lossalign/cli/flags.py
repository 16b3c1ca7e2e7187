"""The flags of ``train`` and ``compare``: every field of a run, with the task's own recipe as defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Suppress

from lossalign.core import InputError
from lossalign.experiments import RunConfig, recipe_for
from lossalign.experiments.folder import Existing
from lossalign.experiments.recipes import is_file, read_recipe

COMPARED = (
    "fixed",
    "deferred-reweighting",
    "logit-adjustment",
    "proportional-rule",
    "post-hoc-offsets",
    "random-walk",
    "evolution",
    "ala",
)
RETRIEVED = ("fixed", "triplet", "margin", "contrastive", "multi-similarity", "random-walk", "evolution", "ala")
POLICIES = 5


@dataclass(frozen=True, kw_only=True)
class Flags(RunConfig):
    """A run, and where it goes."""

    task: Suppress[str]
    source: Suppress[str]
    out: Path
    """The run folder."""
    resume: bool = False
    """Go on with the run in that folder."""
    overwrite: bool = False
    """Replace the run in that folder."""
    guard: bool = False
    """Train as many children with a fixed loss beside, and keep what the selection split prefers."""
    refit: bool = False
    """Train again on train and reward split together, under the learned Φ, and keep those weights."""
    final: bool = False
    """Score the test split, once; otherwise the selection split."""
    json: bool = False
    """Print the result as JSON instead of a table."""

    def __post_init__(self) -> None:
        """Nothing is checked here: tyro would word the error; ``config`` checks."""

    def config(self) -> RunConfig:
        """The run alone: the task's recipe with the flags that differ from it."""
        given = {field.name: getattr(self, field.name) for field in fields(RunConfig)}
        more: tuple[str, ...] = ("ala", "fixed", "guarded-ala") if self.guard else ()
        more += ("ala", "refit-ala") if self.refit else ()
        given["methods"] = tuple(dict.fromkeys((*self.methods, *more)))
        kind = {"preset": self.preset} | ({} if self.embedding is None else {"loss": self.loss})
        recipe = recipe_for(self.task, **kind)
        return recipe_for(self.task, **kind | {name: v for name, v in given.items() if v != getattr(recipe, name)})

    def existing(self) -> Existing:
        """What to do with a folder that exists."""
        if self.resume and self.overwrite:
            raise InputError("resume, overwrite: choose one of the two.")
        return "resume" if self.resume else "overwrite" if self.overwrite else "refuse"


def default_out(command: str, task: str) -> Path:
    """``runs/compare-digits-lt``.

    Example:
        >>> default_out("train", "table:my data/churn.csv").as_posix()
        'runs/train-table-churn'
        >>> default_out("compare", "recipes/cifar10-lt.toml").as_posix()
        'runs/compare-cifar10-lt'
    """
    kind, _, path = task.partition(":")
    name = Path(task).stem if is_file(task) else f"{kind}-{Path(path).stem}" if path else kind
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]+", "-", f"{command}-{name}")


def parse(command: str, task: str, args: list[str]) -> Flags:
    """The flags behind ``lossalign <command> <task>``."""
    asked = read_recipe(task) if is_file(task) else {"task": task}
    words = [word for arg in args for word in arg.split("=", 1)]
    kind = {name: words[words.index(f"--{name}") + 1] for name in ("loss", "preset") if f"--{name}" in words[:-1]}
    embeds = recipe_for(**{**asked, **kind}).embedding is not None
    usual: dict[str, Any] = {"methods": RETRIEVED if embeds else COMPARED, "seeds": POLICIES}
    recipe = recipe_for(**{**(usual if command == "compare" else {}), **asked, **kind})
    default = Flags(**vars(recipe), out=default_out(command, task))
    about = {
        "train": f"Train children on {task} with a loss that follows the metric.",
        "compare": f"Compare methods on {task}: paired seeds, one policy as the unit, 95 % intervals.",
    }
    return tyro.cli(Flags, prog=f"lossalign {command} {task}", description=about[command], default=default, args=args)
