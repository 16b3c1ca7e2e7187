"""What a finished run leaves behind: scores, table, policies, best weights, Φ history, pictures, ledger."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from lossalign.control import LearningController
from lossalign.core import Ranks
from lossalign.experiments.analysis import Learnable, learnable
from lossalign.experiments.folder import LEDGER, RunFolder, command
from lossalign.experiments.gallery import Shown, best_of, shown_children, write_gallery
from lossalign.experiments.methods import METHODS, entry
from lossalign.experiments.populations import Arm, Experiment
from lossalign.experiments.score import Array, Scores, kept, score
from lossalign.experiments.statistics import Paired, table


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a finished run leads to."""

    folder: Path
    metric: str
    higher_is_better: bool
    percent: bool
    split: str
    """Which split was scored: selection or test."""
    baseline: str
    """The method that the others are compared with."""
    rows: dict[str, Paired]
    """By method, selected weights."""
    last: dict[str, Paired]
    """By method, the averaged weights at the end."""
    against_ala: dict[str, Paired]
    """By method, selected weights, compared with ``ala``; empty without it."""
    train_error: dict[str, float]
    """By method that trains, the fraction of training examples that the selected weights get wrong."""
    cost: dict[str, float]
    """By method that trains, its time over that of training and selecting alone."""
    failed: dict[str, int]
    """By method, how many of its children stopped being finite; without those that never did."""
    children: dict[str, int]
    """By method that trains, how many children it has over all seeds."""
    collapsed: dict[str, int]
    """By method, how many of its children put all samples at one point; without methods where none does. Metric
    learning only."""
    over_pairs: dict[str, Paired]
    """By method, selected weights, with intervals over the test set's pairs instead of policies; empty without such."""
    kept: dict[int, str]
    """What the guard keeps, by seed; empty without ``guarded-ala``."""
    learnable: Learnable | None
    """R² of reward on actions along the random walk, if there was one."""
    files: list[Path]

    def to_json(self) -> dict[str, object]:
        """Plain data, as in ``results.json``."""
        return {**asdict(self), "folder": str(self.folder), "files": [str(path) for path in self.files]}


def finish(folder: RunFolder, experiment: Experiment, *, final: bool, ranks: Ranks) -> Result:
    """Score a trained experiment and write everything that belongs into its folder; all ranks score, rank 0 writes."""
    best = _best(experiment)
    files = ranks.on_first(lambda: _write_learned(folder, experiment, best))
    scores = score(experiment, final=final)
    shown = [] if experiment.config.embedding is None else shown_children(experiment, best.arm)
    return ranks.on_first(lambda: _write_results(folder, experiment, scores, shown, files, final))


def _write_learned(folder: RunFolder, experiment: Experiment, best: Shown) -> list[Path]:
    histories = [
        folder.write_phi(name, population, experiment.losses[name].spec)
        for name, population in experiment.populations.items()
    ]
    return [*histories, *_write_policies(folder, experiment), _write_best(folder, experiment, best)]


def _write_results(
    folder: RunFolder, experiment: Experiment, scores: Scores, shown: list[Shown], files: list[Path], final: bool
) -> Result:
    baseline = next((name for name in ("fixed", "cross-entropy") if name in scores.best), next(iter(scores.best)))
    better = experiment.metric.higher_is_better
    gallery = [write_gallery(folder.path, experiment, shown, final=final)] if shown else []
    ledger = [folder.path / LEDGER] if final else []
    files = [*files, *gallery, folder.path / "results.json", *ledger]
    result = Result(
        folder=folder.path,
        metric=experiment.metric.name,
        higher_is_better=better,
        percent=experiment.metric.percent,
        split="test" if final else "selection",
        baseline=baseline,
        rows=table(scores.best, baseline, better),
        last=table(scores.last, baseline, better),
        against_ala=table(scores.best, "ala", better) if "ala" in scores.best else {},
        train_error={name: float(each.mean()) for name, each in scores.train.items()},
        cost=_costs(experiment),
        failed=_failed(experiment),
        children=_children(experiment),
        collapsed=scores.collapsed,
        over_pairs=table(scores.pairs, baseline, better) if scores.pairs else {},
        kept=_kept(experiment),
        learnable=_learnable(folder, experiment),
        files=files + _draw(folder),
    )
    policies = {"best": _lists(scores.best), "last": _lists(scores.last)}
    if final:
        _enter_ledger(folder, experiment, result)
    folder.write("results.json", {**result.to_json(), "policies": policies})
    return result


def _lists(values: dict[str, Array]) -> dict[str, list[float]]:
    return {name: each.tolist() for name, each in values.items()}


