"""The average of a model's weights on which the validation metric is measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lossalign.children import average_decay
from lossalign.core import Ranks
from lossalign.training.weights import Weights, buffers_of_first_rank, check_same_weights, weights_of

_REPAIRS = 10
"""How often in a row averages are put back."""


def full_precision(tensor: Tensor) -> Tensor:
    """Half-precision weights as float32, as an average of them would stall at their resolution.

    Example:
        >>> full_precision(torch.zeros(1, dtype=torch.bfloat16)).dtype, full_precision(torch.zeros(1).long()).dtype
        (torch.float32, torch.int64)
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


KEPT = 1 - 1 / 64
"""An update is due when the average would keep no more than this: about 64 of them within its time constant."""


class WeightAverage:
    """Exponential moving average of the weights of one model.

    It is updated when that has gathered enough weight (``KEPT``), and before every measurement, with the decay of all
    iterations since the last update: Π_i λ_i. With a time constant of up to 64 iterations that is every iteration.

    Args:
        steps: time constant in steps of K iterations; None: no average, the weights themselves are measured.
        every: K.
    """

    def __init__(self, steps: float | None, every: int) -> None:
        self._decay = None if steps is None else 1 - 1 / max(1.0, steps * every)
        self.kept = 1.0
        """Π_i λ_i over the iterations since the last update."""
        self._weights: Weights | None = None
        self._finite: Weights | None = None
        self._repaired = 0
        self._names: tuple[str, ...] | None = None
        self._devices: list[torch.device] = []
        self._floats: list[int] = []
        self._whole: list[int] = []  # such as BatchNorm's counter: copied, not averaged

    @property
    def weights(self) -> Weights | None:
        """The averages by name; None before the first iteration, and without an average."""
        return self._weights

    @weights.setter
    def weights(self, weights: Weights | None) -> None:
        self._weights, self._names, self._finite = weights, None, None

    def repair(self) -> bool:
        """Put the averages of the last call back if one is NaN or inf, as after a batch with a NaN gradient.

        Returns:
            Whether they were.
        """
        if self._weights is None:
            return False
        if all(bool(tensor.isfinite().all()) for tensor in self._weights.values()):
            self._finite = {name: tensor.clone() for name, tensor in self._weights.items()}
            self._repaired = 0
            return False
        self._repaired += 1
        if self._finite is None or self._repaired > _REPAIRS:  # the model itself is lost: measuring it says so
            return False
        for name, tensor in self._weights.items():
            tensor.copy_(self._finite[name])
        return True

    def due(self, iteration: int, *, measured: bool) -> bool:
        """Count iteration 0, 1, …; whether ``update`` is due after it, as it is if the average is ``measured`` next."""
        if self._decay is None:
            return False
        self.kept *= average_decay(self._decay, iteration)
        return measured or self._weights is None or self.kept <= KEPT

    def update(self, names: tuple[str, ...], live: Sequence[Tensor]) -> None:
        """Take in the weights; ``names`` is the same object while the model is the same."""
        if self._names is not names or any(t.device != d for t, d in zip(live, self._devices, strict=True)):
            self._adopt(names, live)
        assert self._weights is not None
        mine = list(self._weights.values())
        with torch.no_grad():
            current = [full_precision(live[i]) for i in self._floats]
            torch._foreach_lerp_([mine[i] for i in self._floats], current, 1 - self.kept)
            for i in self._whole:
                mine[i].copy_(live[i])
        self.kept = 1.0

    def _adopt(self, names: tuple[str, ...], live: Sequence[Tensor]) -> None:
        """Begin with these weights, or continue with them on the device where they are."""
        current = {name: full_precision(tensor.detach()) for name, tensor in zip(names, live, strict=True)}
        check_same_weights(self._weights, current)
        known = self._weights or {name: tensor.clone() for name, tensor in current.items()}
        self._weights = {name: known[name].to(tensor.device) for name, tensor in current.items()}
        self._names, self._devices = names, [tensor.device for tensor in live]
        self._floats = [i for i, tensor in enumerate(live) if tensor.is_floating_point()]
        self._whole = [i for i, tensor in enumerate(live) if not tensor.is_floating_point()]

    def measured(self, model: nn.Module, without: str | None = None) -> Weights | None:
        """The weights to measure in place of the model's own, None for those; buffers are those of rank 0."""
        if Ranks.current().count == 1:
            return self.weights
        shared = buffers_of_first_rank(model, weights_of(model, without) if self.weights is None else self.weights)
        if self._weights is not None:
            self._weights.update(shared)
        return self._weights or shared or None
