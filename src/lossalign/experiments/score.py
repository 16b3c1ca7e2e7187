"""Score the selected and the last weights of every method: on the test split once, otherwise on the selection split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.children import Weights
from lossalign.core import generator
from lossalign.data import Pairs
from lossalign.experiments.methods import costs_of, entry
from lossalign.experiments.populations import Arm, Experiment, labelled
from lossalign.metrics import Metric, all_pairs, balanced_threshold, error, judged_rightly, metric_named, score_children
from lossalign.rivals import calibrate, expected_costs, fit_offsets
from lossalign.training import LabelledSet, measure

Array = npt.NDArray[np.float64]
Sets = dict[int, LabelledSet]
"""A labelled set for each seed."""
Values = dict[tuple[str, int], Tensor]
"""By method and seed, the metric of every child [n], or whether it judges each pair rightly [n, pairs]."""

TRAINED_ON = 2000
"""Training examples, at most, that the training error is measured on."""

COLLAPSED = 0.05
"""Embeddings of less ``spread`` have collapsed to a point."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metric by method, one value for each policy (the mean over its children)."""

    best: dict[str, Array]
    """Weights selected on the selection split."""
    last: dict[str, Array]
    """Averaged weights at the end."""
    train: dict[str, Array]
    """Fraction of training examples that the selected weights get wrong; methods that train only."""
    collapsed: dict[str, int]
    """How many children put all samples at one point with their selected weights; without methods where none does."""
    pairs: dict[str, Array]
    """Which share of a method's networks, with their selected weights, judges each of the test set's pairs rightly;
    empty where the test set has none."""


def score(experiment: Experiment, *, final: bool) -> Scores:
    """Score every method on the selection split, or with ``final`` on the test split."""
    sets = _scored_sets(experiment, final)
    best, collapsed = _by_method(experiment, sets, "best", final=final)
    last, _ = _by_method(experiment, sets, "averaged", final=final)
    return Scores(
        best=_means(experiment, best),
        last=_means(experiment, last),
        train=_training_errors(experiment) if experiment.config.embedding is None else {},
        collapsed=collapsed,
        pairs=_over_pairs(experiment, best) if final and experiment.pairs is not None else {},
    )


def spread(embeddings: Tensor, most: int = 500) -> Tensor:
    """The mean distance between two embeddings brought to length 1.

    Args:
        embeddings: [V, D].
        most: samples that are compared, every so many of all.

    Returns:
        A scalar from 0, for embeddings collapsed to a point, to 2; about √2 for directions drawn at random.

    Example:
        >>> spread(torch.ones(4, 3)), spread(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]))
        (tensor(0.), tensor(2.))
    """
    some = embeddings[:: math.ceil(len(embeddings) / most)]
    return F.pdist(F.normalize(some.float(), dim=-1)).mean()


def _collapsed(experiment: Experiment, outputs: dict[str, Tensor]) -> dict[str, int]:
    """How many children of each trained method have collapsed, of embeddings; those that failed are told elsewhere."""
    counts: dict[str, int] = {}
    for arm in experiment.arms if experiment.config.embedding is not None else ():
        failed = experiment.populations[arm.population].failed[arm.rows].tolist()
        alive = [each for each, lost in zip(outputs[arm.population][arm.rows], failed, strict=True) if not lost]
        counts[arm.method] = counts.get(arm.method, 0) + sum(bool(spread(each) < COLLAPSED) for each in alive)
    return {method: number for method, number in counts.items() if number}


def _training_errors(experiment: Experiment) -> dict[str, Array]:
    own = {seed: _training_sample(experiment, seed) for seed in experiment.data}
    seen = {name: _outputs(experiment, name, own, "best") for name in experiment.populations}
    plain = metric_named("error", len(experiment.counts))
    return _means(experiment, _trained(experiment, own, seen, plain))


def _scored_sets(experiment: Experiment, final: bool) -> Sets:
    if not final:
        return {seed: data.selection for seed, data in experiment.data.items()}
    return {seed: labelled(data.test, data.transform, experiment.device) for seed, data in experiment.data.items()}


def _training_sample(experiment: Experiment, seed: int) -> LabelledSet:
    data = experiment.data[seed]
    drawn = torch.randperm(len(data.train), generator=generator(seed, "training error"))[:TRAINED_ON]
    return labelled(data.train.subset(drawn), data.transform, experiment.device)


def _means(experiment: Experiment, values: Values) -> dict[str, Array]:
    """The mean over children (and pairs) by method, one for each seed."""
    return {
        method: np.array([float(values[method, seed].mean()) for seed in experiment.data], dtype=np.float64)
        for method in _scored_methods(experiment, values)
    }


def _over_pairs(experiment: Experiment, values: Values) -> dict[str, Array]:
    """The mean over seeds and children by method, one for each pair."""
    return {
        method: np.mean(
            [np.atleast_2d(values[method, seed].double().numpy()).mean(0) for seed in experiment.data], axis=0
        )
        for method in _scored_methods(experiment, values)
    }


def _scored_methods(experiment: Experiment, values: Values) -> list[str]:
    return [method for method in experiment.config.methods if (method, experiment.config.seed) in values]


def _trained(experiment: Experiment, sets: Sets, outputs: dict[str, Tensor], metric: Metric) -> Values:
    """The metric of every child of every arm that trains [n], from the outputs of each population [N, V, …]."""
    values: Values = {}
    for name in experiment.populations:
        arms = [arm for arm in experiment.arms if arm.population == name]
        targets = torch.stack([sets[arm.seed].targets for arm in arms for _ in range(arm.children)])
        found = measure(metric, outputs[name], targets, experiment.populations[name].steps)
        values |= {(arm.method, arm.seed): found[arm.rows] for arm in arms}
    return values


