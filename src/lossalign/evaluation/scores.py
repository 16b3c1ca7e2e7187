"""The scores of a run: selected and last weights of every method, training error, collapse, pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import generator
from lossalign.evaluation.judge import Judge, Values, population_outputs, population_targets
from lossalign.experiments import Experiment, labelled
from lossalign.metrics import metric_named
from lossalign.training import LabelledSet, measure

Array = npt.NDArray[np.float64]

TRAINED_ON = 2000
"""Largest number of training examples that the training error is measured on."""

COLLAPSED = 0.05
"""Embeddings with a smaller ``spread`` have collapsed to a point."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metric by method, one value for each seed (the mean over its children)."""

    best: dict[str, Array]
    """Weights selected on the selection split."""
    last: dict[str, Array]
    """Averaged weights at the end."""
    train: dict[str, Array]
    """Training error of the selected weights, as a fraction; trained methods of classification."""
    collapsed: dict[str, int]
    """Number of children whose embeddings collapsed to a point; only methods with at least one."""
    pairs: dict[str, Array]
    """Fraction of a method's networks, with selected weights, that judge each of the test set's pairs correctly; empty
    without pairs."""
    said: tuple[str, ...] = ()
    """Sentences to print below the table."""


def score(experiment: Experiment, *, final: bool) -> Scores:
    """Score every method on the selection split, or with ``final`` on the test split."""
    best = Judge(experiment, "best", final)
    values, collapsed = best.values, _collapsed(best) if experiment.kind.embeds else {}
    last = best.under("averaged").values
    return Scores(
        best=_means(experiment, values),
        last=_means(experiment, last),
        train={} if experiment.kind.embeds else _training_errors(experiment),
        collapsed=collapsed,
        pairs=_over_pairs(experiment, values) if final and experiment.pairs is not None else {},
        said=tuple(best.said),
    )


def spread(embeddings: Tensor, most: int = 500) -> Tensor:
    """The mean distance between two embeddings normalised to length 1.

    Args:
        embeddings: [V, D].
        most: number of samples that are compared, evenly spaced.

    Returns:
        A scalar from 0, for embeddings collapsed to a point, to 2; about √2 for directions drawn at random.

    Example:
        >>> spread(torch.ones(4, 3)), spread(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]))
        (tensor(0.), tensor(2.))
    """
    some = embeddings[:: math.ceil(len(embeddings) / most)]
    return F.pdist(F.normalize(some.float(), dim=-1)).mean()


def _collapsed(judge: Judge) -> dict[str, int]:
    """Number of collapsed children by trained method; those that failed are reported elsewhere."""
    counts: dict[str, int] = {}
    for arm in judge.experiment.arms:
        failed = judge.experiment.populations[arm.population].failed[arm.rows].tolist()
        outputs = judge.of_population(arm.population, "scored")[arm.rows]
        alive = [each for each, lost in zip(outputs, failed, strict=True) if not lost]
        counts[arm.method] = counts.get(arm.method, 0) + sum(bool(spread(each) < COLLAPSED) for each in alive)
    return {method: number for method, number in counts.items() if number}


def _training_errors(experiment: Experiment) -> dict[str, Array]:
    sets = {seed: _training_sample(experiment, seed) for seed in experiment.data}
    plain = metric_named("error", len(experiment.counts))
    values: Values = {}
    for name, population in experiment.populations.items():
        outputs = population_outputs(experiment, name, sets, "best")
        targets = torch.stack(population_targets(experiment, name, sets))
        found = measure(plain, outputs, targets, population.steps)
        values |= {(arm.method, arm.seed): found[arm.rows] for arm in experiment.arms_of(name)}
    return _means(experiment, values)


def _training_sample(experiment: Experiment, seed: int) -> LabelledSet:
    data = experiment.data[seed]
    drawn = torch.randperm(len(data.train), generator=generator(seed, "training error"))[:TRAINED_ON]
    return labelled(data.train.subset(drawn), data.transform, experiment.device)


def _means(experiment: Experiment, values: Values) -> dict[str, Array]:
    """The mean over children (and pairs) by method, one for each seed."""
    return {
        method: np.array([float(values[method, seed].mean()) for seed in experiment.data], dtype=np.float64)
        for method in _methods(experiment, values)
    }


def _over_pairs(experiment: Experiment, values: Values) -> dict[str, Array]:
    """The mean over seeds and children by method, one for each pair."""
    return {
        method: np.mean(
            [np.atleast_2d(values[method, seed].double().numpy()).mean(0) for seed in experiment.data], axis=0
        )
        for method in _methods(experiment, values)
    }


def _methods(experiment: Experiment, values: Values) -> list[str]:
    first = experiment.config.methods.seed
    return [spec.text for spec in experiment.config.methods.specs if (spec.text, first) in values]
