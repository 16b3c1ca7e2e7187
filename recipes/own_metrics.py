"""Metrics without a rule of their own, for ``--metric recipes.own_metrics:NAME`` from the root of the repository."""

import torch

from lossalign.metrics import ClassTotals, TotalsMetric, confusion_counts
from lossalign.metrics.confusion import class_totals, recalls


class GMean(TotalsMetric):
    """Geometric mean of the recalls; a class that is never found counts as 0.001."""

    name = "g-mean"
    higher_is_better = True
    percent = True

    def from_totals(self, totals: ClassTotals) -> torch.Tensor:
        """The geometric mean [...] of totals [..., C]."""
        return recalls(totals).clamp(min=1e-3).log().nanmean(-1).exp()


class TailRecall(TotalsMetric):
    """Mean recall of the second half of the classes, minus five times what that of the first half lacks to 90 %."""

    name = "tail-recall"
    higher_is_better = True
    percent = True

    def from_totals(self, totals: ClassTotals) -> torch.Tensor:
        """The tail's recall, less the penalty [...], of totals [..., C]."""
        recall = recalls(totals)
        half = recall.shape[-1] // 2
        head, tail = recall[..., :half].nanmean(-1), recall[..., half:].nanmean(-1)
        return tail - 5 * (0.9 - head).clamp(min=0)


class LongTailedError(TotalsMetric):
    """Share of wrong samples, if test classes were as long-tailed as the training classes of digits-lt: 20 to 1."""

    name = "long-tailed-error"
    higher_is_better = False
    percent = True

    def from_totals(self, totals: ClassTotals) -> torch.Tensor:
        """1 − the mean of the recalls with weights 20^(−c / (C − 1)) [...], from totals [..., C]."""
        recall = recalls(totals)
        weights = torch.logspace(0, -1, recall.shape[-1], base=20.0, device=recall.device)
        return 1 - (recall * weights).sum(-1) / weights.sum()


def tail_recall(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """``TailRecall`` as a function that can only be called, in percent."""
    return 100 * float(TailRecall().from_totals(class_totals(confusion_counts(outputs, targets))))


tail_recall.higher_is_better = True  # type: ignore[attr-defined]
