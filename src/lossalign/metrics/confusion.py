"""Metrics of the confusion counts: how often class i is predicted as class j. Pure functions first, then the classes.

Most need only the totals of each class [..., C], not all counts [..., C, C]; functions are batched over the leading
axes. A class without samples has no recall and no F1: means and minima are over the
classes that are present in the targets, as scikit-learn's balanced accuracy does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics.base import Metric
from lossalign.metrics.check import check_classes
from lossalign.metrics.registry import METRICS, MetricEntry


def confusion_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples of class i (row) are predicted as class j (column), by argmax; ties go to the first class.

    Args:
        outputs: scores [V, C].
        targets: labels [V].

    Returns:
        Counts [C, C], float32, also under autocast, where a matmul of one-hot rows would lose samples.

    Example:
        >>> confusion_counts(torch.tensor([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor([[1., 1.],
                [0., 1.]])
    """
    size = outputs.shape[-1]
    cells = targets * size + outputs.argmax(-1)
    ones = torch.ones_like(cells, dtype=torch.float32)
    return torch.zeros(size * size, device=outputs.device).scatter_add(0, cells, ones).view(size, size)


def expected_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """Summed probability of class j (column) over the samples of class i (row) [C, C]; softmax in place of argmax.

    Example:
        >>> expected_counts(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 0, 1])).round()
        tensor([[1., 1.],
                [0., 1.]])
    """
    size = outputs.shape[-1]
    rows = torch.zeros(size, size, device=outputs.device)
    return rows.index_add(0, targets, outputs.float().softmax(-1))


class ClassTotals(NamedTuple):
    """Totals of each class, from confusion counts; all [..., C].

    Attributes:
        correct: samples of the class that are predicted correctly.
        truths: samples of the class.
        predictions: samples that are predicted to be of the class.
    """

    correct: Tensor
    truths: Tensor
    predictions: Tensor


def class_totals(counts: Tensor) -> ClassTotals:
    """The totals [..., C] of counts [..., C, C].

    Example:
        >>> class_totals(torch.tensor([[3.0, 1.0], [0.0, 4.0]]))
        ClassTotals(correct=tensor([3., 4.]), truths=tensor([4., 4.]), predictions=tensor([3., 5.]))
    """
    return ClassTotals(counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1), counts.sum(-2))


def corrected_totals(counts: Tensor) -> ClassTotals:
    """The totals [C, 2, C] of counts [C, C] without the errors out of, and into, each class.

    Errors out of c are row c of the counts, errors into c its column c. Every corrected error is one prediction
    less for the predicted class, and one correct prediction more for the true class.

    Example:
        >>> corrected_totals(torch.tensor([[3.0, 1.0], [0.0, 4.0]])).correct[0]  # class 0: out of it, into it
        tensor([[4., 4.],
                [3., 4.]])
    """
    correct, truths, predictions = class_totals(counts)
    errors = counts - torch.diag_embed(correct)
    gained = torch.stack([torch.diag_embed(errors.sum(-1)), errors.mT], 1)
    lost = torch.stack([errors, torch.diag_embed(errors.sum(-2))], 1)
    return ClassTotals(correct + gained, truths.expand_as(gained), predictions + gained - lost)


def error_rate(totals: ClassTotals) -> Tensor:
    """Share of the samples that are wrong [...].

    Example:
        >>> error_rate(class_totals(torch.tensor([[3.0, 1.0], [0.0, 4.0]])))
        tensor(0.1250)
    """
    total = totals.truths.sum(-1)
    return (total - totals.correct.sum(-1)) / total


def recalls(totals: ClassTotals) -> Tensor:
    """Share of each class that is right [..., C]; NaN for a class without samples.

    Example:
        >>> recalls(class_totals(torch.tensor([[3.0, 1.0], [0.0, 0.0]])))
        tensor([0.7500,    nan])
    """
    return totals.correct / totals.truths


def balanced_error(totals: ClassTotals) -> Tensor:
    """1 − the mean recall of the classes present [...].

    Example:
        >>> balanced_error(class_totals(torch.tensor([[3.0, 1.0], [0.0, 4.0]])))
        tensor(0.1250)
    """
    return 1 - recalls(totals).nanmean(-1)


