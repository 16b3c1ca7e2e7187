"""Model, optimiser and aligner go on from a file as if nothing had happened."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lossalign as la

EVERY = 4


class Run:
    """A user's loop with everything that a user would save."""

    def __init__(self, problem: Any, seed: int = 0, **options: Any) -> None:
        torch.manual_seed(seed)
        self.problem, self.model = problem, problem.network()
        for parameter in self.model.parameters():
            parameter.data += seed
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.aligner = problem.aligner(every=EVERY, seed=seed, total_steps=36, **options)

    def go(self, start: int, stop: int) -> Run:
        for x, y in self.problem.batches(start, stop):
            self.optimizer.zero_grad()
            self.aligner(self.model(x), y).backward()
            self.optimizer.step()
            self.aligner.step(self.model)
        return self

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "aligner": self.aligner.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.aligner.load_state_dict(state["aligner"])
        torch.set_rng_state(state["random"])


@pytest.mark.parametrize("after", [1, 8, 22, 23])  # nothing measured yet; between two steps; in the middle of one
@pytest.mark.parametrize("evaluation", ["literal", "minibatch", "window"])
@pytest.mark.parametrize("average", [None, 2.0])
def test_resumes_bit_for_bit(
    after: int,
    evaluation: str,
    average: float | None,
    problem: Any,
    copied: Callable[[Any], Any],
    assert_equal: Callable[[Any, Any], None],
) -> None:
    preset = la.default(evaluation=evaluation, weight_average=average, horizon=2)
    whole = Run(problem, preset=preset).go(0, after)
    saved = copied(whole.state())
    expected = copied(whole.go(after, 36).state())

    resumed = Run(problem, seed=3, preset=preset)
    if after > 8:
        resumed.go(0, 10)  # whatever it did before is forgotten
    resumed.load(saved)
    resumed.go(after, 36)
    assert_equal(resumed.state(), expected)
    assert_equal(resumed.aligner.best_state_dict(), whole.aligner.best_state_dict())
    assert (expected["aligner"]["phi"] != 0).any()


def test_loading_leaves_the_random_stream_and_the_state_alone(
    problem: Any, copied: Callable[[Any], Any], assert_equal: Callable[[Any, Any], None]
) -> None:
    preset = la.default(evaluation="minibatch")
    saved = copied(Run(problem, preset=preset).go(0, 6).aligner.state_dict())
    kept = copied(saved)
    other = Run(problem, seed=3, preset=preset)
    before = torch.get_rng_state()
    other.aligner.load_state_dict(saved)
    assert torch.equal(torch.get_rng_state(), before)
    other.go(6, 16)
    assert_equal(saved, kept)


def test_minibatches_go_round_the_loader(problem: Any, copied: Callable[[Any], Any]) -> None:
    seen: list[int] = []

    def forward(model: nn.Module, batch: tuple[int, Any]) -> Any:
        seen.append(batch[0])
        return model(batch[1][0]), batch[1][1]

    options = {
        "preset": la.default(evaluation="minibatch"),
        "val_loader": list(enumerate(problem.val_loader)),
        "forward": forward,
    }
    run = Run(problem, **options).go(0, 6)
    assert seen == [0, 1, 2, 0, 1, 2, 0, 1]  # three batches, the whole loader, two more
    state = copied(run.aligner.state_dict())
    assert state["_extra_state"]["drawn"] <= 3  # a long run does not read a long way back
    resumed = Run(problem, seed=3, **options)
    resumed.load({**copied(run.state()), "aligner": state})
    seen.clear()
    resumed.go(6, 7)
    assert seen == [2]


class Upward(la.metrics.BalancedError):
    higher_is_better = True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loss": la.AlignedLoss(3, groups=("weights", "offsets"))},
            r"state: it belongs to a loss with other parameters \(3 offsets\) than this aligner's "
            r"\(3 weights, 3 offsets\); use the same loss and groups",
        ),
        ({"metric": la.metrics.ErrorRate()}, "saved with metric='balanced-error', this aligner has metric='error'"),
        ({"metric": Upward()}, "saved with higher_is_better=False, this aligner has higher_is_better=True"),
        ({"every": 5}, "saved with every=3, this aligner has every=5; make the Aligner with the same one"),
        (
            {"preset": la.default(policy_hidden=(16,))},
            r"saved with policy_hidden=\(32, 32\), this aligner has policy_hidden=\(16,\); make the Aligner with",
        ),
        ({"preset": la.default(horizon=1)}, "saved with horizon=5, this aligner has horizon=1"),
        ({"preset": la.default(sensitivity=False)}, "saved with sensitivity=True, this aligner has sensitivity=False"),
    ],
)
def test_a_state_of_another_aligner_is_refused_and_changes_nothing(
    options: dict[str, Any], message: str, problem: Any, assert_equal: Callable[[Any, Any], None]
) -> None:
    saved = problem.aligner()
    problem.train(saved, 7)
    other = problem.aligner(**options)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(la.InputError, match=message):
        other.load_state_dict(saved.state_dict())
    assert_equal(other.state_dict(), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"version": 1},
            "state: it has version 1, this lossalign reads version 2; resume with the lossalign that saved",
        ),
        ({"drawn": None}, "state: 'drawn' is missing; give all that"),
        ({"options": None}, "state: 'options' is missing; give all that"),
    ],
)
def test_a_state_of_another_version_or_with_a_gap_is_refused(
    changes: dict[str, Any], message: str, problem: Any
) -> None:
    aligner = problem.aligner()
    state = aligner.state_dict()
    for name, value in changes.items():
        state["_extra_state"][name] = value
        if value is None:
            del state["_extra_state"][name]
    with pytest.raises(la.InputError, match=message):
        problem.aligner().load_state_dict(state)


def test_a_longer_run_takes_over_the_state_of_a_shorter_one_and_says_so(problem: Any) -> None:
    saved = problem.aligner(total_steps=9)
    model = problem.train(saved, 9)
    longer = problem.aligner(total_steps=18)
    with pytest.warns(UserWarning, match="saved after 9 iterations of total_steps=9, this aligner has total_steps=18"):
        longer.load_state_dict(saved.state_dict())
    problem.train(longer, 9, start=9, model=model)
    assert len(longer.history) == 6
