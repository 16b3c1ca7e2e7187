"""LDAM: label-distribution-aware margins, larger for rarer classes (Cao et al. 2019, arXiv 1906.07413)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossalign.core import InputError, ParameterSpec, log_softmax
from lossalign.losses.aligned import aligned_loss
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.class_correlation import confusion
from lossalign.losses.classes import (
    check_groups,
    check_labels,
    check_shapes,
    class_frequencies,
    class_group,
    class_pairs,
)
from lossalign.losses.registry import LOSSES, LossEntry


def ldam_margins(counts: Tensor, largest: float = 0.5) -> Tensor:
    """Δ_c = largest · n_c^{−1/4} / max_j n_j^{−1/4} [C], from class counts or frequencies n [C].

    Example:
        >>> ldam_margins(torch.tensor([160000, 10000, 16]))
        tensor([0.0500, 0.1000, 0.5000])
    """
    rarity = counts.double() ** -0.25
    return (largest * rarity / rarity.max()).float()


def ldam_loss(
    logits: Tensor,
    targets: Tensor,
    margins: Tensor,
    u: Tensor | None = None,
    frequencies: Tensor | None = None,
    scale: float = 30.0,
) -> Tensor:
    """Cross-entropy that asks the true class to lead by a margin.

        l(z, y) = (w_y / Σ_c π_c w_c) · [ −log softmax_j( z_j − s Δ_y·1[j=y] )_y ],   w = exp(u)

    Args:
        logits: z = s · cos [B, C], as ``CosineLinear`` gives them: s is in them already.
        targets: y [B].
        margins: Δ, in units of the cosine [C].
        u: log class weights [C]; zeros if None.
        frequencies: π, training class frequencies [C]; uniform if None.
        scale: s.

    Returns:
        The loss of every example [B], ≥ 0.

    Example:
        >>> logits, targets = torch.tensor([[15.0, 0.0]]), torch.tensor([0])
        >>> ldam_loss(logits, targets, margins=torch.tensor([0.5, 0.1]))  # the lead is the margin: log 2
        tensor([0.6931])
    """
    true = targets[:, None] == torch.arange(logits.shape[-1], device=logits.device)
    return aligned_loss(logits - scale * margins[targets][:, None] * true, targets, u, frequencies=frequencies)


class LDAMLoss(AdaptiveLoss):
    """LDAM for a model whose last layer is a ``CosineLinear`` of the same scale; margins reach 0.5 at the rarest class.

    Group: ``weights`` (u ∈ [−3, 3]^C), at 0 until the controller moves them. LDAM-DRW, deferred re-weighting, is a
    controller that moves them late.

    Args:
        num_classes: C.
        counts: training samples of each class; they set the margins Δ and π.
        groups: which groups the controller may move.
        scale: s, the scale of the model's logits.
        beta: β.

    Example:
        >>> loss = LDAMLoss(2, counts=[160, 10])
        >>> loss.margins
        tensor([0.2500, 0.5000])
        >>> loss(torch.tensor([[7.5, 0.0]]), torch.tensor([0]), loss.spec.initial)
        tensor([0.6931])
    """

    statistics_name = "LDAMLoss"

    def __init__(
        self,
        num_classes: int,
        counts: Sequence[float] | Tensor,
        groups: Sequence[str] = ("weights",),
        scale: float = 30.0,
        beta: float = 0.3,
    ) -> None:
        check_groups(groups, ("weights",), num_classes)
        if scale <= 0:
            raise InputError(f"scale={scale}: give the positive scale of the model's CosineLinear, such as 30.")
        self.num_classes = num_classes
        self.scale = scale
        self.frequencies = class_frequencies(counts, num_classes, "counts")
        self.margins = ldam_margins(self.frequencies)
        classes = class_pairs(num_classes, diagonal=True, pairs=False)["diagonal"]
        self.spec = ParameterSpec(
            (class_group("weights", classes, low=-3.0, high=3.0, beta=beta, reading="higher favours the class"),)
        )
        self.num_statistics = 1

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B], from logits s · cos [B, C]."""
        check_shapes(outputs, targets, self.num_classes)
        margins, frequencies = self.margins.to(outputs.device), self.frequencies.to(outputs.device)
        return ldam_loss(outputs.float(), targets, margins, phi, frequencies, self.scale)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + C_ii) of every class, without margins [C, 1]."""
        matrix = confusion(log_softmax(outputs.float()), targets)
        return matrix.diagonal()[:, None].log1p()

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are not 0 … C−1."""
        check_labels(targets, self.num_classes, name)


LOSSES.add(
    "ldam",
    "label-distribution-aware margins (Cao et al. 2019); needs a model that ends in +cosine",
    LossEntry(
        make=lambda run: LDAMLoss(run.num_classes, run.counts, run.groups or ("weights",)),
        groups=("weights",),
        stream="LDAMLoss",
    ),
)
