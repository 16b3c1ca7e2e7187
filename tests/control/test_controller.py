"""The controller moves Φ by β within its range, pays for it, learns from it, and goes on exactly from its state."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.control import LearningController, Policy, Preset, default, paper
from lossalign.control.controller import decision_weights, far_behind
from lossalign.control.policy import PolicyAbout
from lossalign.control.state import StateLayout
from lossalign.core import Controller, InputError, Observation, ParameterGroup, ParameterSpec, generator

Look = Callable[..., Observation]
PRESETS = pytest.mark.parametrize("preset", [paper(), default()], ids=["paper", "default"])
BOTH = ("first", "second")


def controller(spec: ParameterSpec, preset: Preset | None = None, seed: int = 0, **changes: Any) -> LearningController:
    given_ = {"children": 5, "groups": BOTH, "statistics": 2, "generator": generator(seed, "control"), **changes}
    return LearningController(spec, preset=preset or default(), **given_)


def weights_of(policy: Policy) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


def lost_one(*, children: int = 5) -> Tensor:
    """Errors of which the last is far above the others."""
    return torch.cat([0.2 + 0.01 * torch.arange(children - 1), torch.tensor([0.9])])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    errors=st.lists(st.lists(st.floats(0, 1e6, width=32), min_size=5, max_size=5), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
@PRESETS
def test_phi_stays_in_range_and_moves_by_beta(
    spec: ParameterSpec, look: Look, preset: Preset, errors: list[list[float]], seed: int
) -> None:
    one = controller(spec, preset, seed)
    assert torch.equal(one.phi, spec.initial.expand(5, -1))
    for t, error in enumerate(errors):
        start = one.phi
        told = one.move(look(t, torch.tensor(error)))
        spec.check(one.phi)
        start = torch.where(told["reset"].bool()[:, None], spec.initial, start)
        start = start if one.parents is None else start[one.parents]
        reachable = torch.stack([(start + a * spec.beta).clamp(spec.low, spec.high) for a in (-1, 0, 1)])
        assert torch.isclose(one.phi, reachable, atol=1e-6).any(0).all()
        assert all(value.shape == (5,) for value in told.values())


def test_all_three_actions_happen(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec)
    one.move(look(0))
    moves = (one.phi - spec.initial) / spec.beta
    assert set(moves.round().flatten().tolist()) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(("groups", "moved"), [(("first",), [0, 1, 2]), (("second",), [3, 4]), (None, range(5))])
def test_only_the_named_groups_move(
    spec: ParameterSpec, look: Look, groups: tuple[str, ...] | None, moved: list[int]
) -> None:
    one = controller(spec, groups=groups)
    ever = torch.zeros(5, dtype=torch.bool)
    for t in range(6):
        one.move(look(t))
        ever |= (one.phi != spec.initial).any(0)
    assert ever.nonzero().flatten().tolist() == list(moved)


def test_other_groups_are_not_looked_at(spec: ParameterSpec, look: Look) -> None:
    one, other = controller(spec, groups=("second",)), controller(spec, groups=("second",))
    for t in range(8):
        seen = look(t)
        one.move(seen)
        blurred = seen.statistics.clone()
        blurred[:, :3] = 100.0
        other.move(
            Observation(error=seen.error, statistics=blurred, sensitivity=seen.sensitivity, progress=seen.progress)
        )
    assert torch.equal(one.phi, other.phi)


def test_unknown_groups_and_empty_populations_are_refused(spec: ParameterSpec) -> None:
    with pytest.raises(InputError, match=r"groups=\['third'\]: choose from \['first', 'second'\]"):
        controller(spec, groups=("third",))
    with pytest.raises(InputError, match="children=0: train at least 1"):
        controller(spec, children=0)


@PRESETS
def test_the_first_step_has_no_reward(spec: ParameterSpec, look: Look, preset: Preset) -> None:
    one = controller(spec, preset)
    assert one.move(look(0))["reward"].isnan().all()
    assert one.move(look(1))["reward"].isfinite().all()


def test_the_reward_is_that_of_the_preset(spec: ParameterSpec, look: Look) -> None:
    before, after = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.4, 0.5, 0.6])
    signs = controller(spec, paper(), children=3)
    signs.move(look(0, before, children=3))
    assert signs.move(look(1, after, children=3))["reward"].tolist() == [1.0, 0.0, -1.0]
    relative = controller(spec, default(), children=3)
    relative.move(look(0, before, children=3))
    expected = torch.tensor([1.0, 0.0, -1.0]) / (2 / 3) ** 0.5
    torch.testing.assert_close(relative.move(look(1, after, children=3))["reward"], expected, atol=1e-4, rtol=0)


def test_a_finer_error_decides_where_the_metric_stands_still_and_only_there(spec: ParameterSpec, look: Look) -> None:
    def rewards(after: Tensor, preset: Preset) -> Tensor:
        one, still = controller(spec, preset, children=3), torch.ones(3)
        one.move(replace(look(0, still, children=3), tie_breaker=still))
        return one.move(replace(look(1, after, children=3), tie_breaker=torch.tensor([0.5, 0.6, 0.7])))["reward"]

    plain = default(tie_breaker=0.0)
    assert rewards(torch.ones(3), plain).tolist() == [0.0, 0.0, 0.0]
    assert rewards(torch.ones(3), paper()).tolist() == [0.0, 0.0, 0.0], "as printed"
    assert rewards(torch.ones(3), default()).argsort(descending=True).tolist() == [0, 1, 2]
    one_sample_in_fifty = torch.tensor([1.0, 1.0, 0.98])
    assert rewards(one_sample_in_fifty, default()).argsort(descending=True).tolist() == [2, 0, 1]


def test_a_policy_that_is_told_nothing_does_not_forget(spec: ParameterSpec, look: Look) -> None:
    one, still = controller(spec), torch.full((5,), 0.9)
    for t in range(12):
        one.move(look(t, still))
    before = [weight.clone() for weight in one.policy.parameters()]
    for t in range(12, 24):
        one.move(look(t, still))
    assert all(torch.equal(then, now) for then, now in zip(before, one.policy.parameters(), strict=True))
    for t in range(24, 36):
        one.move(look(t))
    assert not all(torch.equal(then, now) for then, now in zip(before, one.policy.parameters(), strict=True))


def test_the_entropy_is_that_of_the_policy(spec: ParameterSpec, look: Look) -> None:
    uniform = controller(spec)
    for parameter in uniform.policy.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(uniform.move(look(0))["entropy"], torch.full((5,), 3.0).log())
    torch.testing.assert_close(controller(spec, default(zero_bias=100.0)).move(look(0))["entropy"], torch.zeros(5))


def test_handed_out_phi_is_never_written_to(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec)
    kept = []
    for t in range(6):
        kept.append((one.phi, one.phi.clone()))
        one.move(look(t, lost_one()))
    assert all(torch.equal(handed, copy) for handed, copy in kept)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12), st.floats(0.1, 10), st.randoms(use_true_random=False))
def test_far_behind(errors: list[float], scale: float, random: Any) -> None:
    metric = torch.tensor(errors, dtype=torch.double)
    behind = far_behind(metric, 5.0)
    assert int(behind.sum()) <= len(errors) // 2
    assert len(errors) >= 4 or not behind.any()
    assert (metric[behind] > 1.25 * metric.quantile(0.5)).all()
    order = list(range(len(errors)))
    random.shuffle(order)
    assert torch.equal(far_behind(metric[order], 5.0), behind[order])


def test_near_others_is_not_far_behind() -> None:
    assert not far_behind(torch.tensor([0.200, 0.200, 0.200, 0.201, 0.240]), 5.0).any()
    assert not far_behind(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.7]), 5.0).any()
    assert far_behind(torch.tensor([0.200, 0.200, 0.200, 0.201, 0.260]), 5.0).tolist() == [False] * 4 + [True]
    assert far_behind(lost_one(children=4), 5.0).tolist() == [False] * 3 + [True]
    assert not far_behind(lost_one(children=3), 5.0).any(), "three cannot tell who is lost"


def standing_still(spec: ParameterSpec, look: Look, reset: float | None) -> LearningController:
    """Φ away from its start, and a policy that leaves it there."""
    one = controller(spec, default(zero_bias=100.0, reset=reset), learn=False)
    one.move(look(0))
    one.load_state_dict({**one.state_dict(), "phi": spec.high.expand(5, -1).clone()})
    return one


def test_a_child_far_behind_gets_its_start_back_and_the_log_says_so(spec: ParameterSpec, look: Look) -> None:
    one = standing_still(spec, look, reset=5.0)
    assert one.move(look(1, lost_one()))["reset"].tolist() == [0, 0, 0, 0, 1]
    assert torch.equal(one.phi[4], spec.initial)
    assert torch.equal(one.phi[:4], spec.high.expand(4, -1))
    assert not one.move(look(2, lost_one()))["reset"].any(), "it has its start already"


def test_no_child_is_reset_when_the_option_is_off(spec: ParameterSpec, look: Look) -> None:
    one = standing_still(spec, look, reset=None)
    assert not one.move(look(1, lost_one()))["reset"].any()
    assert torch.equal(one.phi, spec.high.expand(5, -1))


def test_a_reset_child_is_not_learned_from(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec)
    one.move(look(0, 0.5 * torch.ones(5)))
    assert one.move(look(1, lost_one()))["reset"][4]
    for t in range(2, 7):
        one.move(look(t, 0.5 * torch.ones(5)))
    oldest, next_ = one.state_dict()["replay"]["matured"]
    assert oldest["valid"].tolist() == [[True] * 4 + [False]]
    assert next_["valid"].all()


@pytest.mark.parametrize(
    "layout",
    [StateLayout(statistics=1), StateLayout(statistics=2, history=3), StateLayout(statistics=2, sensitivity=False)],
)
def test_a_policy_that_saw_other_states_is_refused(spec: ParameterSpec, layout: StateLayout) -> None:
    message = r"policy: it was learned on states with statistics=.*this run has states with statistics=2.*use a loss"
    with pytest.raises(InputError, match=message):
        controller(spec, policy=Policy(layout, generator=generator(0)))


def test_a_policy_moves_to_another_number_of_parameters_and_children(spec: ParameterSpec, look: Look) -> None:
    first = controller(spec)
    group = ParameterGroup(name="first", labels=tuple("abcdefg"), initial=0.0, low=-1.0, high=1.0, beta=0.1)
    other = controller(ParameterSpec((group,)), policy=first.policy, children=2, groups=("first",))
    assert other.policy is first.policy
    other.move(look(0, children=2, parameters=7))
    assert other.phi.shape == (2, 7)


def test_a_fresh_policy_says_what_it_was_learned_on(spec: ParameterSpec) -> None:
    about = controller(spec, paper(), groups=("second",), loss_name="Own").policy.about
    assert about == PolicyAbout(groups=("second",), loss="Own", preset=asdict(paper()))


@pytest.mark.parametrize(
    ("groups", "loss_name", "message"),
    [
        (("first",), "Own", None),
        (("first",), "", None),
        (BOTH, "Own", r"learned on Own \(first\), this run has Own \(first, second\); use a policy of the same loss"),
        (("second",), "", r"learned on Own \(first\), this run has a loss with the groups second"),
        (("first",), "Other", r"learned on Own \(first\), this run has Other \(first\)"),
    ],
)
def test_a_policy_of_another_loss_is_refused_although_its_states_fit(
    spec: ParameterSpec, groups: tuple[str, ...], loss_name: str, message: str | None
) -> None:
    policy = controller(spec, groups=("first",), loss_name="Own").policy
    if message is None:
        assert controller(spec, groups=groups, loss_name=loss_name, policy=policy).policy is policy
    else:
        with pytest.raises(InputError, match=message):
            controller(spec, groups=groups, loss_name=loss_name, policy=policy)


def test_a_policy_that_says_nothing_is_accepted(spec: ParameterSpec) -> None:
    policy = controller(spec, groups=("first",), loss_name="Own").policy
    policy.about = None
    assert controller(spec, loss_name="Other", policy=policy).policy.about is None


@pytest.mark.filterwarnings("ignore:for layers")
def test_it_moves_to_another_device_with_all_it_remembers(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec, groups=("second",))
    run(one, look, 0, 8)
    moved = one.to("meta").state_dict()
    kept = moved["replay"]["pending"] + moved["replay"]["matured"]
    large = [moved["phi"], *moved["memory"].values(), *(t["states"] for t in kept), *one.policy.parameters()]
    assert {tensor.device.type for tensor in large} == {"meta"}


def test_moving_to_where_it_is_changes_nothing(spec: ParameterSpec, look: Look) -> None:
    one, moved = controller(spec), controller(spec)
    for either in (one, moved):
        run(either, look, 0, 8)
    moved.to("cpu")
    for got, want in zip(run(moved, look, 8, 16), run(one, look, 8, 16), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("learn", [False, True])
@PRESETS
def test_the_policy_changes_only_if_it_learns(spec: ParameterSpec, look: Look, preset: Preset, learn: bool) -> None:
    one = controller(spec, preset, learn=learn)
    before = weights_of(one.policy)
    for t in range(10):
        one.move(look(t))
    assert torch.equal(weights_of(one.policy), before) != learn


def test_learning_waits_for_the_first_return(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec, default(horizon=3))
    changed = []
    for t in range(5):
        before = weights_of(one.policy)
        one.move(look(t))
        changed.append(not torch.equal(weights_of(one.policy), before))
    assert changed == [False, False, False, True, True]


def written_and_read(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    read: dict[str, Any] = torch.load(buffer, weights_only=True)
    return read


def run(one: Controller, look: Look, start: int, stop: int) -> list[Tensor]:
    """Everything that can be seen of some steps."""
    seen: list[Tensor] = []
    for t in range(start, stop):
        told = one.move(look(t, lost_one() if t == 9 else None))
        seen += [one.phi, *(told[name] for name in sorted(told))]
    return seen


@pytest.mark.parametrize("at", [0, 1, 3, 8])
@pytest.mark.parametrize("through_a_file", [False, True])
@PRESETS
def test_resumes_bit_for_bit(spec: ParameterSpec, look: Look, preset: Preset, at: int, through_a_file: bool) -> None:
    one, again = controller(spec, preset), controller(spec, preset, seed=1)
    run(one, look, 0, at)
    state = written_and_read(one.state_dict()) if through_a_file else one.state_dict()
    expected = run(one, look, at, at + 8)
    again.load_state_dict(state)
    for got, want in zip(run(again, look, at, at + 8), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(weights_of(again.policy), weights_of(one.policy))


def test_two_controllers_from_one_state_do_not_disturb_each_other(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec)
    run(one, look, 0, 8)
    state = one.state_dict()
    twins = [controller(spec, seed=1), controller(spec, seed=2)]
    for twin in twins:
        twin.load_state_dict(state)
    for t in range(8, 12):
        first, second = (run(twin, look, t, t + 1) for twin in twins)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_state_of_another_population_is_refused(spec: ParameterSpec) -> None:
    with pytest.raises(InputError, match=r"state: it holds Φ of shape \(3, 5\), this controller has \(5, 5\); use"):
        controller(spec).load_state_dict(controller(spec, children=3).state_dict())


def test_the_global_stream_is_left_alone(spec: ParameterSpec, look: Look) -> None:
    before = torch.get_rng_state()
    run(controller(spec), look, 0, 8)
    assert torch.equal(torch.get_rng_state(), before)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_groups_weigh_the_same_in_a_decision(groups: list[int]) -> None:
    group_of = torch.tensor(groups)
    weights = decision_weights(group_of)
    for name in set(groups):
        part = weights[group_of == name]
        assert float(part.sum()) == pytest.approx(1 / len(set(groups)), abs=1e-6)
        assert (part == part[0]).all()


def many(size: int) -> ParameterSpec:
    labels = tuple(map(str, range(size)))
    return ParameterSpec((ParameterGroup(name="many", labels=labels, initial=0.0, low=-1.0, high=1.0, beta=0.1),))


@pytest.mark.parametrize(("size", "kept"), [(4096, 4096), (5000, 4096)])
def test_replay_keeps_at_most_4096_parameters(look: Look, size: int, kept: int) -> None:
    one = controller(many(size), default(horizon=1), children=2, groups=("many",))
    for t in range(3):
        one.move(look(t, children=2, parameters=size))
    assert ((one.phi != 0).sum(1) > size / 2).all(), "all of Φ moves"
    for transition in one.state_dict()["replay"]["matured"]:
        assert transition["states"].shape[:3] == transition["actions"].shape == (1, 2, kept)
        assert transition["weights"][0].tolist() == pytest.approx([1 / kept] * kept)
        assert len(transition["states"][0, 0].unique(dim=0)) == kept, "each at most once"


def test_what_replay_keeps_of_a_decision_belongs_together(look: Look) -> None:
    one = controller(many(40), default(replay_parameters=8), children=2, groups=("many",))
    one.move(look(0, children=2, parameters=40))
    [kept] = one.state_dict()["replay"]["pending"]
    log_pi = torch.log_softmax(one.policy(kept["states"]), -1)
    torch.testing.assert_close(log_pi.gather(-1, kept["actions"][..., None]).squeeze(-1), kept["log_probs"])
    assert kept["actions"].shape == (1, 2, 8)


def test_many_parameters_are_moved_like_few(look: Look) -> None:
    size = 70_000
    one, again = (controller(many(size), default(horizon=1), children=1, groups=None) for _ in range(2))
    for t in range(3):
        one.move(look(t, children=1, parameters=size))
    again.load_state_dict(written_and_read(one.state_dict()))
    for either in (one, again):
        either.move(look(3, children=1, parameters=size))
    assert torch.equal(one.phi, again.phi)
    assert ((one.phi / 0.1).round().abs() <= 4).all()
    for transition in one.state_dict()["replay"]["matured"]:
        assert transition["actions"].shape == (1, 1, 4096)
        assert len(transition["states"][0, 0].unique(dim=0)) == 4096, "each at most once"


def test_statistics_that_are_not_finite_are_named(spec: ParameterSpec, look: Look) -> None:
    seen = look(0)
    seen.statistics[2, 1, 0] = torch.nan
    with pytest.raises(InputError, match=r"probabilities are not finite: look for NaN or inf in the loss's statistics"):
        controller(spec).move(seen)


@pytest.mark.filterwarnings("ignore:for layers")
def test_a_state_is_loaded_onto_the_device(spec: ParameterSpec, look: Look) -> None:
    here, there = controller(spec), controller(spec, device="meta")
    run(here, look, 0, 8)
    there.load_state_dict(written_and_read(here.state_dict()))
    state = there.state_dict()
    kept = state["replay"]["pending"] + state["replay"]["matured"]
    large = [state["phi"], *state["memory"].values(), *(t[name] for t in kept for name in ("states", "actions"))]
    assert {tensor.device.type for tensor in large} == {"meta"}
    assert {t[name].device.type for t in kept for name in ("returns", "valid")} == {"cpu"}


def test_cooling_shrinks_the_step_with_what_is_left_of_the_run(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec, default(cooling=1.0, reset=None))
    before = one.phi
    seen = look(0)
    one.move(Observation(**{**vars(seen), "progress": 0.75}))
    moves = ((one.phi - before) / spec.beta).abs()
    assert set(moves.flatten().round(decimals=4).tolist()) == {0.0, 0.25}


def test_antithetic_neighbours_move_oppositely_under_an_even_policy(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec, default(antithetic=True), children=4)
    for parameter in one.policy.parameters():
        parameter.data.zero_()
    one.move(look(0, children=4))
    moves = one.phi - spec.initial
    assert (moves[1::2] * moves[::2] < 0).any()
    assert (moves[1::2] * moves[::2] <= 0).all()


def test_the_worst_inherit_phi_and_weights_of_the_best_and_are_paid_from_there(spec: ParameterSpec, look: Look) -> None:
    one = controller(spec, default(inherit_every=2, reset=None), children=4)
    one.move(look(0, torch.tensor([0.4, 0.3, 0.2, 0.1]), children=4))
    assert one.parents is None
    before = one.phi
    one.move(look(1, torch.tensor([0.9, 0.3, 0.2, 0.1]), children=4))
    assert one.parents is not None
    assert one.parents.tolist() == [3, 1, 2, 3]
    reach = (one.phi - before[one.parents]).abs()
    assert (reach <= spec.beta + 1e-6).all()
    reward = one.move(look(2, torch.tensor([0.1, 0.3, 0.2, 0.1]), children=4))["reward"]
    torch.testing.assert_close(reward, torch.zeros(4))
