"""Verification: are two samples of one class? Pairs no farther apart than a threshold are accepted.

One sort and two cumulative sums give every threshold at once. The functions take the pairs of a protocol, e.g. LFW's;
the metrics take all pairs of a validation set, where same and different pairs have half the weight each, as there
are many more different ones. No shape depends on the data, so that the metrics can be lifted over children.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from lossalign.core import InputError
from lossalign.metrics.base import Metric
from lossalign.metrics.recall_at_k import check_embeddings
from lossalign.metrics.registry import METRICS, MetricEntry

MOST_SAMPLES = 10_000
"""Most samples that all pairs are formed of: 50 million pairs, which take about 3 GB."""


def judged_rightly(distances: Tensor, same: Tensor, threshold: float | Tensor) -> Tensor:
    """Which pairs are judged rightly, bool [P]: accepted, d ≤ threshold, if and only if they are of one class.

    Args:
        distances: [P].
        same: which pairs are of one class, bool [P].
        threshold: the largest distance that is accepted.

    Example:
        >>> judged_rightly(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([True, False, False]), 0.5)
        tensor([ True, False,  True])
    """
    return (distances <= threshold) == same


def accuracy_at(distances: Tensor, same: Tensor, threshold: float | Tensor) -> Tensor:
    """Share of pairs that are ``judged_rightly``, with the same arguments.

    Returns:
        A scalar; NaN without pairs.

    Example:
        >>> accuracy_at(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([True, False, False]), 0.5)
        tensor(0.6667)
    """
    return judged_rightly(distances, same, threshold).float().mean()


def best_threshold(distances: Tensor, same: Tensor) -> Tensor:
    """The threshold with the highest ``accuracy_at``, midway between the pairs that it separates.

    Pairs that tie are accepted or rejected together. Of several best thresholds it is the smallest.

    Args:
        distances: [P].
        same: bool [P].

    Returns:
        A scalar; −∞ where it is best to accept no pair (e.g. if all are different), ∞ where it is best to accept all;
        NaN without pairs.

    Example:
        >>> best_threshold(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([True, False, True]))
        tensor(0.3000)
    """
    ranked, order = distances.sort()
    right = (2 * same[order].long() - 1).cumsum(0)
    splits = pad(ranked[1:] != ranked[:-1], (0, min(1, len(ranked))), value=True)
    chosen = pad(right.masked_fill(~splits, -len(ranked) - 1), (1, 0)).argmax()
    edges = pad(pad(ranked, (1, 0), value=-math.inf), (0, 1), value=math.inf)
    below, above = edges[chosen + torch.arange(2, device=edges.device)].unbind()
    midway = (below + above) / 2
    return torch.where((midway == above) & above.isfinite(), below, midway)


def verification_accuracy(distances: Tensor, same: Tensor, folds: int = 10) -> Tensor:
    """Mean accuracy over folds, each at the ``best_threshold`` of the other folds (LFW, View 2).

    Args:
        distances: [P], in the order of the protocol: folds are contiguous, the first P mod ``folds`` one pair longer.
        same: bool [P].
        folds: at least 2, and no more than pairs.

    Returns:
        A scalar, the plain mean of the folds' accuracies.

    Example:
        >>> distances, same = torch.tensor([0.1, 0.8, 0.2, 0.9]), torch.tensor([True, False, True, False])
        >>> verification_accuracy(distances, same, folds=2)
        tensor(1.)
    """
    if not 2 <= folds <= len(distances):
        raise InputError(f"folds={folds}: with {len(distances)} pairs choose from 2 to {len(distances)}.")
    d, s = distances.tensor_split(folds), same.tensor_split(folds)
    return torch.stack(
        [
            accuracy_at(d[i], s[i], best_threshold(torch.cat(d[:i] + d[i + 1 :]), torch.cat(s[:i] + s[i + 1 :])))
            for i in range(folds)
        ]
    ).mean()


def accept_rates(distances: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """The ROC curve: FAR and TAR, the shares of different and of same pairs that are accepted, as the threshold grows.

    Args:
        distances: [P].
        same: bool [P].

    Returns:
        FAR and TAR, each [P + 1]: first no pair is accepted, then all up to each distance, ties together. FAR is NaN
        without different pairs, TAR without same ones.

    Example:
        >>> accept_rates(torch.tensor([0.1, 0.5, 0.5]), torch.tensor([True, True, False]))
        (tensor([0., 0., 1., 1.]), tensor([0.0000, 0.5000, 1.0000, 1.0000]))
    """
    ranked, order = distances.sort()
    position = torch.arange(len(ranked), device=ranked.device)
    tied = pad(ranked[1:] == ranked[:-1], (0, min(1, len(ranked))))
    last = position.masked_fill(tied, len(ranked)).flip(0).cummin(0).values.flip(0)
    hits = same[order]
    false, true = (pad(kind.cumsum(0)[last], (1, 0)) / kind.sum() for kind in (~hits, hits))
    return false, true


def tar_at_far(distances: Tensor, same: Tensor, far: float) -> Tensor:
    """True accept rate at the loosest threshold whose false accept rate is at most ``far``.

    Args:
        distances: [P].
        same: bool [P].
        far: from 0 to 1; below one over the number of different pairs, none may be accepted.

    Returns:
        A scalar; NaN without same or without different pairs.

    Example:
        >>> tar_at_far(torch.tensor([0.1, 0.3, 0.5, 0.7]), torch.tensor([True, False, True, False]), far=0.5)
        tensor(1.)
    """
    false, true = accept_rates(distances, same)
    return torch.where(false <= far, true, 0 * false).amax()


def equal_error_rate(distances: Tensor, same: Tensor) -> Tensor:
    """The error where as many different pairs are accepted as same ones are rejected, FAR = 1 − TAR.

    Between two thresholds the ROC curve is a straight line.

    Args:
        distances: [P].
        same: bool [P].

    Returns:
        A scalar; NaN without same or without different pairs.

    Example:
        >>> equal_error_rate(torch.tensor([0.1, 0.3, 0.5, 0.7]), torch.tensor([True, False, True, False]))
        tensor(0.5000)
    """
    false, true = accept_rates(distances, same)
    excess = false - (1 - true)
    crossing = (excess >= 0).long().argmax() + torch.arange(-1, 1, device=excess.device)
    (before, after), (low, high) = excess[crossing].unbind(), false[crossing].unbind()
    return low - before / (after - before) * (high - low)


def best_balanced_accuracy(distances: Tensor, same: Tensor) -> Tensor:
    """(TAR + 1 − FAR) / 2 at its best threshold: accuracy where same and different pairs have half the weight each.

    Args:
        distances: [P].
        same: bool [P].

    Returns:
        A scalar of at least 1/2; NaN without same or without different pairs.

    Example:
        >>> best_balanced_accuracy(torch.tensor([0.1, 0.3, 0.5, 0.7]), torch.tensor([True, False, True, False]))
        tensor(0.7500)
    """
    false, true = accept_rates(distances, same)
    return (1 + true - false).amax() / 2


def balanced_threshold(distances: Tensor, same: Tensor) -> Tensor:
    """The threshold of :func:`best_balanced_accuracy`: pairs up to this distance are taken as same.

    Midway between the largest distance that is accepted there and the next one, or the largest distance if all are
    accepted.

    Args:
        distances: [P].
        same: bool [P].

    Returns:
        A scalar.

    Example:
        >>> balanced_threshold(torch.tensor([0.1, 0.3, 0.5]), torch.tensor([True, False, False]))
        tensor(0.2000)
    """
    false, true = accept_rates(distances, same)
    chosen = (true - false)[1:].argmax()
    ranked = distances.sort().values
    return (ranked[chosen] + ranked[(chosen + 1).clamp(max=len(ranked) - 1)]) / 2


def all_pairs(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean distances of all pairs i < j, and whether they are of one class.

    Distances are sums of squared differences, not products, so that equal embeddings are exactly 0 apart. All pairs are
    held at once, at 60 bytes each with their sorting: meant for up to 2,000 samples (2 million pairs), refused beyond
    10,000.

    Args:
        embeddings: [V, D]; computed in float32, whatever their type.
        labels: [V].

    Returns:
        Distances and same, bool, each [V (V − 1) / 2]. The distance to a NaN embedding is ∞.

    Example:
        >>> all_pairs(torch.tensor([[0.0], [3.0], [7.0]]), torch.tensor([0, 1, 1]))
        (tensor([3., 7., 4.]), tensor([False, False,  True]))
    """
    if len(embeddings) > MOST_SAMPLES:
        raise InputError(
            f"embeddings: verification compares all pairs of {len(embeddings):,} samples; take at most "
            f"{MOST_SAMPLES:,}, or another metric, e.g. 'recall@1'."
        )
    x = embeddings.float()
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").nan_to_num(nan=math.inf, posinf=math.inf)
    return distances[i, j], labels[i] == labels[j]