def worst_class_recall(totals: ClassTotals) -> Tensor:
    """The lowest recall among the classes present [...].

    Example:
        >>> worst_class_recall(class_totals(torch.tensor([[3.0, 1.0], [0.0, 4.0]])))
        tensor(0.7500)
    """
    return recalls(totals).nan_to_num(nan=torch.inf).amin(-1)


def macro_f1(totals: ClassTotals) -> Tensor:
    """Mean over the classes present of F1 = 2 TP / (2 TP + FP + FN) [...].

    Nothing is undefined: a class that is present has TP + FN > 0, and its F1 is 0 if it is never predicted.

    Example:
        >>> macro_f1(class_totals(torch.tensor([[1.0, 1.0], [0.0, 2.0]])))  # (2/3 + 4/5) / 2
        tensor(0.7333)
    """
    f1 = 2 * totals.correct / (totals.truths + totals.predictions)
    return f1.where(totals.truths > 0, torch.nan).nanmean(-1)


def mean_cost(counts: Tensor, costs: Tensor) -> Tensor:
    """Σ_ij n_ij cost_ij / Σ_ij n_ij [...]; cost_ij is the cost of predicting j for class i.

    Example:
        >>> mean_cost(torch.tensor([[3.0, 1.0], [0.0, 4.0]]), torch.tensor([[0.0, 10.0], [1.0, 0.0]]))
        tensor(1.2500)
    """
    return (counts * costs).sum((-2, -1)) / counts.sum((-2, -1))


class ConfusionMetric(Metric):
    """A metric that is a function of the confusion counts alone."""

    vectorised = True

    @abstractmethod
    def from_counts(self, counts: Tensor) -> Tensor:
        """The metric [...] of counts [..., C, C]."""

    def corrected(self, counts: Tensor) -> Tensor | None:
        """The metric [C, 2] of counts [C, C] without the errors out of, and into, each class.

        None if there is no closed form; the counts are then corrected 2 C times.
        """
        return None

    @final
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar, of outputs [V, C] against labels [V]."""
        check_classes(self.name, outputs, targets)
        return self.from_counts(confusion_counts(outputs, targets))


class TotalsMetric(ConfusionMetric):
    """A metric of each class's totals: its sensitivity costs O(C²) instead of O(C³)."""

    @abstractmethod
    def from_totals(self, totals: ClassTotals) -> Tensor:
        """The metric [...] of totals [..., C]."""

    @final
    def from_counts(self, counts: Tensor) -> Tensor:
        """The metric [...] of counts [..., C, C]."""
        return self.from_totals(class_totals(counts))

    @final
    def corrected(self, counts: Tensor) -> Tensor:
        """The metric [C, 2] of counts [C, C] without the errors out of, and into, each class."""
        return self.from_totals(corrected_totals(counts))


@final
class ErrorRate(TotalsMetric):
    """Share of the samples that are wrong, 1 − accuracy."""

    name = "error"
    higher_is_better = False
    percent = True

    def from_totals(self, totals: ClassTotals) -> Tensor:
        """The error rate [...] of totals [..., C]."""
        return error_rate(totals)


@final
class BalancedError(TotalsMetric):
    """1 − the mean recall over classes: every class counts the same, however rare.

    Example:
        >>> outputs = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
        >>> BalancedError()(outputs, torch.tensor([0, 0, 0, 1]))
        tensor(0.5000)
    """

    name = "balanced-error"
    higher_is_better = False
    percent = True

    def from_totals(self, totals: ClassTotals) -> Tensor:
        """The balanced error [...] of totals [..., C]."""
        return balanced_error(totals)


