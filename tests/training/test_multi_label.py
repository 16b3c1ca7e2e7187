"""Several labels a sample: the ranking loss and AUCPR through the whole loop."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lossalign.losses import RankingLoss
from lossalign.metrics import AUCPR, AUROC
from lossalign.training import Aligner


def problem(number: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, 6, generator=draw)
    scores = inputs @ torch.randn(6, 3, generator=torch.Generator().manual_seed(9))
    return inputs, (scores + torch.randn(number, 3, generator=draw) > torch.tensor([0.5, 2.0, 3.0])).float()


def test_macro_areas_of_several_labels_are_scikit_learns() -> None:
    inputs, targets = problem(200, 0)
    outputs = inputs[:, :3]
    for metric, oracle in ((AUCPR(), average_precision_score), (AUROC(), roc_auc_score)):
        expected = oracle(targets.numpy(), outputs.numpy(), average="macro")
        assert float(metric(outputs, targets)) == pytest.approx(expected, rel=1e-5)


def test_a_model_with_several_labels_trains_under_a_moving_ranking_loss() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    train, val = (TensorDataset(*problem(256, seed)) for seed in (1, 2))
    loss = RankingLoss(3, groups=("ranking", "margins", "focus", "temperature"))
    aligner = Aligner(loss, AUCPR(), DataLoader(val, 64), total_steps=80, every=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    before = float(AUCPR()(model(val.tensors[0]), val.tensors[1]))
    for _ in range(20):
        for inputs, targets in DataLoader(train, 64):
            value = aligner(model(inputs), targets)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            aligner.step(model)
    assert not torch.equal(aligner.phi, loss.spec.initial)
    model.load_state_dict(aligner.best_state_dict())
    assert float(AUCPR()(model(val.tensors[0]), val.tensors[1])) > before + 0.1
