"""The result of a run: tables with intervals, costs, failures, and the best child."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lossalign.evaluation.analysis import Learnable, learnable
from lossalign.evaluation.judge import Judge, selection_errors
from lossalign.evaluation.scores import Array, Scores
from lossalign.evaluation.statistics import Paired, difference, in_units, table
from lossalign.experiments import Arm, Experiment, MethodSpec, Role
from lossalign.experiments.methods.derived import Guard


@dataclass(frozen=True, kw_only=True)
class Result:
    """The scores of a finished run."""

    metric: str
    higher_is_better: bool
    percent: bool
    split: str
    """The split that was scored: selection or test."""
    roles: dict[str, Role]
    """Role of each method."""
    baseline: str
    """The method that the others are compared with."""
    learner: str | None
    """The method whose policy learns, if there is one."""
    rivals: tuple[str, ...]
    """Methods other than the baseline, the learners, and those derived from a learner."""
    rows: dict[str, Paired]
    """Scores of the selected weights, by method."""
    last: dict[str, Paired]
    """Scores of the averaged weights at the end, by method."""
    against_learner: dict[str, Paired]
    """Scores of the selected weights compared with the learner, by method; empty without a learner."""
    train_error: dict[str, float]
    """Training error of the selected weights, as a fraction, by trained method."""
    cost: dict[str, float]
    """Time relative to training and selecting alone, by trained method."""
    failed: dict[str, int]
    """Number of children whose loss or outputs were not finite, by method; only methods with at least one."""
    children: dict[str, int]
    """Number of children over all seeds, by trained method."""
    collapsed: dict[str, int]
    """Number of children whose embeddings collapsed to a point, by method; only methods with at least one."""
    over_pairs: dict[str, Paired]
    """Scores of the selected weights with intervals over the test set's pairs, by method; empty without pairs."""
    kept: dict[int, str]
    """The method that the guard keeps, by seed; empty without a guard."""
    learnable: Learnable | None
    """R² of reward on actions along the random walk, if there was one."""
    seeds: dict[str, dict[str, list[float]]]
    """The values behind the tables, ``best`` and ``last``: by method, one for each seed."""
    networks: dict[str, int]
    """Number of networks that predict together, by method: 1, and of an ensemble the children of a seed."""
    said: tuple[str, ...] = ()
    """More to print below the table."""

    folder: Path | None = None
    """The run folder."""
    files: tuple[Path, ...] = ()
    """The files that the run wrote."""

    @property
    def best_rival(self) -> str | None:
        """The rival with the best mean; None if there are no rivals or no learner."""
        if not self.against_learner or not self.rivals:
            return None
        better = max if self.higher_is_better else min
        return better(self.rivals, key=lambda name: self.rows[name].mean)

    def __str__(self) -> str:
        """The scores as plain text, one line for each method."""
        way, unit = "higher" if self.higher_is_better else "lower", " (%)" if self.percent else ""
        seeds = next(iter(self.rows.values())).seeds
        title = (
            f"{self.metric}{unit} on the {self.split} split, {way} is better; {seeds} seed{'' if seeds == 1 else 's'}"
        )
        width = max(len(method) for method in self.rows)
        lines = []
        for method, row in self.rows.items():
            against = f"  {difference(row, self.percent)} against {self.baseline}" if row.difference is not None else ""
            lines.append(f"  {method:{width}}  {in_units(row.mean, self.percent):>7}{against}")
        return "\n".join([title, *lines])

    def to_json(self) -> dict[str, Any]:
        """Plain data, as in ``results.json``."""
        return {**asdict(self), "folder": str(self.folder), "files": [str(path) for path in self.files]}


def summarise(experiment: Experiment, scores: Scores, rewards: dict[str, Array], *, final: bool) -> Result:
    """The result of a trained experiment.

    Args:
        experiment: the trained experiment.
        scores: its scores.
        rewards: by population, the logged rewards [steps, N]; NaN where there was none.
        final: whether the test split was scored.
    """
    specs = [spec for spec in experiment.config.methods.specs if spec.text in scores.best]
    baseline = next((spec.text for spec in specs if spec.role == "baseline" and spec.plain), specs[0].text)
    learner = next((spec.text for spec in specs if spec.role == "learner" and spec.plain), None)
    better = experiment.metric.higher_is_better
    return Result(
        metric=experiment.metric.name,
        higher_is_better=better,
        percent=experiment.metric.percent,
        split="test" if final else "selection",
        roles={spec.text: spec.role for spec in specs},
        baseline=baseline,
        learner=learner,
        rivals=tuple(spec.text for spec in specs if spec.text != baseline and not _learns(spec, specs)),
        rows=table(scores.best, baseline, better),
        last=table(scores.last, baseline, better),
        against_learner={} if learner is None else table(scores.best, learner, better),
        train_error={name: float(each.mean()) for name, each in scores.train.items()},
        cost=_costs(experiment),
        failed=_failed(experiment),
        children=_children(experiment),
        collapsed=scores.collapsed,
        over_pairs=table(scores.pairs, baseline, better) if scores.pairs else {},
        kept=guard_keeps(experiment),
        learnable=_learnable(experiment, rewards),
        seeds={"best": _lists(scores.best), "last": _lists(scores.last)},
        networks={spec.text: _networks(experiment, spec) for spec in specs},
        said=scores.said,
    )


