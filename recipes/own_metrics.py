"""Metrics without a rule of their own, for ``--metric recipes.own_metrics:NAME`` from the root of the repository."""

import torch

from lossalign.metrics import ClassTotals, TotalsMetric
from lossalign.metrics.confusion import recalls


class GMean(TotalsMetric):
    """Geometric mean of the recalls; a class that is never found counts as 0.001."""

    name = "g-mean"
    higher_is_better = True
    percent = True

    def from_totals(self, totals: ClassTotals) -> torch.Tensor:
        """The geometric mean [...] of totals [..., C]."""
        return recalls(totals).clamp(min=1e-3).log().nanmean(-1).exp()


def tail_recall(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Mean recall of the second half of the classes, minus five times what the first half lacks to 90 %, in percent."""
    classes = outputs.shape[-1]
    right = (outputs.argmax(-1) == targets).float()
    recall = torch.bincount(targets, right, classes) / torch.bincount(targets, minlength=classes).clamp(min=1)
    head, tail = float(recall[: classes // 2].mean()), float(recall[classes // 2 :].mean())
    return 100 * (tail - 5 * max(0.0, 0.9 - head))


tail_recall.higher_is_better = True  # type: ignore[attr-defined]
