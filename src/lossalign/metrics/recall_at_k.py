"""Retrieval by embeddings: every sample is a query among all other samples, nearest first.

Queries are scored a few at a time, so that memory grows with the number of samples and not with its square. Every
metric here can be lifted over children: loops have fixed lengths, and no shape depends on the data under ``vmap``.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics.base import Metric
from lossalign.metrics.registry import METRICS, MetricEntry


def recall_at_k(embeddings: Tensor, labels: Tensor, ks: Sequence[int], chunk: int | None = None) -> Tensor:
    """Recall@k = mean over queries i of 1[ #{n : y_n ≠ y_i, d_in ≤ min_{p ≠ i, y_p = y_i} d_ip} < k ].

    That is: at least one of the k nearest has the query's class. Every sample is a query, against all samples but
    itself, by Euclidean distance. Ties count as misses, so that embeddings collapsed to a point score 0. No distances
    are sorted: a query needs its nearest positive, and the number of samples that are as near. Samples are ordered by
    class, so that the positives of a query are contiguous.

    A tie is what float32 cannot tell apart: squared distances from a to p and to n are compared as 2a·p − ‖p‖² and
    2a·n − ‖n‖², of embeddings centred at their mean, and are equal within (4 + √D/2) ε (‖a‖² + d²). In a
    matrix product even equal columns can differ in their last bits. (TF32, if it is enabled, is coarser.)

    Args:
        embeddings: [V, D], of any length; computed in float32, whatever their type.
        labels: [V].
        ks: numbers of neighbours; where k exceeds the number of other samples, every query is a hit.
        chunk: queries at once, 512 if None and 2,048 on a GPU; about 8 · chunk · V bytes are held, 16 under ``vmap``.

    Returns:
        The recalls [len(ks)]. Queries without a positive are left out; NaN if all are. NaN embeddings are misses.

    Example:
        >>> embeddings = torch.tensor([[0.0], [1.0], [3.0], [3.5]])
        >>> recall_at_k(embeddings, torch.tensor([0, 1, 0, 1]), ks=(1, 2, 3))
        tensor([0.0000, 0.5000, 1.0000])
    """
    order = labels.argsort()
    labels, samples = labels[order], _Samples.of(embeddings[order])
    index, largest = torch.arange(len(labels), device=labels.device), _largest_class(labels)
    reach, behind_of = (len(labels), _count_below) if largest is None else (largest - 1, _counter(labels.device))
    chunk = chunk or (2048 if labels.is_cuda and largest is not None else 512)
    found, asked = labels.new_zeros(len(ks), dtype=torch.long), labels.new_zeros((), dtype=torch.long)
    for start in range(0, len(labels), chunk):
        rows, near = slice(start, start + chunk), slice(max(0, start - reach), start + chunk + reach)
        nearness = samples.nearness(rows)
        same, beside = labels[rows, None] == labels[near], nearness[:, near]
        positive = same & (index[rows, None] != index[near])
        best = beside.masked_fill(~positive, -math.inf).amax(-1, keepdim=True)
        nearest = samples.behind_ties(best, rows)
        behind = behind_of(nearness, nearest) - ((beside < nearest) & same).sum(-1)
        ahead = len(labels) - same.sum(-1) - behind  # of the negatives, NaN among them
        counted = positive.any(-1)
        found = found + torch.stack([((ahead < k) & counted).sum() for k in ks])
        asked = asked + counted.sum()
    return found / asked


def _largest_class(labels: Tensor) -> int | None:
    """Size of the largest class; None under ``vmap``, where values cannot be read."""
    try:
        return int(labels.unique_consecutive(return_counts=True)[1].max())
    except RuntimeError:
        return None


def _count_below(values: Tensor, bounds: Tensor) -> Tensor:
    """How many of each row of ``values`` [Q, V] are below its bound [Q, 1]."""
    return (values < bounds).sum(-1)


def _counter(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """``_count_below``, or its Triton kernel where that is available."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return _count_below
    from lossalign.metrics.kernels import count_below

    return count_below


def map_at_r(embeddings: Tensor, labels: Tensor, chunk: int = 64) -> Tensor:
    """MAP@R = mean over queries of 1/R Σ_{i ≤ R} P(i) 1[the i-th nearest is a positive] (Musgrave et al., ECCV 2020).

    R is the number of other samples of the query's class, P(i) the share of positives among the i nearest.

    Args:
        embeddings: [V, D], as for ``recall_at_k``; ties count as misses in the same way.
        labels: [V].
        chunk: queries at once; about 64 · chunk · V bytes are held.

    Returns:
        A scalar. Queries without a positive are left out; NaN if all are.

    Example:
        >>> embeddings = torch.tensor([[0.0], [1.0], [1.5], [9.0]])
        >>> map_at_r(embeddings, torch.tensor([0, 0, 1, 0]))  # (1/2 + 1/4 + 1/4) / 3
        tensor(0.3333)
    """

    def precision(hits: Tensor) -> Tensor:
        return hits.cumsum(-1) / torch.arange(1, hits.shape[-1] + 1, device=hits.device)

    parts = _hits_within_r(embeddings, labels, chunk)
    return _mean_over_queries((hits * precision(hits)).sum(-1) / total for hits, total in parts)


def r_precision(embeddings: Tensor, labels: Tensor, chunk: int = 64) -> Tensor:
    """R-precision = mean over queries of the share of positives among the R nearest, R as for ``map_at_r``.

    Args:
        embeddings: [V, D], as for ``recall_at_k``; ties count as misses in the same way.
        labels: [V].
        chunk: queries at once; about 64 · chunk · V bytes are held.

    Returns:
        A scalar. Queries without a positive are left out; NaN if all are.

    Example:
        >>> embeddings = torch.tensor([[0.0], [1.0], [1.5], [9.0]])
        >>> r_precision(embeddings, torch.tensor([0, 0, 1, 0]))  # (1/2 + 1/2 + 1/2) / 3
        tensor(0.5000)
    """
    parts = _hits_within_r(embeddings, labels, chunk)
    return _mean_over_queries(hits.sum(-1) / total for hits, total in parts)


class _Samples(NamedTuple):
    """All V samples, centred at their mean [V, D], and their squared lengths [V]."""

    centred: Tensor
    squares: Tensor

    @classmethod
    def of(cls, embeddings: Tensor) -> _Samples:
        x = embeddings.float()
        x = x - x.mean(0)
        return cls(x, x.square().sum(-1))

    def nearness(self, rows: slice) -> Tensor:
        """‖a‖² − d² of queries a to all samples [Q, V]."""
        with torch.autocast(self.centred.device.type, enabled=False):
            return torch.addmm(-self.squares, self.centred[rows], self.centred.T, alpha=2)

    def behind_ties(self, nearness: Tensor, rows: slice) -> Tensor:
        """Nearness of positives [Q, …], lowered by its rounding error, so that positives lose all ties."""
        rounding = (4 + math.sqrt(self.centred.shape[-1]) / 2) * torch.finfo(nearness.dtype).eps
        error = rounding * (2 * self.squares[rows, None] - nearness)
        return nearness - error.clamp(min=torch.finfo(error.dtype).tiny)


def _hits_within_r(embeddings: Tensor, labels: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Which of the nearest are positives, nearest first, none beyond rank R [Q, V]; and R [Q]."""
    samples, index = _Samples.of(embeddings), torch.arange(len(labels), device=labels.device)
    for start in range(0, len(labels), chunk):
        rows = slice(start, start + chunk)
        itself = index[rows, None] == index
        positive = (labels[rows, None] == labels) & ~itself
        nearness = samples.nearness(rows)
        judged = torch.where(positive, samples.behind_ties(nearness, rows), nearness)
        ranked, order = judged.masked_fill(itself, -math.inf).sort(-1, descending=True)
        total = positive.sum(-1)
        within = index < total[:, None]
        yield positive.gather(-1, order) & within & ~ranked.isnan(), total


def _mean_over_queries(parts: Iterable[Tensor]) -> Tensor:
    """The mean over all parts [Q] without NaN, as running sums: keeping the parts would fragment memory."""
    sums = (torch.stack([part.nansum(), (~part.isnan()).sum()]) for part in parts)
    total, count = sum(sums, start=torch.zeros(())).unbind()
    return total / count


def check_embeddings(metric: Metric, outputs: Tensor, targets: Tensor) -> None:
    """Raise ``InputError`` unless the outputs are embeddings [V, D] with labels [V]."""
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1] or not outputs.numel():
        raise InputError(
            f"metric {metric.name!r} needs embeddings [V, D] and labels [V], got {tuple(outputs.shape)} and "
            f"{tuple(targets.shape)}."
        )


@final
class RecallAtK(Metric):
    """Share of the samples with one of their class among their k nearest, averaged over several k.

    Args:
        ks: numbers of neighbours.

    Example:
        >>> embeddings, labels = torch.tensor([[0.0], [1.0], [3.0], [3.5]]), torch.tensor([0, 1, 0, 1])
        >>> RecallAtK(ks=(2, 3)).name, RecallAtK(ks=(2, 3))(embeddings, labels)
        ('recall@2,3', tensor(0.7500))
    """

    higher_is_better = True
    percent = True
    vectorised = True
    pairwise = True

    def __init__(self, ks: Sequence[int] = (1,)) -> None:
        if not ks or min(ks) < 1:
            raise InputError(f"ks={tuple(ks)}: name one k or more, each of at least 1.")
        self.ks = tuple(ks)
        self.name = f"recall@{','.join(map(str, ks))}"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean recall, a scalar, of embeddings [V, D] with labels [V]."""
        check_embeddings(self, outputs, targets)
        return recall_at_k(outputs, targets, self.ks).mean()


@final
class MAPAtR(Metric):
    """Mean average precision at R, see ``map_at_r``: it depends on all R neighbours, not only on the first.

    Example:
        >>> MAPAtR()(torch.tensor([[0.0], [1.0], [1.5], [9.0]]), torch.tensor([0, 0, 1, 0]))
        tensor(0.3333)
    """

    name = "map@r"
    higher_is_better = True
    percent = True
    vectorised = True
    pairwise = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """MAP@R, a scalar, of embeddings [V, D] with labels [V]."""
        check_embeddings(self, outputs, targets)
        return map_at_r(outputs, targets)


@final
class RPrecision(Metric):
    """Share of positives among the R nearest, see ``r_precision``.

    Example:
        >>> RPrecision()(torch.tensor([[0.0], [1.0], [1.5], [9.0]]), torch.tensor([0, 0, 1, 0]))
        tensor(0.5000)
    """

    name = "r-precision"
    higher_is_better = True
    percent = True
    vectorised = True
    pairwise = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """R-precision, a scalar, of embeddings [V, D] with labels [V]."""
        check_embeddings(self, outputs, targets)
        return r_precision(outputs, targets)


METRICS.add(
    "recall@1",
    "share of samples with one of their class among the nearest k; recall@1,10,100 for several",
    MetricEntry(
        make=RecallAtK,
        prefix="recall@",
        carrying=lambda ks: RecallAtK([int(k) for k in ks.split(",")]),
        example="recall@1,10,100",
    ),
)
METRICS.add("map@r", "mean average precision at R", MetricEntry(make=MAPAtR))
METRICS.add("r-precision", "precision among the nearest R", MetricEntry(make=RPrecision))
