"""Functions of one child's outputs, applied to all children."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lossalign.core import lifting
from lossalign.metrics.base import Metric

_TOGETHER = {"cpu": 2**20, "cuda": 2**28}
"""Most pairs of samples, of all children, that are compared in one vmap. More are scored one child at a time, which
keeps the device busy too and lets a metric read the labels."""


def over_children(
    function: Callable[[Tensor, Tensor], Tensor], vectorised: bool, outputs: Tensor, targets: Tensor
) -> Tensor:
    """The stacked results of ``function`` for each child's outputs and targets.

    Args:
        function: written for one child, e.g. a ``Metric``.
        vectorised: lift it with ``torch.func.vmap``; otherwise call it once for each child.
        outputs: [N, V, ...].
        targets: [N, V].

    Returns:
        [N, ...].

    Example:
        >>> from lossalign.metrics import ErrorRate
        >>> outputs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> over_children(ErrorRate(), True, outputs, torch.tensor([[0], [0]]))
        tensor([0., 1.])
    """
    if vectorised:
        with lifting(getattr(function, "__qualname__", type(function).__name__)):
            lifted: Tensor = torch.func.vmap(function)(outputs, targets)
        return lifted
    return torch.stack([function(o, t) for o, t in zip(outputs, targets, strict=True)])


def score_children(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``metric`` of each child's outputs [N, V, …] and targets [N, V], in its own direction [N]."""
    pairs = outputs.shape[0] * outputs.shape[1] ** 2 if metric.pairwise else 0
    together = pairs <= _TOGETHER.get(outputs.device.type, _TOGETHER["cuda"])
    return over_children(metric, metric.vectorised and together, outputs, targets)
