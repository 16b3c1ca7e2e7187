"""Retrieval metrics equal those of pytorch-metric-learning's AccuracyCalculator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossalign.metrics import map_at_r, r_precision, recall_at_k

pytest.importorskip("pytorch_metric_learning")

from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN


def spread(seed: int, samples: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Clusters that overlap, of different sizes; the last two samples are alone in their classes."""
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(samples, generator=g).square() * classes).long()
    labels[-2:] = torch.tensor([classes, classes + 1])
    return torch.randn(classes + 2, size, generator=g)[labels] + torch.randn(samples, size, generator=g), labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("samples", "size", "classes"), [(40, 2, 5), (300, 8, 12), (500, 64, 100)])
def test_equal_the_accuracy_calculator(samples: int, size: int, classes: int, seed: int) -> None:
    """Both leave out queries without a positive; distances are Euclidean and not of normalised embeddings. Only ties,
    of which these have none, are judged differently: they count against here, there it is chance."""
    embeddings, labels = spread(seed, samples, size, classes)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r", "r_precision"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=CustomKNN(LpDistance(normalize_embeddings=False)),
    )
    theirs = calculator.get_accuracy(embeddings, labels)
    assert theirs == pytest.approx(
        {
            "precision_at_1": float(recall_at_k(embeddings, labels, ks=(1,))),
            "mean_average_precision_at_r": float(map_at_r(embeddings, labels)),
            "r_precision": float(r_precision(embeddings, labels)),
        }
    )
    assert all(0 < value < 1 for value in theirs.values())
