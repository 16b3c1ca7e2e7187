"""The average of a model's weights on which the validation metric is measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lossalign.children import average_, average_decay
from lossalign.core import Ranks
from lossalign.training.weights import Weights, buffers_of_first_rank, check_same_weights, weights_of


def full_precision(tensor: Tensor) -> Tensor:
    """Half-precision weights as float32, as an average of them would stall at their resolution.

    Example:
        >>> full_precision(torch.zeros(1, dtype=torch.bfloat16)).dtype, full_precision(torch.zeros(1).long()).dtype
        (torch.float32, torch.int64)
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class WeightAverage:
    """Exponential moving average of the weights of one model.

    Args:
        steps: time constant in steps of K iterations; None: no average, the weights themselves are measured.
        every: K.
    """

    def __init__(self, steps: float | None, every: int) -> None:
        self._decay = None if steps is None else 1 - 1 / max(1.0, steps * every)
        self.weights: Weights | None = None

    def update(self, model: nn.Module, iteration: int, without: str | None = None) -> None:
        """Take in the weights after iteration 0, 1, …, except those whose names begin with ``without``."""
        if self._decay is None:
            return
        current = {name: full_precision(tensor.detach()) for name, tensor in weights_of(model, without).items()}
        check_same_weights(self.weights, current)
        if self.weights is None:
            self.weights = {name: tensor.clone() for name, tensor in current.items()}
        self.weights = {name: tensor.to(current[name].device) for name, tensor in self.weights.items()}
        average_(self.weights, current, average_decay(self._decay, iteration))

    def measured(self, model: nn.Module, without: str | None = None) -> Weights | None:
        """The weights to measure in place of the model's own, None for those; buffers are those of rank 0."""
        if Ranks.current().count == 1:
            return self.weights
        shared = buffers_of_first_rank(model, weights_of(model, without) if self.weights is None else self.weights)
        if self.weights is not None:
            self.weights.update(shared)
        return self.weights or shared or None
