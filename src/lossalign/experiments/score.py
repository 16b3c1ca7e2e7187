"""Score the selected and the last weights of every arm: on the test split once, otherwise on the selection split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lossalign.children import Weights
from lossalign.experiments.methods import METHODS
from lossalign.experiments.populations import Arm, Experiment, labelled
from lossalign.metrics import error, over_children
from lossalign.rivals import fit_offsets
from lossalign.training import LabelledSet, measure

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metric by method, one value for each policy (the mean over its children)."""

    best: dict[str, Array]
    """Weights selected on the selection split."""
    last: dict[str, Array]
    """Averaged weights at the end."""


def score(experiment: Experiment, *, final: bool) -> Scores:
    """Score every method on the selection split, or with ``final`` on the test split."""
    sets = _scored_sets(experiment, final)
    return Scores(
        best=_by_method(experiment, sets, "best", final=final),
        last=_by_method(experiment, sets, "averaged", final=final),
    )


def _scored_sets(experiment: Experiment, final: bool) -> dict[int, LabelledSet]:
    if not final:
        return {seed: data.selection for seed, data in experiment.data.items()}
    return {seed: labelled(data.test, data.transform, experiment.device) for seed, data in experiment.data.items()}


def _by_method(
    experiment: Experiment, sets: dict[int, LabelledSet], weights: Weights, *, final: bool
) -> dict[str, Array]:
    per_arm: dict[tuple[str, int], float] = {}
    for name, population in experiment.populations.items():
        arms = [arm for arm in experiment.arms if arm.population == name]
        outputs = _outputs(experiment, name, sets, weights)
        targets = torch.stack([sets[arm.seed].targets for arm in arms for _ in range(arm.children)])
        values = measure(experiment.metric, outputs, targets, population.steps)
        for arm in arms:
            per_arm[arm.method, arm.seed] = float(values[arm.rows].mean())
        for after in _post_hoc(experiment, arms):
            per_arm.update(_post_hoc_scores(experiment, arms, sets, outputs, weights, after, final=final))
    return {
        method: np.array([per_arm[method, seed] for seed in experiment.data]) for method in experiment.config.methods
    }


def _outputs(experiment: Experiment, population: str, sets: dict[int, LabelledSet], weights: Weights) -> Tensor:
    rows = [arm.seed for arm in experiment.arms if arm.population == population for _ in range(arm.children)]
    return experiment.populations[population].children.outputs([sets[seed].inputs for seed in rows], weights)


def _post_hoc(experiment: Experiment, arms: list[Arm]) -> list[str]:
    """Methods of the run that only change the outputs of one of these arms."""
    trained = {arm.method for arm in arms}
    return [name for name in experiment.config.methods if METHODS[name].after in trained]


def _post_hoc_scores(
    experiment: Experiment,
    arms: list[Arm],
    sets: dict[int, LabelledSet],
    outputs: Tensor,
    weights: Weights,
    name: str,
    *,
    final: bool,
) -> dict[tuple[str, int], float]:
    """Fit offsets to each child's outputs and score the shifted outputs.

    They are fitted on the reward split, and on the selection split too when the test split is scored.
    """
    metric = experiment.metric

    def errors(outputs: Tensor, targets: Tensor) -> Tensor:
        each = targets.expand(len(outputs), -1)
        return error(metric, over_children(metric, metric.vectorised, outputs, each))

    parts = [{seed: data.reward for seed, data in experiment.data.items()}]
    if final:
        parts.append({seed: data.selection for seed, data in experiment.data.items()})
    fitted_on = torch.cat([_outputs(experiment, arms[0].population, part, weights) for part in parts], 1)
    scores = {}
    for arm in [arm for arm in arms if arm.method == METHODS[name].after]:
        labels = torch.cat([part[arm.seed].targets for part in parts])
        shifted = [
            outputs[child] + fit_offsets(fitted_on[child], labels, errors)
            for child in range(arm.start, arm.start + arm.children)
        ]
        targets = sets[arm.seed].targets.expand(arm.children, -1)
        values = measure(metric, torch.stack(shifted), targets, experiment.config.steps)
        scores[name, arm.seed] = float(values.mean())
    return scores
