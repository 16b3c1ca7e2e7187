"""Whoever moves Φ in a loop of one's own: policies, rivals, and controllers of the user's."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lossalign as la
from lossalign import rivals
from lossalign.core import Controller, Observation, ParameterSpec


class Climber:
    """Raises every parameter by β; remembers how often."""

    def __init__(self, spec: ParameterSpec, children: int, generator: torch.Generator) -> None:
        self.spec, self.children, self.moves = spec, children, 0
        self.noise = torch.rand((), generator=generator)
        self.parents: Tensor | None = None

    @property
    def phi(self) -> Tensor:
        raised = (self.spec.initial + self.moves * self.spec.beta).clamp(self.spec.low, self.spec.high)
        return raised.expand(self.children, -1)

    def move(self, observation: Observation) -> dict[str, Tensor]:
        self.moves += 1
        return {"reward": -observation.error} if self.moves > 1 else {}

    def state_dict(self) -> dict[str, Any]:
        return {"moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moves = state["moves"]


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("own_controllers")
    module.Climber = Climber  # type: ignore[attr-defined]
    module.nothing = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_controllers", module)
    return module


def test_a_controller_of_ones_own_moves_phi(problem: Any, own_module: Any) -> None:
    for given in (Climber, "own_controllers:Climber"):
        aligner = problem.aligner(controller=given, every=3)
        problem.train(aligner, 12)
        beta = float(aligner.loss.spec.beta[0])
        assert aligner.history.phi[:, 0].tolist() == pytest.approx([0, beta, 2 * beta, 3 * beta])
        assert aligner.phi.tolist() == pytest.approx([4 * beta] * 3)
        assert aligner.history.reward.isnan().tolist() == [True, False, False, False]


def test_a_policy_by_name(problem: Any, own_module: Any) -> None:
    own_module.policy = la.Policy.pretrained()
    aligner = problem.aligner(controller="own_controllers:policy")
    assert aligner.policy is own_module.policy


def test_a_rival_never_moves_phi_if_that_is_its_way(problem: Any) -> None:
    def fixed(spec: ParameterSpec, children: int, generator: torch.Generator) -> Controller:
        return rivals.fixed(spec, children)

    aligner = problem.aligner(controller=fixed)
    problem.train(aligner, 12)
    assert not aligner.history.phi.any()
    with pytest.raises(la.InputError, match=r"aligner\.policy: the controller is a \w+, which has no policy"):
        _ = aligner.policy


def test_rules_work_in_ones_own_loop(problem: Any) -> None:
    aligner = problem.aligner(controller=lambda spec, children, g: rivals.proportional_rule(spec, children=children))
    problem.train(aligner, 12)
    assert aligner.history.phi.any()
    aligner.loss.spec.check(aligner.phi)


def test_a_controller_of_ones_own_resumes(problem: Any, copied: Callable[[Any], Any]) -> None:
    aligner = problem.aligner(controller=Climber)
    model = problem.train(aligner, 7)
    again = problem.aligner(controller=Climber)
    again.load_state_dict(copied(aligner.state_dict()))
    for each in (aligner, again):
        problem.train(each, 6, start=7, model=model)
    assert torch.equal(again.phi, aligner.phi)
    assert torch.equal(again.history.phi, aligner.history.phi)


class Wide(Climber):
    @property
    def phi(self) -> Tensor:
        return torch.zeros(self.children, 7)


class Far(Climber):
    @property
    def phi(self) -> Tensor:
        return torch.full((self.children, 3), 1e3)


class Old:
    """Follows the protocol of version 0.1."""

    parents = None

    def __init__(self, spec: ParameterSpec, children: int, generator: torch.Generator) -> None:
        self.phi = spec.initial.repeat(children, 1)

    def step(self, observation: Observation) -> dict[str, Tensor]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Unsaved(Old):
    parents = load_state_dict = property()  # type: ignore[assignment]

    def move(self, observation: Observation) -> dict[str, Tensor]:
        return {}


def failing(spec: ParameterSpec, children: int, generator: torch.Generator) -> Controller:
    raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"controller": 3},
            "controller: it is of type int; give 'auto', 'confusion-rule', 'metric-gradient', 'pretrained', 'fresh', a "
            "lossalign.Policy",
        ),
        ({"controller": "own_controllers:nothing"}, "controller: it is of type int; give 'auto'"),
        ({"controller": "own_controllers:missing"}, "module 'own_controllers' has no 'missing'"),
        (
            {"controller": "automatic"},
            "controller='automatic': give 'auto', 'confusion-rule', ",
        ),
        ({"controller": failing}, r"calling it with \(spec, children, generator\) failed: ZeroDivisionError: no"),
        ({"controller": Wide}, r"its phi has shape \(1, 7\); give \[children, parameters\] = \(1, 3\)"),
        ({"controller": Old}, "controller: a Old has no move; step is now called move; give it all of a lossalign"),
        ({"controller": Unsaved}, "controller: a Unsaved has no parents, load_state_dict; give it all of a lossalign"),
        ({"controller": Far}, "phi: parameter '0' is 1000, outside its range"),
        ({"controller": Climber, "learn": True}, "learn=True: a controller of your own decides that itself"),
        ({"policy": "fresh"}, "policy is now called controller"),
        ({"device": "cuda"}, r"device was removed: the aligner follows aligner\.to\(device\)"),
    ],
)
def test_what_cannot_move_phi_is_refused(options: dict[str, Any], message: str, problem: Any, own_module: Any) -> None:
    with pytest.raises(la.InputError, match=message):
        problem.aligner(**options)


def test_an_argument_that_never_was_is_a_type_error(problem: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'metrics'"):
        problem.aligner(metrics=3)


def test_a_fresh_policy_says_where_it_was_learned(problem: Any, tmp_path: Any) -> None:
    aligner = problem.aligner(seed=5)
    about = la.Policy.load(aligner.policy.save(tmp_path / "p.safetensors")).about
    assert about is not None
    assert (about.loss, about.groups) == ("AlignedLoss", ("offsets",))
    assert about.preset["horizon"] == la.default().horizon
    assert about.provenance == {"metric": "balanced-error", "every": 3, "total_steps": 60, "seed": 5}


def test_a_policy_of_another_loss_is_refused_although_its_states_fit(problem: Any, tmp_path: Any) -> None:
    preset = la.paper()
    learned = problem.aligner(loss=la.ClassCorrelationLoss(3), preset=preset).policy
    policy = la.Policy.load(learned.save(tmp_path / "p.safetensors"))
    assert problem.aligner(loss=la.ClassCorrelationLoss(3), preset=preset, controller=policy).policy is policy
    assert policy.layout == preset.layout(la.DistanceMixtureLoss().num_statistics)
    message = r"policy: it was learned on ClassCorrelationLoss \(diagonal, pairs\), this run has DistanceMixtureLoss \("
    with pytest.raises(la.InputError, match=message):
        problem.aligner(
            loss=la.DistanceMixtureLoss(), metric=la.metrics.RecallAtK((1,)), preset=preset, controller=policy
        )
    with pytest.raises(
        la.InputError, match=r"learned on AlignedLoss \(offsets\), this run has AlignedLoss \(weights\)"
    ):
        problem.aligner(loss=la.AlignedLoss(3, groups=("weights",)), controller=problem.aligner().policy)


def test_a_subclass_with_the_same_statistics_uses_the_same_policy(problem: Any) -> None:
    class Mine(la.AlignedLoss):
        pass

    mine = problem.aligner(loss=Mine(3), controller="pretrained").policy.state_dict()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in la.Policy.pretrained().state_dict().items())


@pytest.mark.parametrize("make", [rivals.confusion_rule, rivals.metric_gradient])
def test_rules_that_follow_the_metric_get_what_they_read(problem: Any, make: Callable[..., Controller]) -> None:
    aligner = problem.aligner(controller=lambda spec, n, _: make(spec, n), preset=la.default(sensitivity=False))
    problem.train(aligner, 30)
    assert aligner.history.phi[-1].any()


def test_one_model_may_follow_a_rule_without_chance(problem: Any) -> None:
    """The expected moves of an untrained policy on a rule: no exploration, so that the seed matters little."""
    preset = la.default(prior="metric-gradient", expected_moves=True)
    aligner = problem.aligner(controller="fresh", learn=False, preset=preset)
    problem.train(aligner, 30)
    assert aligner.history.phi[-1].any()
    with pytest.raises(la.InputError, match="expected_moves"):
        problem.aligner(controller="fresh", preset=preset)
