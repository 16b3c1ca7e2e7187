"""A validation loader is read whole or in turn, on any device, and looked at before training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lossalign import AlignedLoss
from lossalign.core import InputError, NonFiniteError
from lossalign.metrics import BalancedError, PipelineMetric
from lossalign.training.notices import Once
from lossalign.training.validation import Validation, first_batch, forward_pair

INPUTS, TARGETS = torch.eye(3).repeat(2, 1), torch.arange(6) % 3


def batches(size: int = 2) -> list[tuple[Tensor, Tensor]]:
    return list(zip(INPUTS.split(size), TARGETS.split(size), strict=True))


def made(loader: Any, metric: Any = None) -> Validation:
    metric = metric or BalancedError()
    return Validation(loader, forward_pair, AlignedLoss(3), metric, sharded=False, once=Once())


def test_the_whole_set_is_read_in_the_loaders_order_whatever_the_batches() -> None:
    for size in (1, 4, 6):
        outputs, targets = made(batches(size)).whole(nn.Identity(), 1)
        assert torch.equal(outputs, INPUTS[None])
        assert torch.equal(targets, TARGETS[None])


def test_batches_come_in_turn_and_begin_again() -> None:
    validation = made(batches())
    read = [int(validation.batch(nn.Identity(), 1)[1][0, 0]) for _ in range(4)]
    assert read == [0, 2, 1, 0]
    assert validation.drawn == 1


def test_setting_what_was_drawn_resumes_there() -> None:
    validation = made(batches())
    validation.drawn = 2
    assert int(validation.batch(nn.Identity(), 1)[1][0, 0]) == 1
    assert validation.drawn == 3


def test_a_copy_reads_from_the_same_place_and_shares_the_loader() -> None:
    loader = batches()
    validation = made(loader)
    validation.batch(nn.Identity(), 1)
    twin = copy.deepcopy(validation)
    assert twin._loader is loader
    for each in (validation, twin):
        assert int(each.batch(nn.Identity(), 1)[1][0, 0]) == 2


def test_the_error_is_that_of_the_metric_turned() -> None:
    validation = made(batches())
    assert float(validation.error(INPUTS[None], TARGETS[None], 1)) == 0
    assert float(validation.error(-INPUTS[None], TARGETS[None], 1)) == 1
    higher = made(batches(), PipelineMetric(lambda model, loader: 0.25, higher_is_better=True))
    assert float(higher.pipeline_error(nn.Identity(), 1)) == -0.25


def test_outputs_that_are_not_finite_name_the_step() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0

    with pytest.raises(NonFiniteError, match="step 7: the outputs of child 0 are not finite"):
        made(batches()).whole(Broken(), 7)


def test_looking_at_the_first_batch_draws_nothing_from_the_global_stream() -> None:
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=2, shuffle=True)
    before = torch.get_rng_state()
    first_batch(loader)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (3, "val_loader: int has no batches; give a list or a DataLoader"),
        (iter(batches()), "val_loader: it can be read only once"),
        ([], "val_loader: it is empty"),
    ],
)
def test_what_cannot_be_read_again_and_again_is_refused(loader: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        first_batch(loader)
