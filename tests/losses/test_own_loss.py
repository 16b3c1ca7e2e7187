"""The loss of one's own that docs/own-loss.md shows keeps what the page promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lossalign.core import InputError

PAGE = Path(__file__).parents[2] / "docs" / "own-loss.md"
(CODE,) = re.findall(r"```python\n# own_loss\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SHOWN: dict = {"__name__": "own_loss"}
exec(compile(CODE, str(PAGE), "exec"), SHOWN)

LOSS = SHOWN["FocalLoss"]()
G = torch.Generator().manual_seed(0)
LOGITS, TARGETS = torch.randn(3, 20, 4, generator=G), torch.randint(0, 4, (3, 20), generator=G)


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


@pytest.mark.parametrize("labels", [torch.tensor([-1]), torch.tensor([0.5])])
def test_refuses_labels_it_cannot_use(labels: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"train_loader: labels must be class indices 0, 1, …\."):
        LOSS.check_targets(labels, "train_loader")
