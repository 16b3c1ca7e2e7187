"""A run folder as arrays, for figures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossalign.core import RunFolderError
from lossalign.core.errors import UNREADABLE
from lossalign.experiments import Role
from lossalign.runs.folder import ARMS, METRICS, RETRIEVAL, RunFolder

Array = NDArray[np.float64]

MOST_STEPS = 2000
"""A picture shows no more steps: it has fewer pixels."""
_PLACE = re.compile(rb'\{"population": ("(?:[^"\\]|\\.)*"), "step": (\d{1,15}),')
"""How every line of a log begins."""


@dataclass(frozen=True)
class SavedRun:
    """``config.json``, ``arms.json`` and ``metrics.jsonl``, its lines by population in the order of their steps."""

    path: Path
    config: dict[str, Any]
    arms: list[dict[str, Any]]
    steps: dict[str, list[dict[str, Any]]]

    @classmethod
    def read(cls, path: Path) -> SavedRun:
        """Read the folder at ``path``; a last line that was cut short by a stop is left out."""
        folder = RunFolder(path)
        config, arms = folder.about(), folder.read(ARMS)
        steps = _read_steps(path / METRICS)
        try:
            silent = sorted({arm["population"] for arm in arms} - set(steps))
        except UNREADABLE as error:
            raise RunFolderError(f"{path / ARMS} does not hold the arms of a run ({error}); restore it.") from error
        if silent or not arms:
            raise RunFolderError(f"{path} has no finished step of {silent or 'any arm'}; train it first.")
        return cls(path, config, arms, {name: [by[step] for step in sorted(by)] for name, by in steps.items()})

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.config["task"]["name"])

    @property
    def metric(self) -> str:
        """The metric's name, in words."""
        return str(self.config["metric"]).replace("-", " ").replace("_", " ")

    @property
    def direction(self) -> str:
        """Whether higher or lower is better, in words."""
        return "higher is better" if self.config["higher_is_better"] else "lower is better"

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the arms; those that leave out a fold only serve a decision."""
        return list(dict.fromkeys(arm["method"] for arm in self.arms if arm.get("without") is None))

    @property
    def baselines(self) -> list[str]:
        """Methods that the others are compared with."""
        return with_role(self.arms, "baseline")

    @property
    def learners(self) -> list[str]:
        """Methods that learn a policy, those without options of their own first."""
        return with_role(self.arms, "learner")

    @property
    def percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return bool(self.config["percent"])

    def arms_of(self, method: str) -> list[dict[str, Any]]:
        """The arms of ``method``, one for each seed."""
        return [arm for arm in self.arms if arm["method"] == method]

    def iterations(self, population: str) -> Array:
        """The iteration at which each step of ``population`` ended [T]."""
        return _numbers([entry["iteration"] for entry in self.steps[population]])


def with_role(arms: list[dict[str, Any]], role: Role) -> list[str]:
    """The methods of a role, those without options of their own first."""
    found = {arm["method"]: not arm["plain"] for arm in arms if arm["role"] == role}
    return sorted(found, key=lambda name: found[name])


@dataclass(frozen=True)
class SavedRetrieval:
    """``retrieval.npz`` as arrays, with task and metric of the run."""

    task: str
    metric: str
    percent: bool
    baselines: list[str]
    learners: list[str]
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def read(cls, path: Path) -> SavedRetrieval:
        """Read the folder of a finished run of metric learning."""
        folder = RunFolder(path)
        config, arms = folder.about(), folder.read(ARMS)
        if not (path / RETRIEVAL).exists():
            raise RunFolderError(f"{path} has no {RETRIEVAL}; give the folder of a finished run of metric learning.")
        return cls(
            task=config["task"]["name"],
            metric=config["metric"].replace("-", " "),
            percent=bool(config["percent"]),
            baselines=with_role(arms, "baseline"),
            learners=with_role(arms, "learner"),
            arrays=folder.arrays(path / RETRIEVAL),
        )

    @property
    def methods(self) -> list[str]:
        """The methods that are shown."""
        names: list[str] = self.arrays["methods"].tolist()
        return names

    @property
    def has_images(self) -> bool:
        """Whether the inputs are images."""
        return "images" in self.arrays

    @property
    def samples(self) -> str:
        """The samples that were used, in words."""
        samples, of = int(self.arrays["samples"]), int(self.arrays["of"])
        number = f"the {of:,}" if samples == of else f"{samples:,} of the {of:,}"
        return f"{number} samples of the {self.arrays['split']} split"

    def score(self, method: int) -> str:
        """The metric of a method, in words."""
        value = float(self.arrays["scores"][method])
        if np.isnan(value):
            return f"{self.metric} has no value"
        return f"{self.metric} {100 * value:.1f} %" if self.percent else f"{self.metric} {value:.4g}"


@dataclass(frozen=True)
class Curves:
    """One method: iterations [T], the selection-split metric of its children [T, n], and their seeds [n]."""

    iterations: Array
    values: Array
    seeds: NDArray[np.int64]

    @classmethod
    def read(cls, run: SavedRun, method: str) -> Curves:
        """All children of ``method`` over all seeds; NaN where a population has no value at an iteration."""
        arms = run.arms_of(method)
        iterations = np.unique(np.concatenate([run.iterations(arm["population"]) for arm in arms]))
        columns = []
        for arm in arms:
            rows = slice(arm["start"], arm["start"] + arm["children"])
            values = np.full((len(iterations), arm["children"]), np.nan)
            at = np.searchsorted(iterations, run.iterations(arm["population"]))
            values[at] = [_numbers(entry["selection"][rows]) for entry in run.steps[arm["population"]]]
            columns.append(values)
        seeds = np.repeat([arm["seed"] for arm in arms], [arm["children"] for arm in arms])
        return cls(iterations, np.concatenate(columns, 1), seeds)

    @property
    def mean(self) -> Array:
        """The mean over children [T]."""
        return finite_mean(self.values, axis=1)

    @property
    def last(self) -> Array:
        """The last value of every child [n]."""
        return self.values[-1, :]

    @property
    def last_by_seed(self) -> Array:
        """The mean of the last values of every seed's children [seeds]."""
        return np.array([finite_mean(self.last[self.seeds == seed], axis=0) for seed in np.unique(self.seeds)])


