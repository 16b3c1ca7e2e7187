"""From one child to all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def over_children(
    function: Callable[[Tensor, Tensor], Tensor], vectorised: bool, outputs: Tensor, targets: Tensor
) -> Tensor:
    """``function`` of each child's outputs and targets, stacked.

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
        lifted: Tensor = torch.func.vmap(function)(outputs, targets)
        return lifted
    return torch.stack([function(o, t) for o, t in zip(outputs, targets, strict=True)])
