"""Who goes on with whose weights: truncation selection, as in population-based training."""

from __future__ import annotations

import torch
from torch import Tensor


def heirs(errors: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Parents [n]: the worst ``share`` of children inherit from one of the best ``share`` each, the others stay.

    A share above ½ leaves as many parents as are not heirs; 1 makes the best child everybody's parent.

    Args:
        errors: of every child, lower is better [n].
        share: of children that inherit, 0 to 1.
        generator: draws whom they inherit from.

    Example:
        >>> heirs(torch.tensor([0.3, 0.1, 0.2, 0.4]), 0.25, torch.Generator())
        tensor([0, 1, 2, 1])
        >>> heirs(torch.tensor([0.3, 0.1, 0.2, 0.4]), 1.0, torch.Generator())
        tensor([1, 1, 1, 1])
    """
    n = len(errors)
    order = errors.argsort()
    number = min(n - 1, round(share * n))
    best = max(1, min(number, n - number))
    parents = torch.arange(n)
    parents[order[n - number :]] = order[torch.randint(best, (number,), generator=generator)]
    return parents