def _learns(spec: MethodSpec, specs: list[MethodSpec]) -> bool:
    """Whether a method learns, or is derived from one that does."""
    return spec.role == "learner" or any(other.role == "learner" for other in specs if other.text in spec.method.after)


def _networks(experiment: Experiment, spec: MethodSpec) -> int:
    """How many networks predict together."""
    if spec.derived is None or not spec.derived.ensemble:
        return 1
    return experiment.arm(spec.method.after[0], experiment.config.methods.seed).children


def _lists(values: dict[str, Array]) -> dict[str, list[float]]:
    return {name: each.tolist() for name, each in values.items()}


def _costs(experiment: Experiment) -> dict[str, float]:
    """Time of a step by trained method, relative to its time for training and selecting alone.

    Empty if nothing was trained since the run was resumed.
    """
    costs: dict[str, list[float]] = {}
    for arm in experiment.arms:
        cost = experiment.populations[arm.population].cost(arm.start)
        if cost is not None:
            costs.setdefault(arm.method, []).append(cost)
    return {method: sum(each) / len(each) for method, each in costs.items()}


def _failed(experiment: Experiment) -> dict[str, int]:
    counts: dict[str, int] = {}
    for arm in experiment.arms:
        number = int(experiment.populations[arm.population].failed[arm.rows].sum())
        counts[arm.method] = counts.get(arm.method, 0) + number
    return {method: number for method, number in counts.items() if number}


def _children(experiment: Experiment) -> dict[str, int]:
    methods = dict.fromkeys(arm.method for arm in experiment.arms)
    return {name: sum(arm.children for arm in experiment.arms if arm.method == name) for name in methods}


def guard_keeps(experiment: Experiment) -> dict[int, str]:
    """The method that the guard keeps, by seed; empty without a guard."""
    derived = [spec.derived.derivation for spec in experiment.config.methods.specs if spec.derived is not None]
    guard = next((each for each in derived if isinstance(each, Guard)), None)
    if guard is None:
        return {}
    judge = Judge(experiment, "best", final=False)
    return {seed: guard.keeps(judge, seed) for seed in experiment.data}


@dataclass(frozen=True)
class Chosen:
    """A child, and its best weights."""

    arm: Arm
    child: int
    weights: dict[str, Tensor]


def best_child_of(experiment: Experiment, arm: Arm) -> Chosen:
    """The child of an arm with the best selection metric."""
    child = int(selection_errors(experiment, arm).argmin())
    weights = experiment.populations[arm.population].children.child_state(arm.start + child, "best")
    return Chosen(arm, child, weights)


def best_child(experiment: Experiment) -> Chosen:
    """The child whose weights a run saves as the best.

    It is the child with the best selection metric of the refitted methods, else of the learners, else of all methods;
    for seeds where the guard keeps the baseline, of that.
    """
    refitted = [arm for arm in experiment.arms if arm.spec.trained is not None and arm.spec.trained.refits]
    learning = [arm for arm in experiment.arms if arm.spec.role == "learner"]
    whole = [arm for arm in experiment.arms if arm.spec.without is None]
    arms: Iterable[Arm] = refitted or learning or whole
    keeps = guard_keeps(experiment)
    if keeps:
        adapting = {arm.seed: arm for arm in refitted}
        kept = {seed: experiment.arm(method, seed) for seed, method in keeps.items()}
        arms = [adapting.get(seed, arm) if arm.spec.role == "learner" else arm for seed, arm in kept.items()]
    return best_child_of(experiment, min(arms, key=lambda arm: float(selection_errors(experiment, arm).min())))


def _learnable(experiment: Experiment, rewards: dict[str, Array]) -> Learnable | None:
    """R² along the random walk, over all its seeds, if the run has one without options of its own."""
    arms = [
        arm
        for arm in experiment.arms
        if arm.spec.trained is not None and arm.spec.trained.random and not arm.spec.options
    ]
    if not arms:
        return None
    name, family = arms[0].population, arms[0].family
    phi, steps = experiment.populations[name].history
    if len(steps) < experiment.config.steps:
        return None
    options, spec = experiment.config.control.options, experiment.losses[family].spec
    moved = spec.select(options.groups or spec.slices)
    rows = np.concatenate([np.arange(arm.rows.start, arm.rows.stop) for arm in arms])
    moves = phi[:, rows][:, :, moved].double().numpy()
    return learnable(moves, rewards[name][:, rows], options.horizon)
