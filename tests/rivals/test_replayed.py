"""Refit: a learned schedule keeps its meaning on classes of other sizes, and is followed step by step."""

from __future__ import annotations

import torch

from lossalign.core import Observation
from lossalign.losses import AlignedLoss
from lossalign.rivals import ReplayedController, inverse_frequency, logit_adjustment, rescaled

BEFORE, AFTER = torch.tensor([500, 100, 20, 5]), torch.tensor([550, 150, 70, 55])
SPEC = AlignedLoss(4, groups=("weights", "offsets")).spec
SEEN = Observation(error=torch.zeros(2), statistics=torch.zeros(2, 8, 1), sensitivity=torch.zeros(2, 8, 2), progress=0)


def test_logit_adjustment_stays_logit_adjustment_and_class_weights_class_weights() -> None:
    learned = {"offsets": logit_adjustment(BEFORE)[None] * 0.7, "weights": inverse_frequency(BEFORE)[None] * 0.4}
    found = rescaled(learned, BEFORE, AFTER)
    torch.testing.assert_close(found["offsets"][0], logit_adjustment(AFTER) * 0.7)
    torch.testing.assert_close(found["weights"][0], inverse_frequency(AFTER) * 0.4)


def test_what_does_not_follow_the_frequencies_is_kept() -> None:
    log_pi = logit_adjustment(BEFORE)
    apart = torch.tensor([1.0, -1.0, -1.0, 1.0])
    apart = apart - (apart @ log_pi) / log_pi.square().sum() * log_pi
    torch.testing.assert_close(rescaled({"offsets": apart[None]}, BEFORE, AFTER)["offsets"], apart[None])


def test_zero_stays_zero_and_other_groups_are_not_touched() -> None:
    learned = {"offsets": torch.zeros(3, 4), "pairs": torch.rand(3, 6)}
    found = rescaled(learned, BEFORE, AFTER)
    assert not found["offsets"].any()
    assert found["pairs"] is learned["pairs"]


def test_balanced_classes_have_no_frequencies_to_follow() -> None:
    learned = {"offsets": torch.rand(3, 4)}
    assert rescaled(learned, torch.full((4,), 9), AFTER) is learned


def test_phi_follows_the_schedule_and_stays_at_its_last_value() -> None:
    values = torch.tensor([[0.3] * 4, [9.0] * 4])
    rival = ReplayedController(SPEC, children=2, schedule=lambda: {"offsets": values, "elsewhere": values})
    seen = []
    for _ in range(3):
        seen.append(rival.phi[:, 4:].unique().tolist())
        assert not rival.phi[:, :4].any()
        rival.move(SEEN)
    assert seen == [[0.30000001192092896], [3.0], [3.0]]


def test_it_waits_at_the_start_until_there_is_something_to_follow() -> None:
    learned = {"offsets": torch.empty(0, 4)}
    rival = ReplayedController(SPEC, children=2, schedule=lambda: learned)
    assert not rival.phi.any()
    learned["offsets"] = torch.ones(5, 4)
    assert rival.phi[:, 4:].unique().tolist() == [1.0]
    again = ReplayedController(SPEC, children=2, schedule=lambda: {"offsets": torch.arange(5.0)[:, None].expand(-1, 4)})
    rival.move(SEEN)
    rival.move(SEEN)
    again.load_state_dict(rival.state_dict())
    assert again.phi[:, 4:].unique().tolist() == [2.0]
