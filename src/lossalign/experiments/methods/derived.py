"""Derived methods: they choose among trained children, or change their outputs after training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.decision import calibrate, expected_costs, fit_offsets
from lossalign.experiments.methods.spec import Judged
from lossalign.metrics import MeanCost, Metric, error, score_children


def costs_of(metric: Metric, method: str) -> Tensor:
    """The cost matrix of the metric; ``method`` is the method that needs it, for the error."""
    if not isinstance(metric, MeanCost):
        raise InputError(f"method {method!r} needs costs; use it with --metric mean-cost:FILE.csv.")
    return metric.costs


class AnyMetric:
    """A derivation that works with every metric."""

    def check(self, name: str, metric: Metric) -> None:
        """Accept every metric."""


@dataclass(frozen=True)
class BestOf(AnyMetric):
    """The child of a method with the best selection metric."""

    of: str

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of that child."""
        return judged.value(self.of, seed)[int(judged.selection_errors(self.of, seed).argmin())]


@dataclass(frozen=True)
class Guard(AnyMetric):
    """The adapting method, or the fixed one where that is better on the selection split.

    The mean over children of their best selection metric decides; both methods should have the same number of children.
    """

    adapting: str
    fixed: str

    def keeps(self, judged: Judged, seed: int) -> str:
        """The name of the method that is kept."""
        means = {name: float(judged.selection_errors(name, seed).mean()) for name in (self.fixed, self.adapting)}
        return min(means, key=lambda name: means[name])

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of the children that are kept."""
        return judged.value(self.keeps(judged, seed), seed)


class Decision(ABC):
    """A method's outputs, changed after training by a rule that is fitted on held-out outputs."""

    of: str

    @abstractmethod
    def splits(self, judged: Judged) -> tuple[str, ...]:
        """The splits that it is fitted on."""

    @abstractmethod
    def change(self, metric: Metric) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """(outputs to fit on [F, C], their labels [F], outputs [V, C]) → changed outputs [V, C], for one child."""

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of the changed outputs of each child [n]."""
        splits, change = self.splits(judged), self.change(judged.metric)
        fitted = torch.cat([judged.outputs(self.of, seed, split) for split in splits], 1)  # type: ignore[arg-type]
        labels = torch.cat([judged.targets(seed, split) for split in splits])  # type: ignore[arg-type]
        scored = judged.outputs(self.of, seed, "scored")
        changed = [change(one, labels, other) for one, other in zip(fitted, scored, strict=True)]
        return judged.measure(torch.stack(changed), seed)


@dataclass(frozen=True)
class Offsets(Decision, AnyMetric):
    """Per-class offsets fitted for the metric.

    Args:
        of: the method whose outputs are shifted.
        and_selection: fit on the selection split too, unless that is scored.
    """

    of: str
    and_selection: bool = False

    def splits(self, judged: Judged) -> tuple[str, ...]:
        """The validation split, and the selection split if it is asked for and not scored."""
        return ("validation", "selection") if self.and_selection and judged.final else ("validation",)

    def change(self, metric: Metric) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Add the offsets that give the best metric."""

        def errors(outputs: Tensor, targets: Tensor) -> Tensor:
            return error(metric, score_children(metric, outputs, targets.expand(len(outputs), -1)))

        return lambda fitted, labels, outputs: outputs + fit_offsets(fitted, labels, errors)


@dataclass(frozen=True)
class BayesDecision(Decision):
    """Calibrated probabilities, then the class with the lowest expected cost."""

    of: str

    def check(self, name: str, metric: Metric) -> None:
        """Raise ``InputError`` for a metric without costs."""
        costs_of(metric, name)

    def splits(self, judged: Judged) -> tuple[str, ...]:
        """The validation split."""
        return ("validation",)

    def change(self, metric: Metric) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Minus the expected cost of each decision."""
        assert isinstance(metric, MeanCost)
        costs = metric.costs

        def change(fitted: Tensor, labels: Tensor, outputs: Tensor) -> Tensor:
            scale, bias = calibrate(fitted, labels)
            return -expected_costs(scale * outputs + bias, costs)

        return change
