"""The gradient of a metric in the logits of each class, although decisions have none: on soft predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.metrics.base import Metric, error
from lossalign.metrics.confusion import ConfusionMetric, expected_counts
from lossalign.metrics.sensitivity import affordable

SHARPNESS = 2.0
"""Predictions are softmax(2 z). Those of a calibrated model, softmax(z), would make the plain error seem to gain from
predicting frequent classes more often, although argmax is best for it already; sharper ones make that bias small."""
SHIFT = 0.5
"""How far the logits of a class are moved, up and down, for a metric that has to be scored again."""
SAMPLES = 4096
"""At least as many decisions stand for the soft predictions of a metric that has to be scored again."""
_CERTAIN = 30.0
"""Logit of the class that a decision is for; the softmax of the others is below 1e-12."""


def class_gradient(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """What the metric would gain per unit added to the logits of each class, if predictions were soft: softmax(2 z).

    With R_ij(δ) = Σ_v 1[y_v = i] softmax(2 (z_v + δ))_j, the soft confusion, the result is −∂M̃(R(δ)) / ∂δ at δ = 0, M̃
    the metric as an error. It is smooth where the metric itself plateaus, and sums to 0 over classes. A
    ``ConfusionMetric`` is differentiated by autograd. Any other metric is scored 2 C times on decisions that have the
    confusion R(±½ e_c), if it depends on decisions alone, and on the shifted outputs themselves if not. Where that is
    more than 2²⁸ numbers the gradient is 0, which means not known, with one warning.

    Args:
        metric: the metric.
        outputs: logits [V, C].
        targets: labels [V].

    Returns:
        [C], positive is better whatever the metric's direction; zeros where it is not finite.

    Example:
        >>> from lossalign.metrics import BalancedError
        >>> outputs, targets = torch.tensor([[3.0, 0.0], [3.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> class_gradient(BalancedError(), outputs, targets)  # class 1 is rarely predicted
        tensor([-0.1025,  0.1025])
    """
    if outputs.ndim != 2 or outputs.shape[-1] < 2:
        return torch.zeros(2, device=outputs.device)
    if isinstance(metric, ConfusionMetric):
        return gradient_of_counts(metric, outputs, targets).nan_to_num(0.0, 0.0, 0.0)
    return gradient_by_rescoring(metric, outputs, targets).nan_to_num(0.0, 0.0, 0.0)


def soft_confusion(outputs: Tensor, targets: Tensor) -> Tensor:
    """Expected counts [C, C] of predictions softmax(2 z), with the same bits on every rank: on a GPU ``index_add`` adds
    in any order."""
    sharp = SHARPNESS * outputs
    return ordered_counts(sharp, targets) if outputs.is_cuda else expected_counts(sharp, targets)


def ordered_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """``expected_counts`` [C, C] as one matrix product.

    Example:
        >>> ordered_counts(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 0, 1])).round()
        tensor([[1., 1.],
                [0., 1.]])
    """
    mine = targets[:, None] == torch.arange(outputs.shape[-1], device=outputs.device)
    return mine.float().mT @ outputs.float().softmax(-1)


def gradient_of_counts(metric: ConfusionMetric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``class_gradient`` [C] by autograd through the expected counts; can be lifted over children with vmap."""

    def gain(shift: Tensor) -> Tensor:
        return -error(metric, metric.from_counts(soft_confusion(outputs + shift, targets)))

    gradient: Tensor = torch.func.grad(gain)(outputs.new_zeros(outputs.shape[-1], dtype=torch.float32))
    return gradient


def gradient_by_rescoring(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``class_gradient`` [C] by central differences: (gain(z + ½ e_c) − gain(z − ½ e_c)) / 1."""
    classes = outputs.shape[-1]
    if not affordable(metric, classes, (SAMPLES + len(targets)) * classes, "gradient"):
        return torch.zeros(classes, device=outputs.device)
    decided = torch.nn.functional.one_hot(outputs.argmax(-1), classes) * _CERTAIN
    by_decisions = torch.isclose(metric(decided, targets).double(), metric(outputs, targets).double(), rtol=1e-5)

    def gain(shift: Tensor) -> Tensor:
        moved = (outputs + shift, targets)
        return -error(metric, metric(*(decisions(*moved) if by_decisions else moved))).float()

    shifts = SHIFT * torch.eye(classes, device=outputs.device)
    return torch.stack([(gain(shift) - gain(-shift)) / (2 * SHIFT) for shift in shifts])


def decisions(outputs: Tensor, targets: Tensor, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Certain outputs [W, C] and labels [W] whose confusion is the soft one of outputs [V, C], up to rounding.

    Each sample stands for W / V decisions, the same for all; those of a class are shared out in proportion to the mean
    probabilities on its samples, without chance.

    Args:
        outputs: logits [V, C].
        targets: labels [V].
        samples: W is the smallest multiple of V that is not less.

    Example:
        >>> outputs = torch.tensor([[0.25, 0.75], [0.75, 0.25]]).log()
        >>> made, labels = decisions(outputs, torch.tensor([0, 0]), samples=8)
        >>> made.argmax(-1), labels
        (tensor([0, 0, 0, 0, 1, 1, 1, 1]), tensor([0, 0, 0, 0, 0, 0, 0, 0]))
    """
    classes, times = outputs.shape[-1], -(-samples // len(targets))
    number = torch.bincount(targets, minlength=classes)
    soft = soft_confusion(outputs, targets) / number.clamp(min=1)[:, None]
    labels = torch.arange(classes, device=targets.device).repeat_interleave(times * number)
    first = (times * number).cumsum(0) - times * number
    at = (torch.arange(len(labels), device=targets.device) - first[labels] + 0.5) / (times * number)[labels]
    predicted = (at[:, None] > soft.cumsum(-1)[labels, :-1]).sum(-1)
    return torch.nn.functional.one_hot(predicted, classes) * _CERTAIN, labels
