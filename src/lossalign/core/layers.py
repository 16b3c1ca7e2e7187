"""A linear layer on cosines, used by models and engines."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core.errors import InputError


def scaled_cosine(x: Tensor, weight: Tensor, scale: float) -> Tensor:
    """scale · cos(x, w_c), in the weights' precision, also under autocast: 30 · cos needs more digits than bfloat16.

    Args:
        x: features [..., B, in].
        weight: one direction w_c for each output [..., out, in].
        scale: the largest value an output can take.

    Returns:
        [..., B, out].

    Example:
        >>> scaled_cosine(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, 0.5]]), scale=10.0)
        tensor([[6., 8.]])
    """
    with torch.autocast(x.device.type, enabled=False):
        directions = F.normalize(weight, dim=-1)
        return scale * (F.normalize(x.to(weight.dtype), dim=-1) @ directions.mT)


class CosineLinear(nn.Module):
    """A linear layer that uses directions only: scale · cos(x, w_c), without a bias.

    Cao et al. (2019, arXiv 1906.07413) train LDAM with it; there the scale is part of the loss. As in their
    code, weights start at random directions of length 1.

    Args:
        in_features: features of one input.
        out_features: C.
        scale: the largest value a logit can take.

    Example:
        >>> CosineLinear(64, 10)(torch.randn(5, 64)).abs().max() <= 30
        tensor(True)
    """

    def __init__(self, in_features: int, out_features: int, scale: float = 30.0) -> None:
        super().__init__()
        if scale <= 0:
            raise InputError(f"scale={scale}: logits are scale · cos; give a positive number such as 30.")
        self.in_features, self.out_features, self.scale = in_features, out_features, scale
        drawn = torch.empty(out_features, in_features).uniform_(-1, 1)
        self.weight = nn.Parameter(F.normalize(drawn, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, …, in] → [B, …, out]."""
        return scaled_cosine(x, self.weight, self.scale)

    def extra_repr(self) -> str:
        """Sizes and scale."""
        return f"in_features={self.in_features}, out_features={self.out_features}, scale={self.scale}"
