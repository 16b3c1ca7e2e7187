"""Offsets fitted to the outputs after training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def fit_offsets(outputs: Tensor, targets: Tensor, error: Callable[[Tensor, Tensor], Tensor], rounds: int = 3) -> Tensor:
    """Per-class offsets [C] that, added to the logits, minimise a metric on these samples.

    Coordinate descent: each class in turn tries a grid of moves and keeps the middle of the best ones; three rounds, on
    grids that halve.

    Args:
        outputs: logits of one child [V, C].
        targets: labels [V].
        error: the metric as an error, lower is better, batched over a leading axis: ([G, V, C], [V]) → [G].
        rounds: passes over the classes.

    Example:
        >>> outputs = torch.tensor([[2.0, 1.5], [2.0, 0.0]])
        >>> wrong = lambda outputs, targets: (outputs.argmax(-1) != targets).float().mean(-1)
        >>> offsets = fit_offsets(outputs, torch.tensor([1, 0]), wrong)
        >>> wrong((outputs + offsets)[None], torch.tensor([1, 0]))
        tensor([0.])
    """
    num_classes = outputs.shape[1]
    offsets = outputs.new_zeros(num_classes)
    grid = torch.linspace(-4, 4, 33, device=outputs.device, dtype=outputs.dtype)
    for round_ in range(rounds):
        for c in range(num_classes):
            tries = offsets.repeat(len(grid), 1)
            tries[:, c] += grid / 2**round_
            errors = error(outputs + tries[:, None], targets)
            best = (errors <= errors.min() + 1e-9).nonzero().flatten()
            offsets = tries[best[len(best) // 2]]
    return offsets