@dataclass(frozen=True)
class PhiGroup:
    """One group of loss parameters: values [T, n, p], labels [p] and the classes they belong to [p, 2].

    Values of a group in which only differences matter (``relative``) are centred at every step. ``reading`` says what
    a direction means.
    """

    name: str
    values: NDArray[np.float32]
    labels: list[str]
    classes: NDArray[np.int64]
    class_names: list[str]
    relative: bool
    reading: str

    @property
    def of_classes(self) -> bool:
        """Whether every parameter belongs to classes."""
        return bool((self.classes >= 0).all())

    @property
    def of_pairs(self) -> bool:
        """Whether some parameter belongs to two classes."""
        return bool((self.classes[:, 0] != self.classes[:, 1]).any())

    @property
    def shown_labels(self) -> list[str]:
        """The labels, with the name of the class where a parameter belongs to one."""
        if not self.of_classes or self.of_pairs:
            return self.labels
        return [self.class_names[i] for i in self.classes[:, 0].tolist()]

    @property
    def moved(self) -> bool:
        """Whether any child's Φ ever left its start."""
        return bool((self.values != self.values[:1]).any())


def read_groups(run: SavedRun, method: str) -> tuple[list[PhiGroup], Array]:
    """The groups of Φ of all children of ``method``, and the iteration of each of their T values [T]."""
    arms = run.arms_of(method)
    folder = RunFolder(run.path)
    saved = {arm["family"]: folder.arrays(folder.phi(arm["family"])) for arm in arms}
    parts = [saved[a["family"]]["phi"][:, a["family_start"] : a["family_start"] + a["children"]] for a in arms]
    length = min(len(part) for part in parts)
    if length == 0:
        raise RunFolderError(f"{run.path} has no Φ of {method} yet; train it first.")
    shown = evenly(length)
    phi = np.concatenate([part[shown] for part in parts], 1)
    arrays, groups, start = saved[arms[0]["family"]], [], 0
    iterations = arrays["steps"][shown].astype(np.float64) * run.config["every"]
    names, described = (
        run.config["task"]["class_names"],
        ("group_names", "group_sizes", "group_relative", "group_readings"),
    )
    for name, size, relative, reading in zip(*(arrays[key].tolist() for key in described), strict=True):
        at = slice(start, start + size)
        values = phi[:, :, at] - phi[:, :, at].mean(-1, keepdims=True) if relative else phi[:, :, at]
        groups.append(
            PhiGroup(name, values, arrays["labels"][at].tolist(), arrays["classes"][at], names, relative, reading)
        )
        start = at.stop
    return groups, iterations


