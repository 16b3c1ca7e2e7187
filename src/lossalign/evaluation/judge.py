"""Outputs of trained networks on the scored split, and the metric of every method."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lossalign.children import Weights
from lossalign.data import Pairs
from lossalign.experiments import Arm, Experiment, labelled
from lossalign.metrics import Metric
from lossalign.training import LabelledSet, measure

Split = Literal["scored", "validation", "selection"]
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
    """

    experiment: Experiment
    weights: Weights
    final: bool
    _outputs: dict[tuple[str, Split], Tensor] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The metric of the run."""
        return self.experiment.metric

    @cached_property
    def _scored(self) -> dict[int, LabelledSet]:
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
        if (population, split) not in self._outputs:
            self._outputs[population, split] = population_outputs(
                self.experiment, population, self.sets(split), self.weights
            )
        return self._outputs[population, split]

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

    def measure(self, outputs: Tensor, seed: int) -> Tensor:
        """The metric of other outputs on the scored split [n], from [n, V, C]."""
        targets = self.targets(seed, "scored").expand(len(outputs), -1)
        return measure(self.metric, outputs, targets, self.experiment.config.steps)

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
