"""Metrics of the confusion counts: how often truth i was called j. Pure functions of counts first, then the classes.

The functions take counts [..., C, C] and are batched over the leading axes. A class without samples has no recall and
no F1 of its own: means and minima run over the classes that are present in the targets, as scikit-learn's balanced
accuracy does.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics.base import Metric


def confusion_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples of class i (row) are predicted as class j (column), by argmax; ties go to the first class.

    Args:
        outputs: scores [V, C].
        targets: labels [V].

    Returns:
        Counts [C, C], float32 whatever autocast says: a matmul of one-hot rows would lose samples there.

    Example:
        >>> confusion_counts(torch.tensor([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor([[1., 1.],
                [0., 1.]])
    """
    size = outputs.shape[-1]
    cells = targets * size + outputs.argmax(-1)
    ones = torch.ones_like(cells, dtype=torch.float32)
    return torch.zeros(size * size, device=outputs.device).scatter_add(0, cells, ones).view(size, size)


def error_rate(counts: Tensor) -> Tensor:
    """Share of the samples that are wrong [...].

    Example:
        >>> error_rate(torch.tensor([[3.0, 1.0], [0.0, 4.0]]))
        tensor(0.1250)
    """
    total = counts.sum((-2, -1))
    return (total - _correct(counts).sum(-1)) / total


def recalls(counts: Tensor) -> Tensor:
    """Share of each class that is right [..., C]; NaN for a class without samples.

    Example:
        >>> recalls(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
        tensor([0.7500,    nan])
    """
    return _correct(counts) / counts.sum(-1)


def balanced_error(counts: Tensor) -> Tensor:
    """1 − the mean recall of the classes present [...].

    Example:
        >>> balanced_error(torch.tensor([[3.0, 1.0], [0.0, 4.0]]))
        tensor(0.1250)
    """
    return 1 - recalls(counts).nanmean(-1)


def worst_class_recall(counts: Tensor) -> Tensor:
    """The lowest recall among the classes present [...].

    Example:
        >>> worst_class_recall(torch.tensor([[3.0, 1.0], [0.0, 4.0]]))
        tensor(0.7500)
    """
    return recalls(counts).nan_to_num(nan=torch.inf).amin(-1)


def macro_f1(counts: Tensor) -> Tensor:
    """Mean over the classes present of F1 = 2 TP / (2 TP + FP + FN) [...].

    Nothing is undefined: a class that is present has TP + FN > 0, and its F1 is 0 if it is never predicted.

    Example:
        >>> macro_f1(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))  # (2/3 + 4/5) / 2
        tensor(0.7333)
    """
    truths, predictions = counts.sum(-1), counts.sum(-2)
    f1 = 2 * _correct(counts) / (truths + predictions)
    return f1.where(truths > 0, torch.nan).nanmean(-1)


def mean_cost(counts: Tensor, costs: Tensor) -> Tensor:
    """Σ_ij n_ij cost_ij / Σ_ij n_ij [...]; cost_ij is paid when truth i is called j.

    Example:
        >>> mean_cost(torch.tensor([[3.0, 1.0], [0.0, 4.0]]), torch.tensor([[0.0, 10.0], [1.0, 0.0]]))
        tensor(1.2500)
    """
    return (counts * costs).sum((-2, -1)) / counts.sum((-2, -1))


def _correct(counts: Tensor) -> Tensor:
    return counts.diagonal(dim1=-2, dim2=-1)


class ConfusionMetric(Metric):
    """A metric that is a function of the confusion counts alone."""

    vectorised = True

    @abstractmethod
    def from_counts(self, counts: Tensor) -> Tensor:
        """The metric [...] of counts [..., C, C]."""

    @final
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar, of outputs [V, C] against labels [V]."""
        return self.from_counts(confusion_counts(outputs, targets))


@final
class ErrorRate(ConfusionMetric):
    """Share of the samples that are wrong, 1 − accuracy."""

    name = "error"
    higher_is_better = False
    percent = True

    def from_counts(self, counts: Tensor) -> Tensor:
        """The error rate [...] of counts [..., C, C]."""
        return error_rate(counts)


@final
class BalancedError(ConfusionMetric):
    """1 − the mean recall over classes: every class counts the same, however rare.

    Example:
        >>> outputs = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
        >>> BalancedError()(outputs, torch.tensor([0, 0, 0, 1]))
        tensor(0.5000)
    """

    name = "balanced-error"
    higher_is_better = False
    percent = True

    def from_counts(self, counts: Tensor) -> Tensor:
        """The balanced error [...] of counts [..., C, C]."""
        return balanced_error(counts)


@final
class WorstClassRecall(ConfusionMetric):
    """The recall of the class that fares worst."""

    name = "worst-recall"
    higher_is_better = True
    percent = True

    def from_counts(self, counts: Tensor) -> Tensor:
        """The lowest recall [...] of counts [..., C, C]."""
        return worst_class_recall(counts)


@final
class MacroF1(ConfusionMetric):
    """F1 of each class, averaged over classes."""

    name = "macro-f1"
    higher_is_better = True
    percent = True

    def from_counts(self, counts: Tensor) -> Tensor:
        """The mean F1 [...] of counts [..., C, C]."""
        return macro_f1(counts)


@final
class MeanCost(ConfusionMetric):
    """What the predictions cost on average, when some mistakes are dearer than others.

    Args:
        costs: cost [C, C] of predicting j (column) for truth i (row). What is right may cost something too.

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
