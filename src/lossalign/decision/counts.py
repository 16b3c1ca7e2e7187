"""A metric as a function of the confusion counts, whatever it is: ours, torchmetrics', or a black box."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from lossalign.metrics import ConfusionMetric, Metric, error, score_children

SURE = 20.0
"""Logit of a predicted class where only the prediction matters; the others are 0."""

_SAMPLES = 1000
_TOGETHER = 2**24


def as_outputs(predictions: Tensor, classes: int) -> Tensor:
    """Outputs [..., C] whose argmax, by far, are the predictions [...].

    Example:
        >>> as_outputs(torch.tensor([1, 0]), 2)
        tensor([[ 0., 20.],
                [20.,  0.]])
    """
    return SURE * torch.nn.functional.one_hot(predictions, classes).float()


def rounded(counts: Tensor, total: int) -> Tensor:
    """Counts [N, C, C] in proportion, as whole numbers that sum to ``total``; the largest remainders are rounded up.

    Example:
        >>> rounded(torch.tensor([[[1.5, 0.0], [0.5, 1.0]]]), 10)
        tensor([[[5, 0],
                 [2, 3]]])
    """
    shares = counts.flatten(1).double()
    shares = shares / shares.sum(-1, keepdim=True) * total
    whole = (shares + 1e-9).floor()
    left = total - whole.sum(-1, keepdim=True)
    rank = (whole - shares).argsort(stable=True, dim=-1).argsort(dim=-1)
    found: Tensor = whole + (rank < left)
    return found.long().view(counts.shape)


@final
class CountsScore:
    """The score of confusion counts under a metric, where more is better.

    A ``ConfusionMetric`` is computed from the counts. Any other metric is called on samples that have these counts:
    one output per sample whose argmax is the prediction. It is then a function of pairs (prediction, label), whatever
    their order, and ``decides`` says whether the metric is one. Results are remembered, so that no counts are scored
    twice.

    Args:
        metric: the metric.
        classes: C.
        samples: samples that counts are spread over for a black box: a multiple of this, at least 1,000.
        scale_free: whether more samples of the same shares leave the metric unchanged; otherwise exactly ``samples``.

    Attributes:
        calls: how often a black box was called.

    Example:
        >>> from lossalign.metrics import FunctionMetric, MacroF1
        >>> counts = torch.tensor([[[1.0, 1.0], [0.0, 2.0]]])
        >>> CountsScore(MacroF1(), 2, 4)(counts)
        tensor([0.7333])
        >>> CountsScore(FunctionMetric(MacroF1(), higher_is_better=True), 2, 4)(counts)
        tensor([0.7333])
    """

    def __init__(self, metric: Metric, classes: int, samples: int, scale_free: bool = True) -> None:
        self.metric, self.classes, self.calls = metric, classes, 0
        self.exact = isinstance(metric, ConfusionMetric)
        self.total = samples * math.ceil(_SAMPLES / samples) if scale_free else samples
        self._known: dict[bytes, float] = {}

    def __call__(self, counts: Tensor) -> Tensor:
        """Scores [...] of counts [..., C, C]; −inf where the metric is NaN."""
        flat = counts.reshape(-1, self.classes, self.classes)
        if isinstance(self.metric, ConfusionMetric):
            scores = -error(self.metric, self.metric.from_counts(flat.float()))
        else:
            scores = self._called(rounded(flat, self.total))
        return scores.nan_to_num(nan=-torch.inf).reshape(counts.shape[:-2])

    def _called(self, counts: Tensor) -> Tensor:
        keys = [each.numpy().tobytes() for each in counts.flatten(1).to("cpu", torch.int32)]
        new = list({key: at for at, key in enumerate(keys) if key not in self._known}.values())
        for some in torch.tensor(new).split(max(1, _TOGETHER // (self.total * self.classes))) if new else ():
            scores = self._scored(counts[some])
            self._known.update(zip((keys[at] for at in some), scores.tolist(), strict=True))
        return torch.tensor([self._known[key] for key in keys], device=counts.device)

    def _scored(self, counts: Tensor) -> Tensor:
        cells = torch.arange(self.classes**2, device=counts.device)
        drawn = torch.stack([cells.repeat_interleave(each.flatten()) for each in counts])
        outputs = as_outputs(drawn % self.classes, self.classes)
        self.calls += len(counts)
        return -error(self.metric, score_children(self.metric, outputs, drawn // self.classes))


def confusions(predictions: Tensor, truth: Tensor, draws: Tensor | None = None) -> Tensor:
    """Confusion counts [F, B, C, C] of predictions [F, V] against truths that may be soft [F, V, C].

    Args:
        predictions: classes.
        truth: how much of a sample is of each class.
        draws: how often each sample counts, [B, V] for B resampled sets; None: once, B = 1.

    Example:
        >>> confusions(torch.tensor([[0, 1]]), torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
        tensor([[[[1.0000, 0.5000],
                  [0.0000, 0.5000]]]])
    """
    weighed = truth[:, None] if draws is None else truth[:, None] * draws[..., None]  # [F, B, V, C]
    fits, sets, _, classes = weighed.shape
    at = torch.arange(fits * sets, device=truth.device).view(fits, sets, 1) * classes + predictions[:, None]
    table = weighed.new_zeros(fits * sets * classes, classes).index_add(0, at.flatten(), weighed.flatten(0, 2))
    return table.view(fits, sets, classes, classes).mT
