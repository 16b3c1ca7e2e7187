"""What an aligner refuses to be used for, one sentence each, and K if it is not given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign import AlignedLoss, InputError
from lossalign.training.use import (
    _HELD,
    STATE_VERSION,
    check_batch,
    check_state,
    checked_every,
    looks_like_probabilities,
    refuse_renamed,
)


@pytest.mark.parametrize("total", [1, 9, 10, 999, 1_000, 20_000, 10**6])
def test_k_is_a_hundredth_of_the_run_from_10_to_200_and_fits_into_it(total: int) -> None:
    every = checked_every(AlignedLoss(2), total, None)
    assert every == min(total, max(10, min(200, total // 100)))


def test_names_of_version_0_1_are_refused_with_the_way_out_and_others_as_python_does() -> None:
    with pytest.raises(InputError, match="policy is now called controller; write controller="):
        refuse_renamed({"policy": "fresh"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'polcy'"):
        refuse_renamed({"polcy": "fresh"})


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        ({"logits": torch.zeros(1)}, torch.zeros(1), "outputs: a dict with the keys 'logits', not a tensor"),
        (torch.zeros(1), [0], "targets: a list, not a tensor"),
        (torch.zeros(1, device="meta"), torch.zeros(1), "outputs: a tensor on the meta device"),
        (torch.zeros(1), torch.zeros(1, device="meta"), "targets: a tensor on the meta device"),
    ],
)
def test_a_batch_is_two_tensors_with_numbers(outputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_batch(outputs, targets)


@pytest.mark.parametrize(
    ("outputs", "targets", "looks"),
    [
        (torch.tensor([[0.2, 0.8]]), torch.tensor([1]), True),
        (torch.tensor([[0.2, 0.8], [0.5, 0.6]]), torch.tensor([1, 0]), False),
        (torch.tensor([[-0.2, 1.2]]), torch.tensor([1]), False),
        (torch.tensor([[0.2, 0.8]]), torch.tensor([[0, 1]]), False),
        (torch.zeros(0, 2), torch.zeros(0).long(), False),
    ],
)
def test_probabilities_are_rows_from_0_that_sum_to_1(outputs: Tensor, targets: Tensor, looks: bool) -> None:
    assert looks_like_probabilities(AlignedLoss(2), outputs, targets) is looks


OWN: dict[str, Any] = {"parameters": {"offsets": 3}, "every": 10, "options": {"horizon": 5, "reset": None}}
SAVED: dict[str, Any] = {"version": STATE_VERSION, **OWN, **dict.fromkeys(_HELD)}


class TestState:
    def test_its_own_is_accepted(self) -> None:
        check_state(SAVED, OWN)

    @pytest.mark.parametrize("state", [None, {}, [1]])
    def test_what_is_no_state_is_refused(self, state: Any) -> None:
        with pytest.raises(InputError, match="state: it holds no state of an Aligner"):
            check_state(state, OWN)

    @pytest.mark.parametrize("name", [*OWN, *_HELD])
    def test_a_gap_is_named(self, name: str) -> None:
        with pytest.raises(InputError, match=f"state: '{name}' is missing"):
            check_state({key: value for key, value in SAVED.items() if key != name}, OWN)

    @pytest.mark.parametrize("version", [None, STATE_VERSION - 1, STATE_VERSION + 1])
    def test_another_version_is_refused(self, version: int | None) -> None:
        with pytest.raises(InputError, match=f"state: it has version {version}, this lossalign reads version"):
            check_state({**SAVED, "version": version}, OWN)

    def test_options_are_compared_one_by_one(self) -> None:
        other = {**SAVED, "options": {"horizon": 5, "reset": 3.0}}
        with pytest.raises(InputError, match=r"saved with reset=3\.0, this aligner has reset=None"):
            check_state(other, OWN)

    def test_other_parameters_are_counted_by_group(self) -> None:
        other = {**SAVED, "parameters": {"weights": 4}}
        with pytest.raises(InputError, match=r"a loss with other parameters \(4 weights\) than this .* \(3 offsets\)"):
            check_state(other, OWN)
