"""The default classification loss: cross-entropy at its start, and at least 0 for every Φ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossalign.core import ParameterSpec, log_softmax
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.class_correlation import confusion
from lossalign.losses.classes import (
    check_groups,
    check_labels,
    check_shapes,
    class_frequencies,
    class_group,
    class_pairs,
    symmetric,
)
from lossalign.losses.registry import LOSSES, LossEntry

_GROUPS: dict[str, tuple[float, float, int]] = {
    "weights": (-3.0, 3.0, 1),
    "offsets": (-3.0, 3.0, 1),
    "pairs": (-1.0, 1.0, 3),
    "focus": (-0.5, 3.0, 1),
    "smoothing": (0.0, 0.5, 6),
}
"""By group, in the order of Φ: smallest value, largest value, and divisor of β."""

_READINGS = {
    "weights": "higher favours the class",
    "offsets": "lower favours the class",
    "pairs": "lower separates the two classes",
    "focus": "higher leaves out what is learned already",
    "smoothing": "higher smooths the class's labels more",
}
"""What a direction means, by group."""


def focal_factor(loss: Tensor, gamma: Tensor) -> Tensor:
    """(1 − p)^γ, from loss = −log p [B] and γ [B].

    1 − p is at least 10⁻⁶, which keeps value and gradient finite where p = 1, for γ < 1 too.

    Example:
        >>> focal_factor(-torch.tensor([0.9, 1.0]).log(), torch.tensor([2.0, 0.0]))
        tensor([0.0100, 1.0000])
    """
    return (-torch.expm1(-loss)).clamp(min=1e-6) ** gamma


def smoothed(loss: Tensor, log_probs: Tensor, epsilon: Tensor) -> Tensor:
    """(1 − ε)·l + ε · mean_j(−log p_j), from l [B], log p [B, C] and ε [B].

    A class of probability 0, from a logit of −∞, adds nothing to the mean.

    Example:
        >>> log_probs = torch.tensor([[0.5, 0.5]]).log()
        >>> smoothed(torch.tensor([2.0]), log_probs, torch.tensor([0.1]))
        tensor([1.8693])
    """
    possible = log_probs.masked_fill(log_probs.isneginf(), 0.0)
    return (1 - epsilon) * loss - epsilon * possible.mean(-1)


def aligned_loss(
    logits: Tensor,
    targets: Tensor,
    u: Tensor | None = None,
    b: Tensor | None = None,
    phi: Tensor | None = None,
    frequencies: Tensor | None = None,
    kappa: float = 1.0,
    *,
    gamma: Tensor | None = None,
    epsilon: Tensor | None = None,
) -> Tensor:
    """Cross-entropy with class weights, logit offsets, pairwise margins, focus and label smoothing.

        l(z, y) = (w_y / Σ_c π_c w_c) · [ (1 − ε_y) · (1 − p_y)^γ_y · (−log p_y) + ε_y · mean_j(−log p_j) ]
        p = softmax_j( z_j + b_j − κ Φ_yj·1[j≠y] ),   w = exp(u)

    Every term is ≥ 0, so l ≥ 0 for every u, b, Φ and γ and all ε in [0, 1]. With γ = ε = 0 the bracket is
    logsumexp_j( z_j + b_j − b_y − κ Φ_yj·1[j≠y] ) − z_y.

    Args:
        logits: z [B, C].
        targets: y [B].
        u: log class weights [C]; zeros if None.
        b: logit offsets [C]; b = τ log π is logit adjustment. Zeros if None.
        phi: pair margins Φ [C, C]; Φ_ij > 0 merges i and j, Φ_ij < 0 separates them. Zeros if None.
        frequencies: π, training class frequencies [C]; uniform if None.
        kappa: κ, the scale of Φ in logits.
        gamma: focusing exponents γ [C]; γ = 2 is focal loss (Lin et al. 2017, arXiv 1708.02002). Zeros if None.
        epsilon: label smoothing ε [C] (Szegedy et al. 2016, arXiv 1512.00567). Zeros if None.

    Returns:
        The loss of every example [B].

    Example:
        >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])
        >>> cross_entropy = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        >>> torch.equal(aligned_loss(logits, targets), cross_entropy)
        True
    """
    adjusted = logits
    if b is not None:
        adjusted = adjusted + b
    if phi is not None:
        adjusted = adjusted - kappa * (phi - torch.diag(torch.diagonal(phi)))[targets]
    log_probs = log_softmax(adjusted)
    loss = -log_probs.gather(-1, targets[:, None]).squeeze(-1)
    if gamma is not None:
        loss = loss * focal_factor(loss, gamma[targets])
    if epsilon is not None:
        loss = smoothed(loss, log_probs, epsilon[targets])
    if u is not None:
        w = u.exp()
        pi = torch.ones_like(w) if frequencies is None else frequencies
        mean = (pi * w).sum() / pi.sum()  # exactly 1 at u = 0, which Σ_c π_c in float32 need not be
        loss = loss * (w / mean)[targets]
    return loss


class AlignedLoss(AdaptiveLoss):
    """The default loss for classification; exactly cross-entropy until the controller moves Φ.

        l(z, y) = (w_y / Σ_c π_c w_c) · [ (1 − ε_y) · (1 − p_y)^γ_y · (−log p_y) + ε_y · mean_j(−log p_j) ]
        p = softmax_j( z_j + b_j − κ Φ_yj·1[j≠y] ),   w = exp(u)

    Groups: ``weights`` (u ∈ [−3, 3]^C), ``offsets`` (b ∈ [−3, 3]^C), ``pairs`` (Φ ∈ [−1, 1], symmetric), ``focus``
    (γ ∈ [−0.5, 3]^C), ``smoothing`` (ε ∈ [0, 0.5]^C). A group that is off stays at 0.

    Args:
        num_classes: C.
        groups: which groups the controller may move.
        frequencies: training class frequencies or counts π, for ``weights``; uniform if not given.
        kappa: κ, the scale of a pair's Φ in logits.
        beta: β of weights, offsets and focus; pairs move by a third and smoothing by a sixth of it, as their ranges
            are narrower.

    Example:
        >>> loss = AlignedLoss(num_classes=3)
        >>> loss(torch.zeros(1, 3), torch.tensor([0]), loss.spec.initial)
        tensor([1.0986])
    """

    statistics_name = "AlignedLoss"

    def __init__(
        self,
        num_classes: int,
        groups: Sequence[str] = ("offsets",),
        frequencies: Sequence[float] | Tensor | None = None,
        kappa: float = 1.0,
        beta: float = 0.3,
    ) -> None:
        check_groups(groups, tuple(_GROUPS), num_classes)
        self.num_classes = num_classes
        self.kappa = kappa
        self.frequencies = torch.full((num_classes,), 1.0 / num_classes)
        if frequencies is not None:
            self.frequencies = class_frequencies(frequencies, num_classes, "frequencies")
        classes = class_pairs(num_classes, diagonal=True, pairs="pairs" in groups)
        made = [
            class_group(
                name,
                classes.get(name, classes["diagonal"]),
                low=low,
                high=high,
                beta=beta / parts,
                relative=name == "offsets",
                reading=_READINGS[name],
            )
            for name, (low, high, parts) in _GROUPS.items()
            if name in groups
        ]
        self.spec = ParameterSpec(tuple(made))
        self.num_statistics = 2 if "pairs" in groups else 1

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B], from logits [B, C]."""
        check_shapes(outputs, targets, self.num_classes)
        part = {name: phi[where] for name, where in self.spec.slices.items()}
        return aligned_loss(
            outputs.float(),
            targets,
            u=part.get("weights"),
            b=part.get("offsets"),
            phi=self._matrix(part["pairs"]) if "pairs" in part else None,
            frequencies=self.frequencies.to(outputs.device),
            kappa=self.kappa,
            gamma=part.get("focus"),
            epsilon=part.get("smoothing"),
        )

    def _matrix(self, pairs: Tensor) -> Tensor:
        where = self.classes.to(pairs.device)[self.spec.slices["pairs"]]
        return symmetric(pairs, where, self.num_classes)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + C_ii) for classes, log(1 + [C_ij, C_ji]) when pairs are on [P, S]."""
        i, j = self.classes.to(outputs.device).unbind(-1)
        matrix = confusion(log_softmax(outputs.float()), targets).log1p()
        both = torch.stack([matrix[i, j], matrix[j, i]], -1)
        return both[:, : self.num_statistics]

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are not 0 … C−1."""
        check_labels(targets, self.num_classes, name)


LOSSES.add(
    "aligned",
    "cross-entropy with movable class weights, offsets and pairwise margins (the default)",
    LossEntry(
        make=lambda run: AlignedLoss(run.num_classes, run.groups or ("offsets",), frequencies=run.counts),
        groups=("offsets",),
        stream="AlignedLoss",
    ),
)