def _told_apart(experiment: Experiment, outputs: dict[str, Tensor], weights: Weights, pairs: Pairs) -> Values:
    """Which of the test set's ``pairs`` every child judges rightly, 0 or 1 [n, pairs], at the distance that does so
    best among all pairs of its selection split."""
    selection = {seed: data.selection for seed, data in experiment.data.items()}
    values: Values = {}
    for name in experiment.populations:
        seen = _outputs(experiment, name, selection, weights)
        for arm in (arm for arm in experiment.arms if arm.population == name):
            labels = selection[arm.seed].targets
            right = [
                judged_rightly(
                    (shown[pairs.first] - shown[pairs.second]).norm(dim=-1),
                    pairs.same.to(shown.device),
                    balanced_threshold(*all_pairs(own, labels)),
                )
                for own, shown in zip(seen[arm.rows], outputs[name][arm.rows], strict=True)
            ]
            values[arm.method, arm.seed] = torch.stack(right).float().cpu()
    return values


def _by_method(experiment: Experiment, sets: Sets, weights: Weights, *, final: bool) -> tuple[Values, dict[str, int]]:
    """The metric of every method's children, and how many of them collapsed."""
    outputs = {name: _outputs(experiment, name, sets, weights) for name in experiment.populations}
    values = (
        _told_apart(experiment, outputs, weights, experiment.pairs)
        if final and experiment.pairs is not None
        else _trained(experiment, sets, outputs, experiment.metric)
    )
    for written in experiment.config.methods:
        method = entry(written).method
        arms = {arm.seed: arm for arm in experiment.arms if method.after and arm.method == method.after[0]}
        for seed, arm in arms.items():
            if method.derived == "best":
                values[written, seed] = values[arm.method, seed][best_child(experiment, arm)]
            elif method.derived == "guard":
                values[written, seed] = values[kept(experiment, seed).method, seed]
        if method.derived in ("offsets", "offsets-of-reward", "bayes"):
            parts = _fitted_on(experiment, both=final and method.derived == "offsets")
            change = _by_cost(experiment) if method.derived == "bayes" else _by_offsets(experiment)
            population = next(iter(arms.values())).population
            seen = torch.cat([_outputs(experiment, population, part, weights) for part in parts], 1)
            for seed, arm in arms.items():
                labels = torch.cat([part[seed].targets for part in parts])
                moved = _changed(change, seen[arm.rows], labels, outputs[population][arm.rows])
                targets = sets[seed].targets.expand(arm.children, -1)
                values[written, seed] = measure(experiment.metric, moved, targets, experiment.config.steps)
    return values, _collapsed(experiment, outputs)


def best_child(experiment: Experiment, arm: Arm) -> int:
    """Which child of an arm the selection split likes best."""
    return int(experiment.populations[arm.population].best_errors[arm.rows].argmin())


def kept(experiment: Experiment, seed: int) -> Arm:
    """What the guard keeps of a policy: ``ala``, or ``fixed`` where the selection split prefers its children.

    Both sides have as many children; the mean over them of their best score decides.
    """
    arms = [arm for arm in experiment.arms if arm.seed == seed and arm.method in ("ala", "fixed")]
    return min(
        sorted(arms, key=lambda arm: arm.method != "fixed"),
        key=lambda arm: float(experiment.populations[arm.population].best_errors[arm.rows].mean()),
    )


def _outputs(experiment: Experiment, population: str, sets: Sets, weights: Weights) -> Tensor:
    rows = [arm.seed for arm in experiment.arms if arm.population == population for _ in range(arm.children)]
    outputs = experiment.populations[population].children.outputs([sets[seed].inputs for seed in rows], weights)
    return outputs.nan_to_num(0.0, 0.0, 0.0) if experiment.populations[population].failed.any() else outputs


def _fitted_on(experiment: Experiment, *, both: bool) -> list[Sets]:
    """What offsets are fitted on: the reward split; the selection split too if that is not what is scored."""
    parts = [{seed: data.reward for seed, data in experiment.data.items()}]
    if both:
        parts.append({seed: data.selection for seed, data in experiment.data.items()})
    return parts


Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From a child's outputs on what is fitted on [F, C], its labels [F], and outputs [V, C] to other outputs [V, C]."""


def _by_offsets(experiment: Experiment) -> Change:
    """Shifted by the offsets that the metric likes best."""
    errors = _errors(experiment.metric)
    return lambda seen, labels, outputs: outputs + fit_offsets(seen, labels, errors)


def _by_cost(experiment: Experiment) -> Change:
    """Calibrated, then by what each decision is expected to cost."""
    costs = costs_of(experiment.metric, "bayes-decision")

    def change(seen: Tensor, labels: Tensor, outputs: Tensor) -> Tensor:
        scale, bias = calibrate(seen, labels)
        return -expected_costs(scale * outputs + bias, costs)

    return change


def _changed(change: Change, seen: Tensor, labels: Tensor, outputs: Tensor) -> Tensor:
    """The outputs of each child [n, V, C], changed by what can be fitted on what it is ``seen`` to say [n, F, C]."""
    return torch.stack([change(one, labels, other) for one, other in zip(seen, outputs, strict=True)])


def _errors(metric: Metric) -> Callable[[Tensor, Tensor], Tensor]:
    """The metric as an error of many outputs [G, V, C] for the same targets [V]."""

    def errors(outputs: Tensor, targets: Tensor) -> Tensor:
        each = targets.expand(len(outputs), -1)
        return error(metric, score_children(metric, outputs, each))

    return errors
