"""LDAM is the published loss: larger margins for rarer classes, on scaled cosines."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import LDAMLoss, confusion, ldam_loss, ldam_margins

COUNTS = [5000, 500, 50, 5]
G = torch.Generator().manual_seed(0)
COSINES, TARGETS = torch.rand(40, 4, generator=G) * 2 - 1, torch.arange(4).repeat(10)
LOGITS = 30 * COSINES


def published(cosines: Tensor, targets: Tensor, counts: list[int], weight: Tensor | None = None) -> Tensor:
    """The authors' LDAMLoss.forward (github.com/kaidic/LDAM-DRW, losses.py), unreduced."""
    m_list = 1.0 / torch.tensor(counts).double().sqrt().sqrt()
    m_list = (m_list * (0.5 / m_list.max())).float()
    index = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, targets[:, None], True)
    batch_m = (m_list[None] @ index.float().T).view(-1, 1)
    output = torch.where(index, cosines - batch_m, cosines)
    return F.cross_entropy(30 * output, targets, weight=weight, reduction="none")


def plain_loss(logits: Tensor, targets: Tensor, counts: list[int], u: list[float]) -> Tensor:
    largest, total = max(n**-0.25 for n in counts), sum(counts)
    mean = sum(n / total * math.exp(v) for n, v in zip(counts, u, strict=True))
    losses = []
    for row, y in zip(logits.tolist(), targets.tolist(), strict=True):
        z = [v - 30 * 0.5 * counts[y] ** -0.25 / largest * (j == y) for j, v in enumerate(row)]
        top = max(z)
        losses.append(math.exp(u[y]) / mean * (top + math.log(sum(math.exp(v - top) for v in z)) - z[y]))
    return torch.tensor(losses)


@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=6), st.integers(0, 10_000))
def test_equals_a_plain_loop_and_is_never_negative(counts: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = 60 * torch.rand(12, len(counts), generator=g) - 30
    targets, phi = torch.randint(0, len(counts), (12,), generator=g), 6 * torch.rand(len(counts), generator=g) - 3
    value = LDAMLoss(len(counts), counts)(logits, targets, phi)
    torch.testing.assert_close(value, plain_loss(logits, targets, counts, phi.tolist()), rtol=1e-4, atol=1e-4)
    assert value.min() >= 0


def test_is_the_authors_loss_until_the_weights_move() -> None:
    loss = LDAMLoss(4, COUNTS)
    torch.testing.assert_close(loss(LOGITS, TARGETS, loss.spec.initial), published(COSINES, TARGETS, COUNTS))


def test_weights_are_the_authors_up_to_their_mean_over_the_training_data() -> None:
    w = torch.tensor([0.1, 0.3, 1.0, 2.6])
    mean = (w * torch.tensor(COUNTS) / sum(COUNTS)).sum()
    torch.testing.assert_close(
        LDAMLoss(4, COUNTS)(LOGITS, TARGETS, w.log()), published(COSINES, TARGETS, COUNTS, w) / mean
    )


def test_margins_grow_as_the_fourth_root_of_rarity() -> None:
    margins = ldam_margins(torch.tensor([10_000, 625, 1]), largest=0.8)
    torch.testing.assert_close(margins, torch.tensor([0.08, 0.16, 0.8]))
    torch.testing.assert_close(ldam_margins(torch.tensor([0.5, 0.5])), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(LDAMLoss(4, COUNTS).margins, ldam_margins(torch.tensor(COUNTS)))


def test_without_margins_it_is_cross_entropy() -> None:
    assert torch.equal(ldam_loss(LOGITS, TARGETS, torch.zeros(4)), F.cross_entropy(LOGITS, TARGETS, reduction="none"))


def test_the_margin_is_asked_of_the_true_class_alone() -> None:
    logits, margins = torch.zeros(1, 3), torch.tensor([0.5, 0.2, 0.1])
    value = ldam_loss(logits, torch.tensor([1]), margins, scale=10.0)
    torch.testing.assert_close(value, torch.log(1 + 2 * torch.tensor([2.0]).exp()))


def test_statistics_are_the_own_confusion_of_every_class() -> None:
    matrix = confusion(LOGITS.log_softmax(-1), TARGETS).log1p()
    loss = LDAMLoss(4, COUNTS)
    torch.testing.assert_close(loss.statistics(LOGITS, TARGETS), matrix.diagonal()[:, None])
    assert loss.num_statistics == 1
    assert loss.spec.classes.tolist() == [[i, i] for i in range(4)]


def test_vmap_over_children_equals_a_loop() -> None:
    loss = LDAMLoss(4, COUNTS)
    logits, targets = torch.stack([LOGITS, -LOGITS]), torch.stack([TARGETS, TARGETS.flip(0)])
    phi = torch.tensor([[0.0, 0.3, 0.6, 0.9], [3.0, -3.0, 0.0, 1.0]])
    for lifted in (loss, lambda outputs, labels, _: loss.statistics(outputs, labels)):
        torch.testing.assert_close(
            torch.func.vmap(lifted)(logits, targets, phi),
            torch.stack([lifted(logits[n], targets[n], phi[n]) for n in range(2)]),
        )


def test_half_precision_outputs_are_computed_in_float32() -> None:
    loss, rounded = LDAMLoss(4, COUNTS), LOGITS.bfloat16()
    assert torch.equal(loss(rounded, TARGETS, loss.spec.initial), loss(rounded.float(), TARGETS, loss.spec.initial))


def test_what_it_cannot_use_is_refused() -> None:
    for wrong in ([1, 2], [1, 2, 0], [1, 2, math.nan]):
        with pytest.raises(InputError, match="counts: give one positive, finite number for each of 3 classes"):
            LDAMLoss(3, wrong)
    with pytest.raises(InputError, match=r"groups=\('offsets',\): choose one or more from \('weights',\)"):
        LDAMLoss(3, [1, 2, 3], groups=("offsets",))
    with pytest.raises(InputError, match="scale=0: give the positive scale"):
        LDAMLoss(3, [1, 2, 3], scale=0)
    with pytest.raises(InputError, match="label 3 is out of range for num_classes=3"):
        LDAMLoss(3, [1, 2, 3]).check_targets(torch.tensor([3]), "val_loader")
    with pytest.raises(InputError, match=r"outputs have shape \(40, 4\)"):
        LDAMLoss(3, [1, 2, 3])(LOGITS, TARGETS, torch.zeros(3))
