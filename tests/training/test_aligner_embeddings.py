"""The loop of the README learns embeddings too."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lossalign as la
from lossalign.data import load_turned_digits


def test_a_model_of_embeddings_trains_under_moving_distances() -> None:
    digits = load_turned_digits()
    seen, held_out = digits.targets < 40, digits.targets >= 60
    inputs, targets = digits.inputs[seen], digits.targets[seen]
    validation = DataLoader(TensorDataset(digits.inputs[held_out], digits.targets[held_out]), batch_size=100)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    aligner = la.Aligner(la.DistanceMixtureLoss(), la.metrics.RecallAtK((1,)), validation, total_steps=60, every=5)
    optimizer, draw = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.Generator().manual_seed(0)
    first = None
    for _ in range(60):
        batch = torch.randperm(len(targets), generator=draw)[:128]
        loss = aligner(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        aligner.step(model)
        first = float(loss.detach()) if first is None else first
    assert float(loss.detach()) < first
    assert (aligner.phi != aligner.loss.spec.initial).any()
    with torch.no_grad():
        model.load_state_dict(aligner.best_state_dict())
        outputs = torch.cat([model.eval()(x) for x, _ in validation])
    assert float(aligner.metric(outputs, digits.targets[held_out])) > 0.5  # type: ignore[operator]
