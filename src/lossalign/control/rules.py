"""Rules that never learn, as pure functions: which way the offset of each class should move.

Under ``AlignedLoss`` an offset b_c below the others makes the training loss ask for larger logits of class c, as logit
adjustment does for rare classes. So a rule lowers the offsets of the classes that should be predicted more often. Each
rule is a signal [n, C] that says how much a class deserves that; the offsets move against it,

    Δb = −β · clip(z, −1, 1),   z = (signal − its mean over classes) / its standard deviation over classes
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from lossalign.control.state import share
from lossalign.core import Observation

Rule = Literal["confusion-rule", "metric-gradient"]
"""Rules that follow the metric."""
RULES: tuple[Rule, ...] = get_args(Rule)


def clipped_scores(signal: Tensor, alike: float = 1e-6) -> Tensor:
    """clip(z, −1, 1) of a signal standardised over classes [n, C]; zeros where all classes are alike.

    Args:
        signal: one number for each class [n, C].
        alike: signals whose standard deviation is smaller than this count as alike, the less the smaller it is.

    Example:
        >>> clipped_scores(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
        tensor([[-1.,  1.],
                [ 0.,  0.]])
    """
    z = (signal - signal.mean(1, keepdim=True)) / signal.std(1, keepdim=True, correction=0).clamp(min=alike)
    return z.clamp(-1, 1)


def confusion_signal(sensitivity: Tensor) -> Tensor:
    """Missed share − false-alarm share of each class [n, C].

    The missed share is the part of what the metric would gain without the errors out of classes that belongs to this
    class, the false-alarm share that of the errors into it; both relative to the mean class.

    Args:
        sensitivity: gain of the metric if the errors out of, and into, each class vanished [n, C, 2].

    Example:
        >>> confusion_signal(torch.tensor([[[0.3, 0.1], [0.1, 0.3]]]))  # class 0 is missed, class 1 predicted too often
        tensor([[ 1., -1.]])
    """
    missed, false_alarms = share(sensitivity, [slice(0, sensitivity.shape[1])]).unbind(-1)
    return missed - false_alarms


def confusion_move(sensitivity: Tensor, beta: Tensor) -> Tensor:
    """Δb = −β · clip(z(missed share − false-alarm share), −1, 1) [n, C]: the confusion rule, for any metric.

    Args:
        sensitivity: gain of the metric if the errors out of, and into, each class vanished [n, C, 2].
        beta: β of each offset [C].

    Example:
        >>> confusion_move(torch.tensor([[[0.3, 0.1], [0.1, 0.3]]]), torch.tensor([0.3, 0.3]))
        tensor([[-0.3000,  0.3000]])
    """
    return -beta * clipped_scores(confusion_signal(sensitivity))


def gradient_move(gradient: Tensor, beta: Tensor) -> Tensor:
    """Δb = −β · clip(z(∂ gain / ∂ logit), −1, 1) [n, C]: offsets follow the metric's own gradient.

    Args:
        gradient: what the metric would gain per unit added to the logits of each class [n, C].
        beta: β of each offset [C].

    Example:
        >>> gradient_move(torch.tensor([[0.02, -0.02, 0.0]]), torch.tensor([0.3, 0.3, 0.3]))
        tensor([[-0.3000,  0.3000, -0.0000]])
    """
    return -beta * clipped_scores(gradient, alike=1e-7)


def rule_move(rule: Rule, observation: Observation, offsets: Tensor, beta: Tensor) -> Tensor:
    """The move of ``rule`` for the offsets [n, C]; zeros where the observation does not hold what the rule needs.

    Args:
        rule: which one.
        observation: of n children.
        offsets: positions of the offsets in Φ [C].
        beta: β of each offset [C].
    """
    if rule == "confusion-rule":
        return confusion_move(observation.sensitivity[:, offsets], beta)
    if observation.gradient is None:
        return torch.zeros(len(observation.error), len(offsets), device=beta.device)
    return gradient_move(observation.gradient[:, offsets], beta)


def needed_by(rule: Rule) -> Literal["sensitivity", "gradient"]:
    """The field of the observation that ``rule`` reads.

    Example:
        >>> [needed_by(rule) for rule in RULES]
        ['sensitivity', 'gradient']
    """
    return "sensitivity" if rule == "confusion-rule" else "gradient"
