"""Eq. 4 and 5, and rewards that tell which action was good."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.control import discounted_metric, evaluation_points, sign_reward
from lossalign.control.reward import Evaluation, RelativeReward, Reward, SignReward, against_others, make_reward
from lossalign.core import InputError

MODES = get_args(Evaluation)
ERRORS = st.floats(0, 1, width=32)


def metrics(steps: int, children: int, seed: int = 0) -> Tensor:
    """Errors that fall on average [steps, children]."""
    g = torch.Generator().manual_seed(seed)
    drift = torch.linspace(0.9, 0.3, steps, dtype=torch.double)[:, None]
    return drift + 0.05 * torch.randn(steps, children, generator=g, dtype=torch.double)


def rewards(reward: Reward, along: Tensor) -> Tensor:
    return torch.stack([reward(before, after) for before, after in pairwise(along)])


@given(st.sampled_from(MODES), st.integers(1, 500), st.integers(1, 60))
def test_points_lie_in_the_step_and_end_with_it(mode: Evaluation, every: int, evaluations: int) -> None:
    points = evaluation_points(mode, every, evaluations)
    assert points[-1] == every
    assert points[0] >= 1
    assert points == sorted(set(points))
    assert len(points) <= (evaluations if mode == "window" else every)


def test_a_window_is_a_twentieth_of_the_step_apart() -> None:
    assert evaluation_points("window", every=100, evaluations=3) == [90, 95, 100]
    assert evaluation_points("window", every=10, evaluations=3) == [8, 9, 10]
    assert evaluation_points("window", every=2, evaluations=3) == [1, 2]


def test_printed_modes_measure_every_iteration() -> None:
    for mode in ("literal", "minibatch"):
        assert evaluation_points(mode, every=200, evaluations=3) == list(range(1, 201))


def test_a_step_that_is_never_measured_is_refused() -> None:
    for every, evaluations in [(0, 3), (10, 0), (10, -1)]:
        with pytest.raises(InputError, match=f"every={every}, evaluations={evaluations}: .* at least once"):
            evaluation_points("window", every, evaluations)
    with pytest.raises(InputError, match="evaluation='windows': choose from"):
        evaluation_points("windows", 10, 3)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(1, 60), ERRORS), min_size=1, max_size=12, unique_by=lambda pair: pair[0]),
    st.floats(0.05, 1.0),
)
def test_equation_4_equals_a_plain_loop(measured: list[tuple[int, float]], gamma: float) -> None:
    measured = sorted(measured)
    top = bottom = 0.0
    for point, value in measured:
        top += gamma ** (measured[-1][0] - point) * value
        bottom += gamma ** (measured[-1][0] - point)
    values = torch.tensor([value for _, value in measured], dtype=torch.double)
    result = discounted_metric(values, gamma, [point for point, _ in measured])
    assert float(result) == pytest.approx(top / bottom, abs=1e-9)


@given(ERRORS, st.integers(1, 50), st.floats(0.05, 1.0))
def test_equation_4_keeps_the_scale(value: float, evaluations: int, gamma: float) -> None:
    constant = torch.full((evaluations, 3), value, dtype=torch.double)
    torch.testing.assert_close(discounted_metric(constant, gamma), constant[0])


def test_equation_4_without_points_is_consecutive_and_batched() -> None:
    values = metrics(5, 4)
    batched = discounted_metric(values, 0.9)
    torch.testing.assert_close(batched, discounted_metric(values, 0.9, [6, 7, 8, 9, 10]))
    for child in range(4):
        torch.testing.assert_close(batched[child], discounted_metric(values[:, child], 0.9))


@given(st.lists(st.tuples(ERRORS, ERRORS), min_size=1))
def test_equation_5(pairs: list[tuple[float, float]]) -> None:
    before, after = torch.tensor(pairs).unbind(1)
    assert sign_reward(before, after).tolist() == [(b > a) - (b < a) for b, a in pairs]


@given(st.lists(ERRORS, min_size=2, max_size=12), ERRORS, st.randoms(use_true_random=False))
def test_against_others(improvements: list[float], drop: float, random: object) -> None:
    given_ = torch.tensor(improvements, dtype=torch.double)
    gain = against_others(given_)
    for child, own in enumerate(improvements):
        others = improvements[:child] + improvements[child + 1 :]
        assert float(gain[child]) == pytest.approx(own - sum(others) / len(others), abs=1e-9)
    assert float(gain.sum()) == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(against_others(given_ + drop), gain)
    order = list(range(len(improvements)))
    random.shuffle(order)  # type: ignore[attr-defined]
    torch.testing.assert_close(against_others(given_[order]), gain[order])


def test_sign_reward_subtracts_the_moving_average_of_past_rewards() -> None:
    along, decay = metrics(12, 3), 0.8
    baseline = 0.0
    for step, centred in enumerate(rewards(SignReward(decay), along)):
        signs = [float(b > a) - float(b < a) for b, a in zip(along[step], along[step + 1], strict=True)]
        torch.testing.assert_close(centred, torch.tensor(signs, dtype=torch.double) - baseline, atol=1e-6, rtol=0)
        baseline = decay * baseline + (1 - decay) * sum(signs) / 3


def plain_relative(along: Tensor, decay: float) -> list[list[float]]:
    """Gains over the root of their weighted mean square, recent steps weighing more."""
    improved = (along[:-1] - along[1:]).tolist()
    gains: list[list[float]] = []
    result = []
    for step, row in enumerate(improved):
        if len(row) == 1:
            past = [(decay ** (step - 1 - s), improved[s][0]) for s in range(step)]
            forecast = sum(w * value for w, value in past) / sum(w for w, _ in past) if past else 0.0
            gains.append([row[0] - forecast])
        else:
            gains.append([own - (sum(row) - own) / (len(row) - 1) for own in row])
        squares = [(decay ** (step - s), sum(g * g for g in gains[s]) / len(row)) for s in range(step + 1)]
        deviation = (sum(w * square for w, square in squares) / sum(w for w, _ in squares)) ** 0.5
        result.append([max(-5.0, min(5.0, gain / deviation)) for gain in gains[-1]])
    return result


@pytest.mark.parametrize("children", [1, 2, 7])
def test_relative_reward_equals_a_plain_loop(children: int) -> None:
    along = metrics(15, children)
    expected = torch.tensor(plain_relative(along, 0.9), dtype=torch.double)
    torch.testing.assert_close(rewards(RelativeReward(0.9), along), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("children", [1, 5])
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_relative_reward_does_not_see_the_scale_of_the_metric(children: int, scale: float, seed: int) -> None:
    along = metrics(8, children, seed)
    torch.testing.assert_close(rewards(RelativeReward(), scale * along), rewards(RelativeReward(), along))


def test_a_drop_of_the_learning_rate_rewards_nobody() -> None:
    along, dropped = metrics(8, 5), metrics(8, 5)
    dropped[4:] -= 0.2
    torch.testing.assert_close(rewards(RelativeReward(), dropped), rewards(RelativeReward(), along))


@given(st.integers(2, 12), ERRORS, ERRORS)
def test_equal_improvements_are_not_told_apart_by_rounding(children: int, before: float, after: float) -> None:
    paid = RelativeReward()(torch.full((children,), before), torch.full((children,), after))
    assert paid.abs().max() < 0.2


def test_one_child_is_rewarded_for_beating_its_forecast() -> None:
    steady = torch.cat([torch.linspace(1.0, 0.5, 11), torch.tensor([0.40, 0.39])])[:, None]
    along = rewards(RelativeReward(), steady)
    assert along[1:10].abs().max() < 0.01
    assert along[10] > 1
    assert along[11] < 0


def test_a_lost_child_is_paid_within_bounds() -> None:
    along = metrics(40, 4)
    along[30:, 0] += 100
    assert rewards(RelativeReward(), along).abs().max() <= 5


@pytest.mark.parametrize("name", ["sign", "relative"])
@pytest.mark.parametrize("children", [1, 4])
def test_a_reward_resumes_exactly_from_its_state(name: str, children: int) -> None:
    first, second = make_reward(name), make_reward(name)
    along = metrics(12, children).float()
    rewards(first, along[:6])
    state = first.state_dict()
    expected = rewards(first, along[5:])
    second.load_state_dict(state)
    assert torch.equal(rewards(second, along[5:]), expected)


def test_unknown_rewards_are_refused() -> None:
    with pytest.raises(InputError, match=r"reward='best': choose from \('sign', 'relative', 'rank', 'level'\)"):
        make_reward("best")


def test_a_rank_does_not_say_how_much_better() -> None:
    before, after = torch.full((4,), 0.5), torch.tensor([0.1, 0.39, 0.4, 0.6])
    reward = make_reward("rank")(before, after)
    assert reward.argsort(descending=True).tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(reward.diff(), reward.diff()[:1].expand(3))


def test_a_level_pays_who_stands_better_however_it_got_there() -> None:
    reward = make_reward("level")(torch.tensor([0.1, 0.9]), torch.tensor([0.3, 0.4]))
    assert reward[0] > 0 > reward[1]
