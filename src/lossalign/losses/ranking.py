"""Ranking losses of a batch, with a gradient, and exact ranking errors of a validation set.

Labels come in two forms. One class an example: ``targets`` [B] of class indices, ranked by softmax probability. Any
number of classes an example: ``targets`` [B, C] of 0 and 1, each class ranked by its own logit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import log_softmax


def pairwise_ranking(
    scores: Tensor, positive: Tensor, margin: float | Tensor = 1.0, temperature: float | Tensor = 1.0
) -> Tensor:
    """Smooth hinge on the lead of each positive over the negatives of its class; a surrogate of 1 − AUROC.

        l_i = mean over the batch's negatives j of τ · softplus( (m − (s_i − s_j)) / τ ),   i positive

    The slope of a pair is in (0, 1), and 1/2 where s_i leads s_j by m.

    Args:
        scores: s [B] of one class, or [B, C] of all.
        positive: bool, of the shape of ``scores``; or labels [B] with scores [B, C]: then only each example's own class
            is ranked, with matrices [B, B] in place of [B, B, C].
        margin: m, the lead that is wanted of a pair; one number, or one for each class [C].
        temperature: τ, below 1 closer to a hinge, above 1 closer to a line.

    Returns:
        l, of the shape of ``positive``; 0 for examples that are not positive and where the batch has no negative.

    Example:
        >>> scores, positive = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([True, False, False])
        >>> pairwise_ranking(scores, positive)  # (softplus(1 − 1) + softplus(1 − 2)) / 2
        tensor([0.5032, 0.0000, 0.0000])
    """
    lead, same = _against_batch(scores, positive)
    if _labels(scores, positive) and isinstance(margin, Tensor) and margin.ndim:
        margin = margin[positive][:, None]
    others = (~same).to(lead.dtype)
    loss = temperature * F.softplus((margin - lead) / temperature)
    loss = (loss * others).sum(1) / others.sum(1).clamp(min=1)
    return loss if _labels(scores, positive) else loss * positive


def smooth_ap(scores: Tensor, positive: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Smooth-AP (Brown et al., ECCV 2020): one minus the precision at each positive, its ranks counted by sigmoids.

        l_i = 1 − R(i, positives) / R(i, all),   R(i, S) = 1 + Σ_{j ∈ S, j ≠ i} σ( (s_j − s_i) / τ ),   i positive

    Its mean over the positives tends to 1 − average precision of the batch as τ → 0.

    Args:
        scores: s [B] of one class, or [B, C] of all.
        positive: as in :func:`pairwise_ranking`.
        temperature: τ; the smaller, the closer to average precision and the fewer pairs have a gradient.

    Returns:
        l in [0, 1), of the shape of ``positive``; 0 for examples that are not positive.

    Example:
        >>> scores, positive = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([True, False, True])
        >>> smooth_ap(scores, positive, temperature=0.01)  # precision 2/3 at rank 3, and 1 at rank 1
        tensor([0.3333, 0.0000, 0.0000])
    """
    lead, same = _against_batch(scores, positive)
    ahead = torch.sigmoid(-lead / temperature)
    # 1 + Σ_{j ≠ i}, as j = i adds σ(0) = 1/2 to either sum
    loss = 1 - (0.5 + (ahead * same).sum(1)) / (0.5 + ahead.sum(1))
    return loss if _labels(scores, positive) else loss * positive


def _labels(scores: Tensor, positive: Tensor) -> bool:
    """Whether ``positive`` holds labels."""
    return positive.ndim < scores.ndim


