"""A run folder as arrays: what the pictures read, in plain JSON and numpy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from lossalign.core.errors import RunFolderError

Array = NDArray[np.float64]


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
        config, arms = (_read_json(path / name) for name in ("config.json", "arms.json"))
        steps: dict[str, dict[int, dict[str, Any]]] = {}
        lines = _read_text(path / "metrics.jsonl").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError as error:
                if number == len(lines):
                    break
                raise RunFolderError(
                    f"{path / 'metrics.jsonl'}: line {number} is not JSON ({error}); mend or delete it."
                ) from error
            steps.setdefault(entry["population"], {})[entry["step"]] = entry
        silent = sorted({arm["population"] for arm in arms} - set(steps))
        if silent or not arms:
            raise RunFolderError(f"{path} has no finished step of {silent or 'any arm'}; let it train first.")
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
        """Which way the metric improves."""
        return "higher is better" if self.config["higher_is_better"] else "lower is better"

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the arms."""
        return list(dict.fromkeys(arm["method"] for arm in self.arms))

    @property
    def percent(self) -> bool:
        """Whether people read the metric in percent."""
        return bool(self.config["percent"])

    def arms_of(self, method: str) -> list[dict[str, Any]]:
        """The arms of ``method``, one for each seed."""
        return [arm for arm in self.arms if arm["method"] == method]

    def iterations(self, population: str) -> Array:
        """The iteration at which each step of ``population`` ended [T]."""
        return _numbers([entry["iteration"] for entry in self.steps[population]])


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
    """One group of loss parameters: values [T, n, p], labels [p] and the classes they speak of [p, 2]."""

    name: str
    values: NDArray[np.float32]
    labels: list[str]
    classes: NDArray[np.int64]

    @property
    def of_classes(self) -> bool:
        """Whether every parameter speaks of classes."""
        return bool((self.classes >= 0).all())

    @property
    def of_pairs(self) -> bool:
        """Whether some parameter speaks of two classes."""
        return bool((self.classes[:, 0] != self.classes[:, 1]).any())

    @property
    def moved(self) -> bool:
        """Whether any child's Φ ever left its start."""
        return bool((self.values != self.values[:1]).any())


def read_groups(run: SavedRun, method: str) -> tuple[list[PhiGroup], Array]:
    """The groups of Φ of all children of ``method``, and the iteration of each of their T values [T]."""
    arms = run.arms_of(method)
    saved = {arm["population"]: _read_arrays(run.path / f"phi-{arm['population']}.npz") for arm in arms}
    parts = [saved[a["population"]]["phi"][:, a["start"] : a["start"] + a["children"]] for a in arms]
    length = min(len(part) for part in parts)
    if length == 0:
        raise RunFolderError(f"{run.path} has no Φ of {method} yet; let it train first.")
    phi = np.concatenate([part[:length] for part in parts], 1)
    population = arms[0]["population"]
    iterations = saved[population]["steps"][:length].astype(np.float64) * run.config["every"]
    arrays, groups, start = saved[population], [], 0
    for name, size in zip(arrays["group_names"], arrays["group_sizes"], strict=True):
        at = slice(start, start + int(size))
        groups.append(PhiGroup(str(name), phi[:, :, at], arrays["labels"][at].tolist(), arrays["classes"][at]))
        start = at.stop
    return groups, iterations


def finite_mean(values: NDArray[Any], axis: int) -> Array:
    """The mean over ``axis`` of what is finite; NaN where nothing is.

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


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read; name the folder of a run that has begun.") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{path} is not JSON ({error}); mend it or run again.") from error


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path) as saved:
            return dict(saved)
    except (OSError, ValueError, BadZipFile) as error:
        raise RunFolderError(f"{path} cannot be read; name the folder of a run that has saved its Φ.") from error