@final
class VerificationAccuracy(Metric):
    """Accuracy of telling same from different pairs at the best threshold, over all pairs of D_val, balanced.

    See ``all_pairs`` and ``best_balanced_accuracy``. The threshold is chosen on the pairs that are judged; for LFW's
    protocol, where it is not, call ``verification_accuracy``.

    Example:
        >>> VerificationAccuracy()(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]))
        tensor(1.)
    """

    name = "verification"
    higher_is_better = True
    percent = True
    vectorised = True
    pairwise = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The accuracy, a scalar, of embeddings [V, D] with labels [V]."""
        check_embeddings(self, outputs, targets)
        return best_balanced_accuracy(*all_pairs(outputs, targets))


@final
class TARAtFAR(Metric):
    """True accept rate at a false accept rate, over all pairs of D_val; see ``tar_at_far`` and ``all_pairs``.

    Args:
        far: the share of different pairs that may be accepted, from 0 to below 1.

    Example:
        >>> TARAtFAR(0.1).name
        'tar@far=0.1'
        >>> TARAtFAR(0.1)(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]))
        tensor(1.)
    """

    higher_is_better = True
    percent = True
    vectorised = True
    pairwise = True

    def __init__(self, far: float) -> None:
        if not 0 <= far < 1:
            raise InputError(f"far={far}: choose a share of at least 0 and below 1.")
        self.far = far
        self.name = f"tar@far={far}"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The true accept rate, a scalar, of embeddings [V, D] with labels [V]."""
        check_embeddings(self, outputs, targets)
        return tar_at_far(*all_pairs(outputs, targets), self.far)


@final
class EqualErrorRate(Metric):
    """The error where false accepts and false rejects are equally frequent, over all pairs of D_val.

    See ``equal_error_rate`` and ``all_pairs``.

    Example:
        >>> EqualErrorRate()(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]))
        tensor(0.)
    """

    name = "eer"
    higher_is_better = False
    percent = True
    vectorised = True
    pairwise = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The error, a scalar, of embeddings [V, D] with labels [V]."""
        check_embeddings(self, outputs, targets)
        return equal_error_rate(*all_pairs(outputs, targets))


METRICS.add("verification", "accuracy of telling pairs apart", MetricEntry(make=VerificationAccuracy))
METRICS.add(
    "tar@far=0.001",
    "true accept rate at a false accept rate",
    MetricEntry(
        make=lambda: TARAtFAR(0.001),
        prefix="tar@far=",
        carrying=lambda far: TARAtFAR(float(far)),
        example="tar@far=0.001",
    ),
)
METRICS.add("eer", "equal error rate of telling pairs apart", MetricEntry(make=EqualErrorRate))
