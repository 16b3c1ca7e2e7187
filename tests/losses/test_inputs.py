"""What a loss cannot use is refused in one sentence that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lossalign.core import InputError, ParameterGroup, ParameterSpec
from lossalign.losses import AdaptiveLoss, AlignedLoss, ClassCorrelationLoss

LOSSES = pytest.mark.parametrize("make", [AlignedLoss, ClassCorrelationLoss])
GROUP = {"name": "g", "labels": ("a", "b"), "initial": 0.0, "low": -1.0, "high": 1.0, "beta": 0.1}


@LOSSES
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0.0, 1.0]), r"val_loader: labels have type torch.float32; convert them with \.long\(\)"),
        (torch.tensor([True, False]), "labels have type torch.bool"),
        (torch.tensor([0, 1], dtype=torch.uint8), "labels have type torch.uint8"),
        (torch.tensor([[0, 1]]), r"labels have shape \(1, 2\)"),
        (torch.tensor([0, 3]), "label 3 is out of range for num_classes=3"),
        (torch.tensor([-1, 0]), "label -1 is out of range"),
    ],
)
def test_labels(make: Callable[..., AdaptiveLoss], targets: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(3).check_targets(targets, "val_loader")


@LOSSES
def test_labels_that_fit_pass(make: Callable[..., AdaptiveLoss]) -> None:
    make(3).check_targets(torch.tensor([0, 1, 2]), "val_loader")
    make(3).check_targets(torch.zeros(0, dtype=torch.long), "val_loader")


@LOSSES
def test_groups_and_classes(make: Callable[..., AdaptiveLoss]) -> None:
    with pytest.raises(InputError, match=r"groups=\('margins',\): choose one or more from"):
        make(3, groups=("margins",))
    with pytest.raises(InputError, match="choose one or more from"):
        make(3, groups=())
    with pytest.raises(InputError, match="num_classes=1: a classification loss needs at least 2"):
        make(1)
    with pytest.raises(InputError, match=r"beta=-0\.\d+ must be positive"):
        make(3, beta=-0.1)


def test_form() -> None:
    with pytest.raises(InputError, match="form='softmax': choose from"):
        ClassCorrelationLoss(3, form="softmax")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [[1, 2], [1, 2, 0], [1, 2, -1], [1, 2, float("nan")], [1, 2, float("inf")], [[1, 2, 3]]]
)
def test_frequencies(wrong: list[float]) -> None:
    with pytest.raises(InputError, match="frequencies: give one positive, finite number for each of 3 classes"):
        AlignedLoss(3, frequencies=wrong)


def test_frequencies_may_be_counts() -> None:
    assert AlignedLoss(2, frequencies=[30, 10]).frequencies.tolist() == [0.75, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ()}, "labels is empty"),
        ({"low": 1.0}, "low=1.0 must be below high=1.0"),
        ({"beta": 0.0}, "beta=0.0 must be positive"),
        ({"beta": 3.0}, "beta=3.0 must be positive and at most high - low = 2.0"),
        ({"initial": (0.0,)}, "initial has 1 values for 2 labels"),
        ({"initial": 2.0}, r"initial must lie in \[-1.0, 1.0\]"),
        ({"classes": ((0, 0),)}, "classes needs one pair for each of 2 labels"),
    ],
)
def test_a_group_must_hold_together(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"ParameterGroup 'g': {message}"):
        ParameterGroup(**{**GROUP, **change})  # type: ignore[arg-type]


def test_groups_need_names_of_their_own() -> None:
    group = ParameterGroup(**GROUP)  # type: ignore[arg-type]
    for groups in ((), (group, group)):
        with pytest.raises(InputError, match="at least one parameter group, each with its own name"):
            ParameterSpec(groups)


@pytest.mark.parametrize(
    ("phi", "message"),
    [
        (torch.zeros(3), r"phi has shape \(3,\); its last axis must hold 4"),
        (torch.tensor([0.0, 4.0, 0.0, 0.0]), r"parameter '1' is 4, outside its range \[-3, 3\]"),
        (torch.tensor([[0.0] * 4, [0.0, 0.0, torch.nan, 0.0]]), "parameter '2' is nan"),
        (torch.tensor([0.0, 0.0, 0.0, -torch.inf]), "parameter '3' is -inf"),
    ],
)
def test_phi_must_lie_in_range(phi: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AlignedLoss(4).spec.check(phi)


@LOSSES
def test_the_whole_range_passes(make: Callable[..., AdaptiveLoss]) -> None:
    spec = make(3).spec
    for phi in (spec.initial, spec.low, spec.high, torch.stack([spec.low, spec.high])):
        spec.check(phi)


def test_only_groups_the_loss_has_can_be_selected() -> None:
    spec = AlignedLoss(2, groups=("offsets", "pairs")).spec
    assert spec.select(["pairs"]).tolist() == [2]
    for wrong in (["weights"], []):
        with pytest.raises(InputError, match=r"choose from \['offsets', 'pairs'\], which this loss has"):
            spec.select(wrong)