@final
class WorstExpectedRecall(Metric):
    """The lowest mean probability of the true class: a smooth worst-class recall that does not plateau.

    Example:
        >>> WorstExpectedRecall()(torch.tensor([[0.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """

    name = "worst-expected-recall"
    higher_is_better = True
    vectorised = True
    percent = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The lowest expected recall, a scalar, of outputs [V, C] against labels [V]."""
        check_classes(self.name, outputs, targets)
        return worst_class_recall(class_totals(expected_counts(outputs, targets)))


@final
class WorstClassRecall(TotalsMetric):
    """The recall of the class with the lowest recall.

    It is 0 as long as one class is never predicted correctly; then :class:`WorstExpectedRecall` is the tie-breaker.
    """

    name = "worst-recall"
    higher_is_better = True
    percent = True
    tie_breaker = WorstExpectedRecall()

    def from_totals(self, totals: ClassTotals) -> Tensor:
        """The lowest recall [...] of totals [..., C]."""
        return worst_class_recall(totals)


@final
class MacroF1(TotalsMetric):
    """F1 of each class, averaged over classes."""

    name = "macro-f1"
    higher_is_better = True
    percent = True

    def from_totals(self, totals: ClassTotals) -> Tensor:
        """The mean F1 [...] of totals [..., C]."""
        return macro_f1(totals)


@final
class MeanCost(ConfusionMetric):
    """Mean cost of the predictions, where some mistakes cost more than others.

    Args:
        costs: cost [C, C] of predicting j (column) for truth i (row). Correct predictions may have a cost too.

    Example:
        >>> metric = MeanCost(torch.tensor([[0.0, 10.0], [1.0, 0.0]]))
        >>> metric(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        tensor(5.)
    """

    name = "mean-cost"
    higher_is_better = False

    def __init__(self, costs: Tensor) -> None:
        costs = torch.as_tensor(costs, dtype=torch.float32)
        if costs.ndim != 2 or costs.shape[0] != costs.shape[1] or not len(costs):
            raise InputError(f"costs has shape {tuple(costs.shape)}; give a square matrix, a row for each true class.")
        if not bool(costs.isfinite().all()):
            raise InputError("costs holds NaN or inf; give a finite cost for every pair of classes.")
        self.costs = costs

    def from_counts(self, counts: Tensor) -> Tensor:
        """The mean cost [...] of counts [..., C, C]."""
        if counts.shape[-1] != len(self.costs):
            raise InputError(f"costs is for {len(self.costs)} classes, the outputs have {counts.shape[-1]}.")
        return mean_cost(counts, self.costs.to(counts.device))

    def corrected(self, counts: Tensor) -> Tensor:
        """The mean cost [C, 2] of counts [C, C] without the errors out of, and into, each class."""
        costs = self.costs.to(counts.device)
        saved = counts * (costs - costs.diagonal()[:, None])
        return self.from_counts(counts) - torch.stack([saved.sum(-1), saved.sum(-2)], -1) / counts.sum()


def read_costs(path: str | Path) -> MeanCost:
    """``MeanCost`` with the matrix in a ``.csv`` (commas, no header) or ``.npy`` file."""
    path = Path(path)
    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": partial(np.loadtxt, delimiter=",", ndmin=2),
        ".npy": np.load,
    }
    if path.suffix not in readers:
        raise InputError(f"mean-cost: {str(path)!r} must end in .csv or .npy.")
    try:
        costs = torch.as_tensor(readers[path.suffix](path), dtype=torch.float32)
    except (OSError, ValueError, TypeError) as cause:
        raise InputError(f"mean-cost: {str(path)!r} cannot be read as a matrix of numbers: {cause}") from cause
    return MeanCost(costs)


METRICS.add("error", "share of samples that are wrong", MetricEntry(make=ErrorRate))
METRICS.add("balanced-error", "mean over classes of the share that is wrong", MetricEntry(make=BalancedError))
METRICS.add("macro-f1", "mean over classes of F1", MetricEntry(make=MacroF1))
METRICS.add("worst-recall", "recall of the worst class", MetricEntry(make=WorstClassRecall))
METRICS.add(
    "mean-cost",
    "mean cost of the decisions, by a matrix of costs (rows: true class): mean-cost:FILE.csv or .npy",
    MetricEntry(prefix="mean-cost:", carrying=read_costs, example="mean-cost:costs.csv"),
)
