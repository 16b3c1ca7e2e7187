"""An aligner is a module: Φ is its buffer, its state travels in any checkpoint, and nothing of it can be trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lossalign as la
from lossalign.core import Observation, ParameterSpec

Same = Callable[[Any, Any], None]


class Wrapped(nn.Module):
    """A user's module that holds its network and its aligner, as a LightningModule does."""

    def __init__(self, problem: Any, **options: Any) -> None:
        super().__init__()
        self.net = problem.network()
        self.aligner = problem.aligner(every=4, total_steps=24, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def train_on(self, problem: Any, start: int, stop: int, whole: bool = False) -> Wrapped:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for x, y in problem.batches(start, stop):
            optimizer.zero_grad()
            self.aligner(self(x), y).backward()
            optimizer.step()
            self.aligner.step(self if whole else self.net)
        return self


class ScaledLoss(nn.Module, la.AdaptiveLoss):
    """A loss that is a module with a weight and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.spec, self.num_statistics = la.AlignedLoss(3).spec, 1
        self.inner = la.AlignedLoss(3)
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        return self.weight * self.inner(outputs, targets, phi)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.inner.statistics(outputs, targets)

    def check_targets(self, targets: Tensor, name: str) -> None:
        self.inner.check_targets(targets, name)


class NetworkController(nn.Module):
    """A controller of a user's own that is a module with weights."""

    def __init__(self, spec: ParameterSpec, children: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.phi, self.parents = spec.initial.expand(children, -1), None

    def move(self, observation: Observation) -> dict[str, Tensor]:
        return {}


@pytest.mark.parametrize("controller", ["auto", "fresh", NetworkController])
def test_no_optimizer_finds_anything_to_train_in_it(controller: Any, problem: Any) -> None:
    aligner = problem.aligner(controller=controller)
    assert isinstance(aligner, nn.Module)
    assert list(aligner.parameters()) == list(aligner.children()) == []
    assert [name for name, _ in aligner.named_buffers()] == ["phi"]
    wrapped = Wrapped(problem, controller=controller)
    assert {id(p) for p in wrapped.parameters()} == {id(p) for p in wrapped.net.parameters()}


def test_a_loss_that_is_a_module_is_a_part_of_it(problem: Any) -> None:
    aligner, usual = problem.aligner(loss=ScaledLoss()), problem.aligner()
    assert aligner.loss is next(aligner.children())
    assert [name for name, _ in aligner.named_parameters()] == ["loss.weight"]
    assert {"phi", "_extra_state", "loss.weight", "loss.seen"} == aligner.state_dict().keys()
    for either in (aligner, usual):
        torch.manual_seed(0)
        problem.train(either, 12)
    assert torch.equal(aligner.history.phi, usual.history.phi)
    assert aligner.to("meta").loss.weight.is_meta


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("after", [2, 9])
def test_a_module_that_holds_it_resumes_from_its_own_checkpoint(
    whole: bool, after: int, problem: Any, copied: Callable[[Any], Any], assert_equal: Same
) -> None:
    torch.manual_seed(0)
    first = Wrapped(problem).train_on(problem, 0, after, whole)
    saved, random = copied(copy.deepcopy(first.state_dict())), torch.get_rng_state()
    assert {"aligner.phi", "aligner._extra_state", "net.0.weight"} <= saved.keys()
    expected = first.train_on(problem, after, 24, whole).state_dict()

    again = Wrapped(problem, seed=7)
    again.load_state_dict(saved, strict=True)
    torch.set_rng_state(random)
    again.train_on(problem, after, 24, whole)
    assert_equal(again.state_dict(), expected)
    assert_equal(again.aligner.best_state_dict(), first.aligner.best_state_dict())


def test_a_checkpoint_without_it_is_incomplete(problem: Any) -> None:
    wrapped = Wrapped(problem)
    with pytest.raises(RuntimeError, match=r"Missing key.*aligner\.phi.*aligner\._extra_state"):
        wrapped.load_state_dict({f"net.{name}": t for name, t in wrapped.net.state_dict().items()})


def test_a_model_that_holds_it_is_measured_and_kept_like_its_network_alone(problem: Any, assert_equal: Same) -> None:
    runs = []
    for whole in (False, True):
        torch.manual_seed(0)
        runs.append(Wrapped(problem).train_on(problem, 0, 24, whole))
    plain, whole = runs
    assert torch.equal(plain.aligner.history.phi, whole.aligner.history.phi)
    best = {name: t for name, t in whole.aligner.best_state_dict().items() if name.startswith("net.")}
    assert_equal({name.removeprefix("net."): t for name, t in best.items()}, plain.aligner.best_state_dict())
    before = copy.deepcopy(whole.aligner.state_dict())
    whole.load_state_dict(whole.aligner.best_state_dict(), strict=True)
    assert_equal(whole.aligner.state_dict(), before)
    assert_equal(whole.net.state_dict(), plain.aligner.best_state_dict())


def test_a_saved_state_is_not_changed_by_later_steps(
    problem: Any, copied: Callable[[Any], Any], assert_equal: Same
) -> None:
    aligner = problem.aligner()
    model = problem.train(aligner, 8)
    saved = aligner.state_dict()
    kept = copied(saved)
    problem.train(aligner, 8, model=model)
    assert_equal(saved, kept)


def test_phi_follows_the_module_and_stays_float32(problem: Any) -> None:
    aligner = problem.aligner()
    problem.train(aligner, 12)
    phi = aligner.phi.clone()
    holder = nn.ModuleList([aligner]).to(torch.bfloat16)
    assert aligner.phi.dtype is torch.float32
    assert torch.equal(aligner.phi, phi)
    holder.to("meta")
    assert aligner.phi.is_meta
    assert aligner.loss.classes.is_meta
    assert aligner._driver.phi.device.type == "cpu", "a policy of few parameters stays there"


@pytest.mark.filterwarnings("ignore:for layers")
@pytest.mark.parametrize(("classes", "device"), [(27, "cpu"), (30, "meta")])  # 351 and 435 pairs
def test_a_policy_of_many_parameters_computes_where_phi_is(classes: int, device: str, problem: Any) -> None:
    aligner = problem.aligner(loss=la.AlignedLoss(classes, groups=("pairs",)))
    aligner.to("meta")
    assert next(aligner.policy.parameters()).device.type == device


def test_a_backward_pass_that_is_still_to_come_keeps_its_phi(problem: Any) -> None:
    aligner, logits = problem.aligner(every=1), torch.randn(9, 3, requires_grad=True)
    expected = torch.autograd.grad(aligner(logits, problem.targets[:9]), logits)
    loss = aligner(logits, problem.targets[:9])
    aligner.step(problem.network())
    assert aligner.phi.any()
    assert torch.equal(torch.autograd.grad(loss, logits)[0], expected[0])


def test_train_and_eval_change_nothing(problem: Any) -> None:
    runs = []
    for mode in (True, False):
        torch.manual_seed(0)
        aligner = problem.aligner().train(mode)
        problem.train(aligner, 12)
        assert aligner.training is mode
        runs.append(aligner.history.phi)
    assert torch.equal(*runs)


def test_it_says_what_it_is_and_how_far(problem: Any) -> None:
    aligner = problem.aligner()
    assert repr(aligner) == (
        "Aligner(loss=AlignedLoss, metric=balanced-error, every=3, total_steps=60, step=0, iteration=0, best=none yet)"
    )
    problem.train(aligner, 6)
    assert f"step=2, iteration=6, best={aligner.best_metric:.4g}" in repr(aligner)


@pytest.mark.parametrize("evaluation", ["window", "minibatch"])
def test_a_copy_does_what_the_original_does(evaluation: str, problem: Any, assert_equal: Same) -> None:
    preset = la.default(evaluation=evaluation)
    aligner = problem.aligner(preset=preset)
    model = problem.train(aligner, 7)
    twin, other = copy.deepcopy(aligner), copy.deepcopy(model)
    for each, its_model in ((aligner, model), (twin, other)):
        torch.manual_seed(1)
        problem.train(each, 9, start=7, model=its_model)
    assert_equal(twin.state_dict(), aligner.state_dict())


def test_a_state_loaded_from_another_device_is_put_where_it_belongs(problem: Any) -> None:
    """A file read with map_location holds even the random stream there; here float64 stands for another place."""
    aligner = problem.aligner()
    model = problem.train(aligner, 7)
    state = aligner.state_dict()
    state["phi"] = state["phi"].double()
    again = problem.aligner()
    again.load_state_dict(state)
    assert again.phi.dtype is torch.float32
    problem.train(again, 6, start=7, model=model)
