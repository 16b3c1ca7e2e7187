"""Top-k error: the right class is not among the k that score highest."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics.base import Metric


def top_k_error(outputs: Tensor, targets: Tensor, k: int) -> Tensor:
    """Share of the samples with k or more classes ahead of the true one.

    A class is ahead if it scores higher, or the same and comes earlier; so ties are broken as by argmax, and k = 1 is
    the error rate. A sample whose true class scores NaN is wrong.

    Args:
        outputs: scores [..., V, C].
        targets: labels [..., V].
        k: how many guesses are allowed.

    Returns:
        The error [...].

    Example:
        >>> outputs = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 2.0]])
        >>> top_k_error(outputs, torch.tensor([1, 2]), k=2)
        tensor(0.5000)
    """
    own = outputs.gather(-1, targets[..., None])
    earlier = torch.arange(outputs.shape[-1], device=outputs.device) < targets[..., None]
    ahead = ~(outputs <= own) | ((outputs == own) & earlier)
    return (ahead.sum(-1) >= k).float().mean(-1)


@final
class TopKError(Metric):
    """Share of the samples whose class is not among the ``k`` that score highest.

    Args:
        k: how many guesses are allowed.

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

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The top-k error, a scalar, of outputs [V, C] against labels [V]."""
        if self.k >= outputs.shape[-1]:
            raise InputError(f"k={self.k}: with {outputs.shape[-1]} classes nothing can be wrong; choose a smaller k.")
        return top_k_error(outputs, targets, self.k)
