"""What only a GPU can show of the Aligner: Φ follows, few parameters are moved on the CPU and many where Φ is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lossalign as la

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def trained(loss, steps, aligner=None, model=None, start=0):
    g = torch.Generator().manual_seed(0)
    classes = loss.num_classes
    targets = torch.arange(4 * classes) % classes
    inputs = torch.randn(4 * classes, 8, generator=g) + targets[:, None] / classes
    batch = inputs.cuda(), targets.cuda()
    if model is None:
        torch.manual_seed(1)
        model = nn.Linear(8, classes).cuda()
    if aligner is None:
        aligner = la.Aligner(loss, la.metrics.BalancedError(), [batch], 40, every=5, controller="fresh").to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(start, start + steps):
        optimizer.zero_grad()
        aligner(model(batch[0]), batch[1]).backward()
        optimizer.step()
        aligner.step(model)
    return aligner, model


def test_phi_follows_to_the_gpu_and_a_small_controller_stays_on_the_cpu():
    aligner, _ = trained(la.AlignedLoss(3), 10)
    assert aligner.phi.is_cuda
    assert next(aligner.policy.parameters()).device.type == "cpu"
    assert aligner.history.phi.shape == (2, 3)


def test_a_controller_of_many_parameters_works_on_the_gpu():
    aligner, _ = trained(la.AlignedLoss(40, groups=("offsets", "pairs")), 10)
    assert aligner.phi.is_cuda
    assert next(aligner.policy.parameters()).is_cuda


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_state_resumes_wherever_it_was_loaded_to(target, tmp_path):
    whole, _ = trained(la.AlignedLoss(3), 20)
    half, model = trained(la.AlignedLoss(3), 10)
    torch.save(half.state_dict(), tmp_path / "half.pt")
    state = torch.load(tmp_path / "half.pt", map_location=target, weights_only=True)
    resumed, _ = trained(la.AlignedLoss(3), 0)
    resumed.load_state_dict(copy.deepcopy(state))
    resumed, _ = trained(la.AlignedLoss(3), 10, aligner=resumed, model=model, start=10)
    assert torch.equal(resumed.history.phi, whole.history.phi)
    assert torch.equal(resumed.phi, whole.phi)
