"""Outputs of trained networks on the scored split, and the metric of every method."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from lossalign.children import Weights
from lossalign.data import Pairs
from lossalign.experiments import Arm, Experiment, labelled
from lossalign.experiments.methods import Split
from lossalign.metrics import Metric
from lossalign.training import LabelledSet, measure

T = TypeVar("T")
Values = dict[tuple[str, int], Tensor]
"""The metric of every child [n], or whether it judges each pair correctly [n, pairs], by method and seed."""


def population_outputs(
    experiment: Experiment, population: str, sets: dict[int, LabelledSet], weights: Weights
) -> Tensor:
    """Outputs of all networks of a population, each on the set of its seed [N, V, …]; values that are not finite
    become zeros if a network has failed."""
    inputs = [sets[arm.seed].inputs for arm in experiment.arms_of(population) for _ in range(arm.children)]
    outputs = experiment.populations[population].children.outputs(inputs, weights)
    return outputs.nan_to_num(0.0, 0.0, 0.0) if experiment.populations[population].failed.any() else outputs


def population_targets(experiment: Experiment, population: str, sets: dict[int, LabelledSet]) -> list[Tensor]:
    """Labels of the set of each network's seed, one [V] for each of N."""
    return [sets[arm.seed].targets for arm in experiment.arms_of(population) for _ in range(arm.children)]


@dataclass
class Judge:
    """Every method of a trained experiment under one choice of weights.

    Args:
        experiment: a trained experiment.
        weights: the weights that are scored.
        final: score the test split, instead of the selection split.
        said: sentences to print below the table.
    """

    experiment: Experiment
    weights: Weights
    final: bool
    said: list[str] = field(default_factory=list)
    _outputs: dict[tuple[str, Split, Weights], Tensor] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def under(self, weights: Weights) -> Judge:
        """The same experiment under another choice of weights; what was computed is shared."""
        return self if weights == self.weights else replace(self, weights=weights)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returns, made once for all weights."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def say(self, sentence: str) -> None:
        """Have a sentence printed below the table, once."""
        if sentence not in self.said:
            self.said.append(sentence)

    @property
    def metric(self) -> Metric:
        """The metric of the run."""
        return self.experiment.metric

    @property
    def _scored(self) -> dict[int, LabelledSet]:
        return self.once("scored", self._load)

    def _load(self) -> dict[int, LabelledSet]:
        data = self.experiment.data
        if not self.final:
            return {seed: each.selection for seed, each in data.items()}
        return {seed: labelled(each.test, each.transform, self.experiment.device) for seed, each in data.items()}

    def sets(self, split: Split) -> dict[int, LabelledSet]:
        """The sets of a split, by seed."""
        if split == "scored":
            return self._scored
        return {seed: getattr(each, split) for seed, each in self.experiment.data.items()}

    def of_population(self, population: str, split: Split) -> Tensor:
        """Outputs of a whole population on a split [N, V, …]."""
        if split == "selection" and not self.final:
            split = "scored"
        key = population, split, self.weights
        if key not in self._outputs:
            self._outputs[key] = population_outputs(self.experiment, population, self.sets(split), self.weights)
        return self._outputs[key]

    def outputs(self, method: str, seed: int, split: Split) -> Tensor:
        """Outputs of each child on a split [n, V, C]."""
        arm = self.experiment.arm(method, seed)
        return self.of_population(arm.population, split)[arm.rows]

    def targets(self, seed: int, split: Split) -> Tensor:
        """Labels of a split [V]."""
        return self.sets(split)[seed].targets

    def selection_errors(self, method: str, seed: int) -> Tensor:
        """The best selection metric of each child, as an error [n]."""
        return selection_errors(self.experiment, self.experiment.arm(method, seed))

    def folds(self, seed: int) -> Tensor:
        """The fold of every sample of the validation split [V], for methods that train on that split too."""
        return self.experiment.data[seed].folds

    def measure(self, outputs: Tensor, seed: int, *, one_hot: bool = False) -> Tensor:
        """The metric of other outputs on the scored split [n], from [n, V, C]; ``one_hot``: against labels [V, C]."""
        targets = self.targets(seed, "scored")
        if one_hot:
            targets = torch.nn.functional.one_hot(targets, outputs.shape[-1])
        return measure(self.metric, outputs, targets.expand(len(outputs), *targets.shape), self.experiment.config.steps)

    def value(self, method: str, seed: int) -> Tensor:
        """The metric of a trained method's children [n], or whether each judges each pair correctly [n, pairs]."""
        return self.trained[method, seed]

    @cached_property
    def trained(self) -> Values:
        """The metric of every arm."""
        values: Values = {}
        for name in self.experiment.populations:
            found = self.experiment.kind.judge(_Networks(self, name))
            values |= {(arm.method, arm.seed): found[arm.rows] for arm in self.experiment.arms_of(name)}
        return values

    @cached_property
    def values(self) -> Values:
        """The metric of every method, trained and derived."""
        derived = {
            (spec.text, seed): spec.derived.derivation.score(self, seed)
            for spec in self.experiment.config.methods.specs
            if spec.derived is not None
            for seed in self.experiment.data
        }
        return {**self.trained, **derived}


def selection_errors(experiment: Experiment, arm: Arm) -> Tensor:
    """The best selection metric of each child of an arm, as an error [n]."""
    return experiment.populations[arm.population].best_errors[arm.rows]


@dataclass
class _Networks:
    """The networks of one population, for the kind of the task."""

    judge: Judge
    population: str

    @property
    def final(self) -> bool:
        """Whether the test split is scored."""
        return self.judge.final

    @property
    def pairs(self) -> Pairs | None:
        """Pairs of the test split to verify."""
        return self.judge.experiment.pairs

    def measured(self) -> Tensor:
        """The metric of every network [N]."""
        experiment = self.judge.experiment
        targets = torch.stack(population_targets(experiment, self.population, self.judge.sets("scored")))
        outputs = self.judge.of_population(self.population, "scored")
        return measure(experiment.metric, outputs, targets, experiment.populations[self.population].steps)

    def embedded(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For every network: embeddings of the scored split, of the selection split, and the latter's labels."""
        labels = population_targets(self.judge.experiment, self.population, self.judge.sets("selection"))
        scored = self.judge.of_population(self.population, "scored")
        own = self.judge.of_population(self.population, "selection")
        return list(zip(scored, own, labels, strict=True))
