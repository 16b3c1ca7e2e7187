"""Our classification loss: cross-entropy at its start, bounded below whatever Φ does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError, ParameterGroup, ParameterSpec
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.class_correlation import confusion
from lossalign.losses.classes import check_groups, check_labels, check_shapes, class_pairs, symmetric


def aligned_loss(
    logits: Tensor,
    targets: Tensor,
    u: Tensor | None = None,
    b: Tensor | None = None,
    phi: Tensor | None = None,
    frequencies: Tensor | None = None,
    kappa: float = 1.0,
) -> Tensor:
    """Cross-entropy with class weights, logit offsets and pairwise margins.

        l(z, y) = (w_y / Σ_c π_c w_c) · [ logsumexp_j( z_j + b_j − b_y − κ Φ_yj·1[j≠y] ) − z_y ],   w = exp(u)

    The term j = y of the sum is z_y, so l ≥ 0 for every u, b and Φ.

    Args:
        logits: z [B, C].
        targets: y [B].
        u: log class weights [C]; zeros if None.
        b: logit offsets [C]; b = τ log π is logit adjustment. Zeros if None.
        phi: pair margins Φ [C, C]; Φ_ij > 0 merges i and j, Φ_ij < 0 separates them. Zeros if None.
        frequencies: π, training class frequencies [C]; uniform if None.
        kappa: κ, the scale of Φ in logits.

    Returns:
        The loss of every example [B].

    Example:
        >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])
        >>> torch.equal(aligned_loss(logits, targets), F.cross_entropy(logits, targets, reduction="none"))
        True
    """
    adjusted = logits
    if b is not None:
        adjusted = adjusted + b
    if phi is not None:
        adjusted = adjusted - kappa * (phi - torch.diag(torch.diagonal(phi)))[targets]
    loss = -F.log_softmax(adjusted, -1).gather(-1, targets[:, None]).squeeze(-1)
    if u is not None:
        w = u.exp()
        pi = torch.ones_like(w) if frequencies is None else frequencies
        mean = (pi * w).sum() / pi.sum()  # exactly 1 at u = 0, which Σ_c π_c in float32 need not be
        loss = loss * (w / mean)[targets]
    return loss


class AlignedLoss(AdaptiveLoss):
    """The default loss for classification; exactly cross-entropy until the controller moves Φ.

    Groups: ``weights`` (u ∈ [−3, 3]^C), ``offsets`` (b ∈ [−3, 3]^C), ``pairs`` (Φ ∈ [−1, 1], symmetric). A group
    that is off stays at 0.

    Args:
        num_classes: C.
        groups: which groups the controller may move.
        frequencies: training class frequencies or counts π, for ``weights``; uniform if not given.
        kappa: κ, the scale of a pair's Φ in logits.
        step: β of weights and offsets; pairs move by a third of it, as their range is a third.

    Example:
        >>> loss = AlignedLoss(num_classes=3)
        >>> loss(torch.zeros(1, 3), torch.tensor([0]), loss.spec.initial)
        tensor([1.0986])
    """

    def __init__(
        self,
        num_classes: int,
        groups: Sequence[str] = ("offsets",),
        frequencies: Sequence[float] | Tensor | None = None,
        kappa: float = 1.0,
        step: float = 0.3,
    ) -> None:
        check_groups(groups, ("weights", "offsets", "pairs"), num_classes)
        self.num_classes = num_classes
        self.kappa = kappa
        self.frequencies = torch.full((num_classes,), 1.0 / num_classes)
        if frequencies is not None:
            counts = torch.as_tensor(frequencies, dtype=torch.float32)
            if counts.shape != (num_classes,) or not bool(((counts > 0) & counts.isfinite()).all()):
                raise InputError(
                    f"frequencies: give one positive, finite number for each of {num_classes} classes; got "
                    f"{counts.tolist() if counts.numel() <= 20 else tuple(counts.shape)}."
                )
            self.frequencies = counts / counts.sum()
        classes = class_pairs(num_classes, diagonal=True, pairs="pairs" in groups)
        names = tuple(map(str, range(num_classes)))
        made: list[ParameterGroup] = [
            ParameterGroup(
                name=name, labels=names, initial=0.0, low=-3.0, high=3.0, step=step, classes=classes["diagonal"]
            )
            for name in ("weights", "offsets")
            if name in groups
        ]
        if "pairs" in groups:
            labels = tuple(f"{i}·{j}" for i, j in classes["pairs"])
            made.append(
                ParameterGroup(
                    name="pairs",
                    labels=labels,
                    initial=0.0,
                    low=-1.0,
                    high=1.0,
                    step=step / 3,
                    classes=classes["pairs"],
                )
            )
        self.spec = ParameterSpec(tuple(made))
        self.num_statistics = 2 if "pairs" in groups else 1

    def _parts(self, phi: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        slices = self.spec.slices
        u = phi[slices["weights"]] if "weights" in slices else None
        b = phi[slices["offsets"]] if "offsets" in slices else None
        if "pairs" not in slices:
            return u, b, None
        where = self.classes.to(phi.device)[slices["pairs"]]
        return u, b, symmetric(phi[slices["pairs"]], where, self.num_classes)

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B], from logits [B, C]."""
        check_shapes(outputs, targets, self.num_classes)
        u, b, pairs = self._parts(phi)
        return aligned_loss(outputs.float(), targets, u, b, pairs, self.frequencies.to(outputs.device), self.kappa)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + C_ii) for classes, log(1 + [C_ij, C_ji]) when pairs are on [P, S]."""
        i, j = self.classes.to(outputs.device).unbind(-1)
        matrix = confusion(F.log_softmax(outputs.float(), -1), targets).log1p()
        both = torch.stack([matrix[i, j], matrix[j, i]], -1)
        return both[:, : self.num_statistics]

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are not 0 … C−1."""
        check_labels(targets, self.num_classes, name)