def _against_batch(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """s_i − s_j [B, B, …], and whether j is positive in the class that i is ranked in [B or 1, B, …]."""
    if _labels(scores, positive):
        return scores.gather(1, positive[:, None]) - scores.T[positive], positive[:, None] == positive
    return scores[:, None] - scores, positive[None]


def members(targets: Tensor, num_classes: int) -> Tensor:
    """Which examples are of which class, bool [B, C], from labels [B] or [B, C].

    Example:
        >>> members(torch.tensor([1, 0]), 2)
        tensor([[False,  True],
                [ True, False]])
    """
    if targets.ndim == 2:
        return targets == 1
    return targets[:, None] == torch.arange(num_classes, device=targets.device)


def log_probabilities(outputs: Tensor, targets: Tensor) -> Tensor:
    """log p_c [B, C] in float32: of a softmax where ``targets`` are [B], of C sigmoids where they are [B, C]."""
    outputs = outputs.float()
    return F.logsigmoid(outputs) if targets.ndim == 2 else log_softmax(outputs)


def ranking_scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """Scores that order examples as a ranking metric does, for each class, and saturate as little as possible.

    Labels [B, C]: the logits. Labels [B]: log p_c; with two classes the log-odds ±(z_1 − z_0), which give the same
    order.

    Args:
        outputs: logits [B, C].
        targets: only their form is used.

    Returns:
        Scores [B, C] in float32.

    Example:
        >>> ranking_scores(torch.tensor([[1.0, 3.0]]), torch.tensor([0]))
        tensor([[-2.,  2.]])
    """
    if targets.ndim == 2:
        return outputs.float()
    if outputs.shape[1] == 2:
        return outputs.float() - outputs.float().flip(1)
    return log_probabilities(outputs, targets)


def class_balance(positive: Tensor) -> Tensor:
    """Weights B / (K n_c) under which a batch's mean is the mean over its K classes of the mean over each class.

    As in the macro average of a metric, every class counts the same; classes without examples are left out.

    Args:
        positive: which examples are of which class, bool [B, C]; n_c are of class c.

    Returns:
        Weights [C].

    Example:
        >>> class_balance(members(torch.tensor([0, 0, 0, 1]), 3)[:, :2])
        tensor([0.6667, 2.0000])
    """
    count = positive.sum(0)
    present = (count > 0).sum().clamp(min=1)
    return len(positive) / (present * count.clamp(min=1))


def ordering_errors(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """1 − AUROC, the share of (positive, negative) pairs in the wrong order, and 1 − average precision.

    Exact, by one sort; a tie is half a wrong pair, and tied samples share the precision of the lowest, as in
    scikit-learn. Where there is nothing to order (no positive, or no negative) both are 0.

    Args:
        scores: [..., V].
        positive: bool [..., V].

    Returns:
        The two errors, each [...].

    Example:
        >>> ordering_errors(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))
        (tensor(0.2500), tensor(0.1667))
    """
    size = scores.shape[-1]
    ranked, order = scores.sort(-1)
    hits = positive.gather(-1, order).float()
    first, stop = _first_of_tie(ranked), size - _first_of_tie(ranked.flip(-1)).flip(-1)
    below = F.pad(hits.cumsum(-1), (1, 0))  # positives among the lowest k
    total = hits.sum(-1, keepdim=True)
    negatives = size - total
    beaten, upto = first - below.gather(-1, first), stop - below.gather(-1, stop)
    wrong = (negatives - (beaten + upto) / 2) / negatives.clamp(min=1)
    precision = (total - below.gather(-1, first)) / (size - first)
    errors = torch.stack([wrong, 1 - precision])
    misordered, imprecise = ((hits * errors).sum(-1) / total.squeeze(-1).clamp(min=1)).unbind()
    return misordered, imprecise


def _first_of_tie(ranked: Tensor) -> Tensor:
    """Position of the first sample that scores like each sample of a sorted row [..., V]."""
    position = torch.arange(ranked.shape[-1], device=ranked.device)
    same = F.pad(ranked[..., 1:] == ranked[..., :-1], (1, 0))
    return position.expand_as(ranked).masked_fill(same, 0).cummax(-1).values


def ranking_statistics(outputs: Tensor, targets: Tensor) -> Tensor:
    """Statistics of how each class is ranked in validation outputs.

    In order: log(1 + mean of −log p_c over the examples of class c); the share of wrongly ordered pairs, 1 − AUROC_c;
    1 − average precision of class c, which differs between two classes where the share of wrong pairs is the same. A
    class without examples has zeros.

    Args:
        outputs: logits [V, C].
        targets: labels [V] or [V, C].

    Returns:
        Statistics [C, 3].

    Example:
        >>> ranking_statistics(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1, 0]))
        tensor([[0.3436, 0.5000, 0.1667],
                [0.8387, 0.5000, 0.5000]])
    """
    positive = members(targets, outputs.shape[1])
    surprise = -(log_probabilities(outputs, targets) * positive).sum(0) / positive.sum(0).clamp(min=1)
    misordered, imprecise = ordering_errors(ranking_scores(outputs, targets).T, positive.T)
    return torch.stack([surprise.log1p(), misordered, imprecise], -1)