def _costs(experiment: Experiment) -> dict[str, float]:
    """A step's time with what a method's controllers ask for, over the time of its training and selecting.

    Empty when nothing was trained since the run was resumed.
    """
    costs: dict[str, list[float]] = {}
    for arm in experiment.arms:
        population = experiment.populations[arm.population]
        mine = [other for other in experiment.arms if other.population == arm.population]
        cost = population.clock.cost(mine.index(arm), arm.children, looks=entry(arm.method).method.looks)
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


def _kept(experiment: Experiment) -> dict[int, str]:
    guarded = any(entry(name).method.derived == "guard" for name in experiment.config.methods)
    return {seed: kept(experiment, seed).method for seed in experiment.data} if guarded else {}


def _enter_ledger(folder: RunFolder, experiment: Experiment, result: Result) -> None:
    folder.append(
        LEDGER,
        {
            "begun": folder.identity,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": command(),
            "task": experiment.config.task,
            "metric": result.metric,
            "scores": {name: row.mean for name, row in result.rows.items()},
        },
    )


def _write_policies(folder: RunFolder, experiment: Experiment) -> list[Path]:
    files = []
    for arm in experiment.arms:
        controller = experiment.controller(arm)
        if entry(arm.method).method.learns and isinstance(controller, LearningController):
            name = f"policy-{arm.seed}" if arm.method == "ala" else f"policy-{arm.seed}-{_in_a_name(arm.method)}"
            files.append(controller.policy.save(folder.path / f"{name}.safetensors"))
    return files


def _in_a_name(method: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.]+", "-", method)


def _best(experiment: Experiment) -> Shown:
    """The child that the selection split likes best, of the refitted or else the learning method if there is one; of
    ``fixed`` where the guard keeps that."""
    methods = [entry(arm.method).method for arm in experiment.arms]
    refitted = [arm for arm, method in zip(experiment.arms, methods, strict=True) if method.refits]
    learning = [arm for arm, method in zip(experiment.arms, methods, strict=True) if method.learns]
    arms, guarded = refitted or learning or experiment.arms, _kept(experiment)
    if guarded:
        fixed = [arm for arm in experiment.arms if arm.method == "fixed"]
        adapting = {arm.seed: arm for arm in learning if arm.method == "ala"} | {arm.seed: arm for arm in refitted}
        arms = [adapting[arm.seed] if guarded[arm.seed] == "ala" else arm for arm in fixed]

    def error(arm: Arm) -> float:
        return float(experiment.populations[arm.population].best_errors[arm.rows].min())

    arm = min(arms, key=error)
    return best_of(experiment, arm)


def _write_best(folder: RunFolder, experiment: Experiment, best: Shown) -> Path:
    """The weights, and in the same file how inputs were normalised: (inputs · scale − mean) / std."""
    path = folder.path / "best.safetensors"
    data = experiment.data[best.arm.seed]
    described = {
        "format": "lossalign-weights",
        "method": best.arm.method,
        "seed": best.arm.seed,
        "child": best.child,
        "model": experiment.config.model,
        "input_shape": list(data.train.input_shape),
        "class_names": list(data.train.class_names),
        "scale": data.transform.scale,
        "mean": data.transform.mean.tolist(),
        "std": data.transform.std.tolist(),
    }
    save_file(
        {n: t.detach().cpu().contiguous().clone() for n, t in best.weights.items()},
        path,
        metadata={"lossalign": json.dumps(described)},
    )
    return path


def _learnable(folder: RunFolder, experiment: Experiment) -> Learnable | None:
    """R² along the random walk, over all its policies; not of one with switches of its own."""
    written = [(arm, entry(arm.method)) for arm in experiment.arms]
    arms = [arm for arm, one in written if one.method is METHODS["random-walk"] and not one.switches]
    if not arms:
        return None
    name = arms[0].population
    phi, steps = experiment.populations[name].history
    if len(steps) < experiment.config.steps:
        return None
    rewards = np.array(
        [row["reward"] for row in folder.rows("metrics.jsonl") if row["population"] == name], dtype=float
    )
    preset = experiment.config.controls()
    moved = experiment.losses[name].spec.select(preset.groups)
    rows = np.concatenate([np.arange(arm.rows.start, arm.rows.stop) for arm in arms])
    moves = phi[:, rows][:, :, moved].double().numpy()
    return learnable(moves, rewards[:, rows], preset.returns)


def _draw(folder: RunFolder) -> list[Path]:
    if find_spec("matplotlib") is None:
        return []
    from lossalign.report import write_pictures, write_retrieval  # matplotlib is an optional dependency

    return [*write_pictures(folder.path), *write_retrieval(folder.path)]
