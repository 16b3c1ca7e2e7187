"""Random decisions, drawn from a CPU generator on every device, so that a seed gives the same decisions everywhere.

Up to 65,536 decisions are drawn as ``torch.multinomial`` and ``torch.randperm`` draw them. A loss with pairs of 1,000
classes needs 500,000 for each step; then one uniform number a decision, and a draw without shuffling all of them, are
twenty times faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MANY = 2**16


def draw_actions(probabilities: Tensor, generators: Sequence[torch.Generator], antithetic: bool = False) -> Tensor:
    """One action [G, n, …] from each row of ``probabilities`` [G, n, …, A], by a generator for each of G policies.

    Few decisions of a policy take the action with the largest π_a / e_a, e_a ~ Exp(1); many invert the cumulative
    distribution F: the first a with u < F(a). ``antithetic`` inverts F too, with u for one child and 1 − u for the
    next.

    Example:
        >>> draw_actions(torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]), [torch.Generator().manual_seed(0)])
        tensor([[1, 2]])
    """
    decisions, device = probabilities.shape[:-1], probabilities.device
    if probabilities[0, ..., 0].numel() <= _MANY and not antithetic:
        noise = torch.empty(probabilities.shape)
        for own, generator in zip(noise, generators, strict=True):
            own.exponential_(generator=generator)
        return (probabilities / noise.to(device)).argmax(-1)
    uniform = torch.empty(decisions)
    for own, generator in zip(uniform, generators, strict=True):
        own.uniform_(generator=generator)
        if antithetic:
            own[1::2] = 1 - own[: len(own) // 2 * 2 : 2]
    uniform = uniform.to(device)
    return (uniform[..., None] >= probabilities[..., :-1].cumsum(-1)).sum(-1)


def draw_some(size: int, some: int, generator: torch.Generator) -> Tensor:
    """``some`` different numbers below ``size``, all equally likely; all of them if ``size`` is not larger.

    If ``size`` is large, one is drawn from each of ``some`` consecutive parts of equal size, with a random offset.

    Example:
        >>> draw_some(3, 5, torch.Generator())
        tensor([0, 1, 2])
        >>> len(draw_some(500_000, 4096, torch.Generator()).unique())
        4096
    """
    if size <= some:
        return torch.arange(size)
    if size <= _MANY:
        return torch.randperm(size, generator=generator)[:some]
    edges = torch.arange(some + 1) * size // some
    within = torch.rand(some, dtype=torch.float64, generator=generator) * edges.diff()
    return (torch.randint(size, (1,), generator=generator) + edges[:-1] + within.long()) % size
