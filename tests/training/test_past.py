"""What a population keeps of its past is bounded, counted, and resumed exactly."""

import numpy as np
import torch

from lossalign.training import past
from lossalign.training.past import Past


def filled(steps, children=3, parameters=4):
    kept = Past(steps=steps, children=children, parameters=parameters)
    for step in range(steps):
        logs = {"reward": torch.full((children,), step / 3), "reset": torch.tensor([0.0, float(step % 2), torch.nan])}
        kept.add(step, torch.full((children, parameters), float(step)), logs)
    return kept


def test_rewards_and_resets_are_those_of_the_log():
    kept = filled(5)
    assert kept.rewards[:, 0].tolist() == [round(float(torch.tensor(step / 3)), 7) for step in range(5)]
    assert kept.resets.tolist() == [0, 2, 0]


def test_a_step_without_a_reward_is_nan():
    kept = Past(steps=1, children=2, parameters=1)
    kept.add(0, torch.zeros(2, 1), {})
    assert np.isnan(kept.rewards).all()


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(past, "_NUMBERS", 30)
    kept = filled(10)
    assert kept.steps.tolist() == [1, 5, 9]
    assert kept.phi[:, 0, 0].tolist() == [0.0, 4.0, 8.0]
    assert len(kept.rewards) == 3
    assert kept.resets.tolist() == [0, 5, 0], "all resets are counted"


def test_it_resumes_where_it_was():
    whole, resumed = filled(4), Past(steps=4, children=3, parameters=4)
    resumed.load_state_dict(whole.state_dict())
    assert torch.equal(resumed.phi, whole.phi)
    assert np.array_equal(resumed.rewards, whole.rewards)
    assert resumed.resets.tolist() == whole.resets.tolist()
