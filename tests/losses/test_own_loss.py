"""A loss of one's own through the same interface; docs/losses.md shows the same code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError, ParameterGroup, ParameterSpec
from lossalign.losses import AdaptiveLoss


class FocalLoss(AdaptiveLoss):
    """(1 − p_y)^γ · (−log p_y), with γ ∈ [0, 5] moved while the model trains; cross-entropy at its start, γ = 0."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.spec = ParameterSpec(
            (ParameterGroup(name="focus", labels=("γ",), initial=0.0, low=0.0, high=5.0, step=0.25),)
        )
        self.num_statistics = 2

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs.float(), targets, reduction="none")
        miss = -torch.expm1(-loss)  # 1 − p_y
        return miss.clamp(min=1e-6) ** phi[0] * loss  # the clamp keeps the gradient finite at p_y = 1

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How wrong the model is on average, and how unevenly."""
        loss = F.cross_entropy(outputs.float(), targets, reduction="none").log1p()
        return torch.stack([loss.mean(), loss.std()])[None]

    def check_targets(self, targets: Tensor, name: str) -> None:
        if targets.is_floating_point() or targets.min() < 0 or targets.max() >= self.num_classes:
            raise InputError(f"{name}: labels must be whole numbers 0 … {self.num_classes - 1}.")


LOSS = FocalLoss(num_classes=4)
G = torch.Generator().manual_seed(0)
LOGITS, TARGETS = torch.randn(3, 20, 4, generator=G), torch.randint(0, 4, (3, 20), generator=G)


def test_the_page_shows_this_class() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "losses.md").read_text(encoding="utf-8")
    (shown,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class FocalLoss" in block]
    imports, _, code = shown.partition("class FocalLoss")
    assert "class FocalLoss" + code == inspect.getsource(FocalLoss)
    assert all(line in Path(__file__).read_text(encoding="utf-8").splitlines() for line in imports.splitlines())


def test_is_cross_entropy_at_its_start() -> None:
    ours = LOSS(LOGITS[0], TARGETS[0], LOSS.spec.initial)
    assert torch.equal(ours, F.cross_entropy(LOGITS[0], TARGETS[0], reduction="none"))


def test_equals_a_plain_loop() -> None:
    p = LOGITS[0].softmax(-1)[range(20), TARGETS[0]].tolist()
    expected = torch.tensor([(1 - x) ** 2.5 for x in p]) * -torch.tensor(p).log()
    torch.testing.assert_close(LOSS(LOGITS[0], TARGETS[0], torch.tensor([2.5])), expected)


def test_has_one_loss_an_example_and_statistics_a_parameter() -> None:
    assert LOSS(LOGITS[0], TARGETS[0], LOSS.spec.initial).shape == (20,)
    assert LOSS.statistics(LOGITS[0], TARGETS[0]).shape == (LOSS.spec.size, LOSS.num_statistics)


def test_can_be_lifted_over_children() -> None:
    phi = torch.tensor([[0.0], [0.5], [5.0]])
    torch.testing.assert_close(
        torch.func.vmap(LOSS)(LOGITS, TARGETS, phi),
        torch.stack([LOSS(LOGITS[n], TARGETS[n], phi[n]) for n in range(3)]),
    )
    torch.testing.assert_close(
        torch.func.vmap(LOSS.statistics)(LOGITS, TARGETS),
        torch.stack([LOSS.statistics(LOGITS[n], TARGETS[n]) for n in range(3)]),
    )


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0, 5.0])
def test_is_finite_where_the_model_is_certain(gamma: float) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]], requires_grad=True)
    for targets in (torch.tensor([0, 0]), torch.tensor([1, 1])):
        loss = LOSS(logits, targets, torch.tensor([gamma]))
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()


def test_refuses_labels_it_cannot_use() -> None:
    with pytest.raises(InputError, match="train_loader: labels must be whole numbers 0 … 3"):
        LOSS.check_targets(torch.tensor([4]), "train_loader")
