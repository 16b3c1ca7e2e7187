"""Losses for ranking metrics: one with parameters that affect AUCPR and AUROC, and two fixed rivals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError, ParameterGroup, ParameterSpec
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.classes import check_groups, check_labels, check_shapes
from lossalign.losses.ranking import (
    class_balance,
    log_probabilities,
    members,
    pairwise_ranking,
    ranking_scores,
    ranking_statistics,
    smooth_ap,
)
from lossalign.losses.registry import LOSSES, LossEntry

_LEAST_MISS = 1e-6  # of 1 − p: keeps (1 − p)^γ and its gradient finite at p = 1


def base_loss(outputs: Tensor, targets: Tensor, gamma: Tensor | None = None) -> Tensor:
    """Cross-entropy, or binary cross-entropy of each class, times the focal factor.

        l = (1 − p)^γ · (−log p),   p the probability of the true label

    Args:
        outputs: logits [B, C].
        targets: labels [B], or [B, C] of 0 and 1.
        gamma: γ_c [C]; none if None. γ > 0 emphasises wrong examples, γ < 0 nearly right ones.

    Returns:
        l of every example [B], or of every example and class [B, C], in float32.

    Example:
        >>> base_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0, 0.0]))  # log(2) / 2
        tensor([0.3466])
    """
    if targets.ndim == 2:
        loss = F.binary_cross_entropy_with_logits(outputs.float(), targets.float(), reduction="none")
    else:
        loss = -log_probabilities(outputs, targets).gather(-1, targets[:, None]).squeeze(-1)
        gamma = gamma if gamma is None else gamma[targets]
    if gamma is None:
        return loss
    return (-torch.expm1(-loss)).clamp(min=_LEAST_MISS) ** gamma * loss


class _RankedLoss(AdaptiveLoss):
    """Base class of the losses in this file: both forms of labels, and statistics."""

    statistics_name = "_RankedLoss"
    num_statistics = 3

    def __init__(self, num_classes: int, spec: ParameterSpec) -> None:
        self.num_classes = num_classes
        self.spec = spec

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """:func:`ranking_statistics` of each parameter's class, or their mean if it belongs to no class [P, 3]."""
        table = ranking_statistics(outputs, targets)
        # classes are −1 where a parameter belongs to none: the last row
        return torch.cat([table, table.mean(0, keepdim=True)])[self.classes.to(outputs.device)[:, 0]]

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are neither class indices 0 … C−1 [B] nor a matrix of 0 and 1 [B, C]."""
        if targets.ndim != 2:
            check_labels(targets, self.num_classes, name)
            return
        if targets.shape[1] != self.num_classes:
            raise InputError(
                f"{name}: labels have shape {tuple(targets.shape)}; give one class index for each example, or, for "
                f"several labels an example, 0 or 1 for each of {self.num_classes} classes."
            )
        wrong = (targets != 0) & (targets != 1)
        if wrong.any():
            raise InputError(
                f"{name}: label {targets[wrong][0].item():g} in a matrix of several labels an example; they must be 0 "
                "or 1, e.g. (targets > 0.5)."
            )

    def _check_shapes(self, outputs: Tensor, targets: Tensor) -> None:
        check_shapes(outputs, targets, self.num_classes)
        if targets.ndim == 2 and targets.shape != outputs.shape:
            raise InputError(
                f"targets have shape {tuple(targets.shape)} for outputs {tuple(outputs.shape)}; give labels "
                f"{tuple(outputs.shape[:1])}, or 0 and 1 of the outputs' shape."
            )


def _combine(base: Tensor, term: Tensor, weight: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """base + w_c · term per example [B]; in the second part all classes have the same total weight.

    The batch's mean is that of ``base`` plus the mean over the classes present of w_c · (mean term of class c).
    """
    positive = members(targets, num_classes)
    weight = weight * class_balance(positive)
    if targets.ndim == 1:
        return base + weight[targets] * term
    return base.mean(-1) + (weight * term).sum(-1)


class RankingLoss(_RankedLoss):
    """A loss for AUCPR and AUROC; exactly cross-entropy until the controller moves Φ.

        l_i = (1 − p_i)^γ_y · (−log p_i) + λ_y · b_y · r_i,   r = pairwise_ranking(s, y, m, τ),   y the class of i

    s are :func:`ranking_scores`, and b :func:`class_balance`: the batch's mean of the second part is the mean over the
    classes present of λ_c · (mean of r over class c), however rare c is. Labels [B, C] of 0 and 1 are C problems of two
    classes: the first part is the mean over classes of focal binary cross-entropy, the second as before.

    With two classes both rank by z_1 − z_0, so that λ_0 and λ_1 weight the same pairs, whichever class is the
    positive one. An example's loss depends on its batch through r; with accumulation or several ranks, on its part of
    the batch.

    Groups: ``ranking`` (λ ∈ [0, 2]^C, from 0), ``margins`` (m ∈ [−1, 3]^C, from 1), ``focus`` (γ ∈ [−0.5, 3]^C, from
    0), ``temperature`` (log τ ∈ [−1.5, 1.5], one for all, from 0). A group that is off stays at its start.

    Args:
        num_classes: C.
        groups: which groups the controller may move.
        beta: β; ``ranking`` moves by half of it, as its range is half.

    Example:
        >>> loss = RankingLoss(num_classes=3)
        >>> loss(torch.zeros(1, 3), torch.tensor([0]), loss.spec.initial)
        tensor([1.0986])
    """

    def __init__(
        self, num_classes: int, groups: Sequence[str] = ("ranking", "margins", "focus"), beta: float = 0.2
    ) -> None:
        check_groups(groups, ("ranking", "margins", "focus", "temperature"), num_classes)
        without_effect = [name for name in ("margins", "temperature") if name in groups and "ranking" not in groups]
        if without_effect:
            raise InputError(f"groups={tuple(groups)}: {without_effect[0]!r} acts through 'ranking'; add it.")
        names, classes = tuple(map(str, range(num_classes))), tuple((c, c) for c in range(num_classes))
        known = (
            _group("ranking", names, 0.0, (0.0, 2.0), beta / 2, classes),
            _group("margins", names, 1.0, (-1.0, 3.0), beta, classes),
            _group("focus", names, 0.0, (-0.5, 3.0), beta, classes),
            _group("temperature", ("log τ",), 0.0, (-1.5, 1.5), beta),
        )
        super().__init__(num_classes, ParameterSpec(tuple(group for group in known if group.name in groups)))
        self._slices = self.spec.slices  # computed here: a compiler cannot trace the lock of a cached property

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B], from logits [B, C] and labels [B] or [B, C]."""
        self._check_shapes(outputs, targets)
        part = {name: phi[where] for name, where in self._slices.items()}
        base = base_loss(outputs, targets, part.get("focus"))
        if "ranking" not in part:
            return base if targets.ndim == 1 else base.mean(-1)
        labels = targets if targets.ndim == 1 else members(targets, self.num_classes)
        tau = part["temperature"].exp() if "temperature" in part else 1.0
        ranks = pairwise_ranking(ranking_scores(outputs, targets), labels, part.get("margins", 1.0), tau)
        return _combine(base, ranks, part["ranking"], targets, self.num_classes)


