"""Top-k error: the true class is not among the k classes with the highest scores."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics.base import MeanMetric
from lossalign.metrics.check import check_classes
from lossalign.metrics.registry import METRICS, MetricEntry


def missed_by_top_k(outputs: Tensor, targets: Tensor, k: int) -> Tensor:
    """1 for samples whose true class has k or more classes ahead of it.

    A class is ahead if it scores higher, or the same and comes earlier; so ties are broken as in argmax, and k = 1
    gives the error rate. A sample whose true class scores NaN is wrong.

    Args:
        outputs: scores [..., V, C].
        targets: labels [..., V].
        k: number of guesses.

    Returns:
        1 for the samples that are missed, 0 for the others [..., V].

    Example:
        >>> outputs = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 2.0]])
        >>> missed_by_top_k(outputs, torch.tensor([1, 2]), k=2)
        tensor([0., 1.])
    """
    own = outputs.gather(-1, targets[..., None])
    earlier = torch.arange(outputs.shape[-1], device=outputs.device) < targets[..., None]
    ahead = ~(outputs <= own) | ((outputs == own) & earlier)
    return (ahead.sum(-1) >= k).float()


def top_k_error(outputs: Tensor, targets: Tensor, k: int) -> Tensor:
    """Share of the samples [...] that are ``missed_by_top_k``, from outputs [..., V, C] and labels [..., V]."""
    return missed_by_top_k(outputs, targets, k).mean(-1)


@final
class TopKError(MeanMetric):
    """Share of the samples whose class is not among the ``k`` that score highest.

    Args:
        k: number of guesses.

    Example:
        >>> TopKError(2)(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([1]))
        tensor(0.)
    """

    higher_is_better = False
    percent = True
    vectorised = True

    def __init__(self, k: int) -> None:
        if k < 1:
            raise InputError(f"k={k}: allow at least one guess.")
        self.k = k
        self.name = f"top{k}-error"

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for the samples whose class is not among the first k, 0 for the others [V]."""
        if self.k >= outputs.shape[-1]:
            raise InputError(f"k={self.k}: with {outputs.shape[-1]} classes nothing can be wrong; choose a smaller k.")
        check_classes(self.name, outputs, targets)
        return missed_by_top_k(outputs, targets, self.k)


METRICS.add(
    "top5-error", "share of samples whose class is not among the first five", MetricEntry(make=lambda: TopKError(5))
)
