"""Which children copy the weights of which: truncation selection, as in population-based training."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_parents(errors: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Index of the child whose weights each child copies [n]; its own index if it copies none.

    Each of the worst ``share`` of children copies one of the best ``share``, drawn at random. If ``share`` is above ½,
    the parents are the children that do not copy; at 1, all copy the best child.

    Args:
        errors: of every child, lower is better [n].
        share: fraction of children that inherit, 0 to 1.
        generator: draws the parents.

    Example:
        >>> choose_parents(torch.tensor([0.3, 0.1, 0.2, 0.4]), 0.25, torch.Generator())
        tensor([0, 1, 2, 1])
        >>> choose_parents(torch.tensor([0.3, 0.1, 0.2, 0.4]), 1.0, torch.Generator())
        tensor([1, 1, 1, 1])
    """
    n = len(errors)
    order = errors.argsort()
    number = min(n - 1, round(share * n))
    best = max(1, min(number, n - number))
    parents = torch.arange(n)
    parents[order[n - number :]] = order[torch.randint(best, (number,), generator=generator)]
    return parents