class _MixedLoss(_RankedLoss):
    """(1 − w) · cross-entropy + w · a term of ranking: a rival whose only parameter is w."""

    def __init__(self, num_classes: int, weight: float, beta: float) -> None:
        check_groups(("mix",), ("mix",), num_classes)
        super().__init__(num_classes, ParameterSpec((_group("mix", ("w",), weight, (0.0, 1.0), beta),)))

    @abstractmethod
    def term(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The term of ranking, of the shape of ``labels``: bool [B, C], or labels [B]."""

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B], from logits [B, C] and labels [B] or [B, C]."""
        self._check_shapes(outputs, targets)
        labels = targets if targets.ndim == 1 else members(targets, self.num_classes)
        term = self.term(ranking_scores(outputs, targets), labels)
        return _combine((1 - phi) * base_loss(outputs, targets), term, phi, targets, self.num_classes)


class PairwiseLoss(_MixedLoss):
    """The usual surrogate of AUROC, over all pairs of a positive and a negative, plus cross-entropy: a fixed rival.

        l_i = (1 − w) · (−log p_i) + w · b_y · pairwise_ranking(s, y, m = 1, τ = 1)_i

    Args:
        num_classes: C.
        weight: w at the start; 0.5, as for :class:`SmoothAPLoss`, although 1 trains too.
        beta: β of w.

    Example:
        >>> loss = PairwiseLoss(num_classes=2)
        >>> loss(torch.zeros(2, 2), torch.tensor([0, 1]), loss.spec.initial)  # log(2) / 2 + log(1 + e) / 2
        tensor([1.0032, 1.0032])
    """

    def __init__(self, num_classes: int, weight: float = 0.5, beta: float = 0.05) -> None:
        super().__init__(num_classes, weight, beta)

    def term(self, scores: Tensor, labels: Tensor) -> Tensor:
        """All pairs."""
        return pairwise_ranking(scores, labels)


class SmoothAPLoss(_MixedLoss):
    """Smooth-AP, a surrogate of AUCPR, plus cross-entropy: a fixed rival.

        l_i = (1 − w) · (−log p_i) + w · b_y · smooth_ap(s, y, τ)_i

    Args:
        num_classes: C.
        weight: w at the start. When trained from scratch on small imbalanced sets, 1 was much worse than cross-entropy
            and 0.5 equally good.
        temperature: τ in the units of the scores, which are logits; the paper's 0.01 is for cosines.
        beta: β of w.

    Example:
        >>> loss = SmoothAPLoss(num_classes=2)
        >>> loss(torch.zeros(2, 2), torch.tensor([0, 1]), loss.spec.initial)  # log(2) / 2 + (1 − 1 / 1.5) / 2
        tensor([0.5132, 0.5132])
    """

    def __init__(self, num_classes: int, weight: float = 0.5, temperature: float = 0.3, beta: float = 0.05) -> None:
        super().__init__(num_classes, weight, beta)
        self.temperature = temperature

    def term(self, scores: Tensor, labels: Tensor) -> Tensor:
        """One minus the smooth precision at each positive."""
        return smooth_ap(scores, labels, self.temperature)


def _group(
    name: str,
    labels: tuple[str, ...],
    initial: float,
    within: tuple[float, float],
    beta: float,
    classes: tuple[tuple[int, int], ...] | None = None,
) -> ParameterGroup:
    low, high = within
    return ParameterGroup(name=name, labels=labels, initial=initial, low=low, high=high, beta=beta, classes=classes)


_RANKED = ("ranking", "margins", "focus")
LOSSES.add(
    "ranking",
    "cross-entropy with movable pairwise ranking terms, for AUCPR and AUROC",
    LossEntry(
        make=lambda run: RankingLoss(run.num_classes, run.groups or _RANKED), groups=_RANKED, stream="RankingLoss"
    ),
)
LOSSES.add(
    "pairwise",
    "half cross-entropy, half pairwise ranking",
    LossEntry(make=lambda run: PairwiseLoss(run.num_classes), groups=("mix",), stream="PairwiseLoss"),
)
LOSSES.add(
    "smooth-ap",
    "half cross-entropy, half Smooth-AP (Brown et al. 2020)",
    LossEntry(make=lambda run: SmoothAPLoss(run.num_classes), groups=("mix",), stream="SmoothAPLoss"),
)