def finite_mean(values: NDArray[Any], axis: int) -> Array:
    """The mean over ``axis`` of finite values; NaN where there are none.

    Example:
        >>> finite_mean(np.array([[1.0, np.nan, 3.0], [np.nan] * 3]), axis=1).tolist()
        [2.0, nan]
    """
    finite = np.isfinite(values)
    count = finite.sum(axis)
    total = np.where(finite, values, 0).sum(axis, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _numbers(values: list[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _read_steps(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """The lines of a log by population and step, at most about ``MOST_STEPS`` evenly spaced ones of each, and the last.

    Of a long log most lines are only found, not parsed.
    """
    at: dict[str, dict[int, tuple[int, int]]] = {}
    end, broken = 0, None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if broken is not None:
                    raise broken
                begin, end = end, end + len(line)
                try:
                    name, step = _place(line)
                    at.setdefault(name, {})[step] = (number, begin)
                except UNREADABLE as error:
                    broken = _broken(path, number, error)  # the last line may be cut short by a stop
            return {name: _parse(path, _thinned(lines)) for name, lines in at.items()}
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read; give the folder of a run that has started.") from error


def _place(line: bytes) -> tuple[str, int]:
    """The population and the step of a line."""
    begins = _PLACE.match(line) if line.rstrip().endswith(b"}") else None
    if begins:
        return json.loads(begins[1]), int(begins[2])
    entry = json.loads(line)
    return entry["population"], entry["step"]


def _thinned(lines: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    steps = sorted(lines)
    return {step: lines[step] for step in (steps[index] for index in evenly(len(steps)))}


def evenly(length: int) -> NDArray[np.int64]:
    """Indices of at most ``MOST_STEPS`` of ``length`` steps, evenly spaced, with the first and the last.

    Example:
        >>> evenly(3).tolist(), len(evenly(100_000)), evenly(100_000)[-1]
        ([0, 1, 2], 2000, np.int64(99999))
    """
    return np.unique(np.linspace(0, length - 1, min(length, MOST_STEPS)).round().astype(np.int64))


def _parse(path: Path, lines: dict[int, tuple[int, int]]) -> dict[int, dict[str, Any]]:
    entries: dict[int, dict[str, Any]] = {}
    with path.open("rb") as file:
        for step, (number, begin) in lines.items():
            file.seek(begin)
            try:
                entries[step] = json.loads(file.readline())
            except UNREADABLE as error:
                raise _broken(path, number, error) from error
    return entries


def _broken(path: Path, number: int, error: BaseException) -> RunFolderError:
    what = (
        f"is not JSON ({error})" if isinstance(error, ValueError | RecursionError) else f"is no step of a run ({error})"
    )
    return RunFolderError(f"{path}: line {number} {what} ({error}); restore or delete that line.")
