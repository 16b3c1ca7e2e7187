"""L-Softmax: an angular margin on the true class (Liu et al. 2016, arXiv 1612.02295)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lossalign.core import InputError, ParameterGroup, ParameterSpec, log_softmax
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.class_correlation import confusion
from lossalign.losses.classes import check_groups, check_labels, check_shapes
from lossalign.losses.registry import LOSSES, LossEntry


def angular_margin(cosine: Tensor, multiple: int) -> Tensor:
    """ψ(θ) = (−1)^k cos(mθ) − 2k for θ ∈ [kπ/m, (k+1)π/m]: falls from 1 to 1 − 2m, m times as fast as cos θ.

    cos(mθ) is Chebyshev's polynomial T_m(cos θ), so that gradients are finite where θ is 0 or π.

    Args:
        cosine: cos θ, any shape.
        multiple: m ≥ 1; at 1, ψ is the cosine itself.

    Example:
        >>> angular_margin(torch.tensor([1.0, 0.5, 0.0, -1.0]), multiple=2)
        tensor([ 1.0000, -0.5000, -1.0000, -3.0000])
    """
    before, polynomial = torch.ones_like(cosine), cosine
    for _ in range(multiple - 1):
        before, polynomial = polynomial, 2 * cosine * polynomial - before
    k = sum((cosine < math.cos(i * math.pi / multiple)).to(cosine.dtype) for i in range(1, multiple))
    k = torch.zeros_like(cosine) + k
    return (1 - 2 * (k % 2)) * polynomial - 2 * k


def l_softmax_loss(logits: Tensor, targets: Tensor, strength: Tensor, scale: float = 30.0, multiple: int = 2) -> Tensor:
    """Cross-entropy that asks the true class for an angle m times smaller.

        l(z, y) = −log softmax( z with z_y replaced by s · [ (1 − a) cos θ_y + a ψ(θ_y) ] )_y,   a = 1 / (1 + λ)

    The authors anneal λ: large at the start, 5 at the end.

    Args:
        logits: z = s · cos θ [B, C], as ``CosineLinear`` gives them: weights and features have length one.
        targets: y [B].
        strength: a ∈ [0, 1].
        scale: s.
        multiple: m.

    Returns:
        The loss of every example [B], ≥ 0.

    Example:
        >>> l_softmax_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), strength=torch.tensor(0.0))
        tensor([0.6931])
    """
    cosine = logits.gather(-1, targets[:, None]) / scale
    asked = scale * ((1 - strength) * cosine + strength * angular_margin(cosine, multiple))
    true = targets[:, None] == torch.arange(logits.shape[-1], device=logits.device)
    return -log_softmax(torch.where(true, asked, logits)).gather(-1, targets[:, None]).squeeze(-1)


class LSoftmaxLoss(AdaptiveLoss):
    """L-Softmax for a model whose last layer is a ``CosineLinear`` of the same scale; a rival.

    Group: ``strength`` (a = 1 / (1 + λ) ∈ [0, 1], one for all), at 0, cross-entropy, until a controller anneals it.

    Args:
        num_classes: C.
        groups: which groups the controller may move.
        scale: s, the scale of the model's logits.
        multiple: m.
        beta: β.

    Example:
        >>> loss = LSoftmaxLoss(num_classes=2)
        >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), loss.spec.initial)
        tensor([0.6931])
    """

    statistics_name = "LSoftmaxLoss"

    def __init__(
        self,
        num_classes: int,
        groups: Sequence[str] = ("strength",),
        scale: float = 30.0,
        multiple: int = 2,
        beta: float = 0.05,
    ) -> None:
        check_groups(groups, ("strength",), num_classes)
        if scale <= 0:
            raise InputError(f"scale={scale}: give the positive scale of the model's CosineLinear, such as 30.")
        if multiple < 1:
            raise InputError(f"multiple={multiple}: an angle is multiplied by a whole number, at least 1.")
        self.num_classes, self.scale, self.multiple = num_classes, scale, multiple
        group = ParameterGroup(name="strength", labels=("a",), initial=0.0, low=0.0, high=1.0, beta=beta)
        self.spec = ParameterSpec((group,))
        self.num_statistics = 1

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B], from logits s · cos θ [B, C]."""
        check_shapes(outputs, targets, self.num_classes)
        return l_softmax_loss(outputs.float(), targets, phi, self.scale, self.multiple)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + the mean of C_ii), without margins [1, 1]."""
        return confusion(log_softmax(outputs.float()), targets).diagonal().mean().log1p().view(1, 1)

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are not 0 … C−1."""
        check_labels(targets, self.num_classes, name)


LOSSES.add(
    "l-softmax",
    "large-margin softmax (Liu et al. 2016); needs a model that ends in +cosine",
    LossEntry(
        make=lambda run: LSoftmaxLoss(run.num_classes, run.groups or ("strength",)),
        groups=("strength",),
        stream="LSoftmaxLoss",
    ),
)
