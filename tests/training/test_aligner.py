"""The aligner changes Φ and nothing else, in whatever loop it is used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import lossalign as la
from lossalign.training.weights import evaluating


class OwnLoop:
    """A user's loop that draws dropout masks and its data order from torch's global stream."""

    def __init__(self, problem: Any, way: str) -> None:
        torch.manual_seed(0)
        self.way = way
        self.network = problem.network()
        self.network[1].eval()  # a frozen BatchNorm, kept in eval mode
        self.network[1].requires_grad_(False)
        self.model = torch.compile(self.network, backend="eager") if way == "compiled" else self.network
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        if way == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(trained, lr=0.02)
        else:
            self.optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        data = TensorDataset(problem.inputs[:60], problem.targets[:60])
        self.loader = DataLoader(data, batch_size=5, shuffle=True)

    def run(self, criterion: Callable[[Tensor, Tensor], Tensor], after: Callable[[nn.Module], None]) -> None:
        """One epoch: 12 batches, or 6 pairs of them."""
        accumulated = 2 if self.way == "accumulation" else 1
        for number, (x, y) in enumerate(self.loader, 1):
            with torch.autocast("cpu", torch.bfloat16) if self.way == "autocast" else nullcontext():
                outputs = self.model(x)
                loss = criterion(outputs, y) / accumulated
            assert outputs.dtype is (torch.bfloat16 if self.way == "autocast" else torch.float32)
            loss.backward()
            if number % accumulated == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                if self.way == "adam":
                    self.schedule.step()
                after(self.model)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "modes": [module.training for module in self.network.modules()],
            "requires_grad": [parameter.requires_grad for parameter in self.network.parameters()],
            "random": torch.get_rng_state(),
        }


@pytest.mark.parametrize("way", ["sgd", "adam", "accumulation", "autocast", "compiled"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_it_is_plain_cross_entropy_until_phi_moves(
    way: str, shuffled: bool, problem: Any, assert_equal: Callable[[Any, Any], None]
) -> None:
    plain = OwnLoop(problem, way)
    plain.run(F.cross_entropy, lambda model: None)
    plain_state = plain.state()
    own = OwnLoop(problem, way)
    loader = DataLoader(problem.val_loader.dataset, batch_size=16, shuffle=shuffled)
    aligner = problem.aligner(every=6 if way == "accumulation" else 12, val_loader=loader)
    own.run(aligner, aligner.step)
    assert_equal(own.state(), plain_state)
    assert len(aligner.history) == 1  # the whole step is over: measured, and Φ has moved
    assert (aligner.phi != 0).any()


def test_it_is_plain_cross_entropy_for_as_long_as_phi_stays(
    problem: Any, still: la.Preset, assert_equal: Callable[[Any, Any], None]
) -> None:
    plain, own = OwnLoop(problem, "sgd"), OwnLoop(problem, "sgd")
    aligner = problem.aligner(every=2, preset=still)
    torch.manual_seed(5)
    for _ in range(3):
        plain.run(F.cross_entropy, lambda model: None)
    plain_state = plain.state()
    torch.manual_seed(5)
    for _ in range(3):
        own.run(aligner, aligner.step)
    assert len(aligner.history) == 18
    assert not aligner.history.phi.any()
    assert_equal(own.state(), plain_state)


@pytest.mark.parametrize("name", ["default", "paper"])
@pytest.mark.parametrize("evaluation", ["literal", "minibatch", "window"])
def test_every_preset_moves_phi(name: str, evaluation: str, problem: Any) -> None:
    preset = {"default": la.default, "paper": la.paper}[name](evaluation=evaluation)
    loss = la.AlignedLoss(3) if name == "default" else la.ClassCorrelationLoss(3)
    aligner = problem.aligner(preset=preset, loss=loss)
    problem.train(aligner, 24)
    assert aligner.history.phi.shape == (8, loss.spec.size)
    assert (aligner.history.phi[-1] != loss.spec.initial).any()
    loss.spec.check(aligner.phi)


def test_history_is_the_phi_each_step_trained_under(problem: Any) -> None:
    aligner, under = problem.aligner(every=4), []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                under.append(aligner.phi.clone())
            return self.inner(x)  # type: ignore[no-any-return]

    problem.train(aligner, 12, model=Watched())
    assert torch.equal(torch.stack(under), aligner.history.phi.repeat_interleave(4, 0))
    assert aligner.history.phi.unique(dim=0).shape[0] > 1


class Probe(nn.Module):
    """Records in which mode it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled()))
        return x


@pytest.mark.parametrize("evaluation", ["literal", "minibatch", "window"])
def test_evaluation_is_in_eval_mode_without_gradients(evaluation: str, problem: Any) -> None:
    probe = Probe()
    model = nn.Sequential(problem.network(), probe)
    problem.train(problem.aligner(preset=la.default(evaluation=evaluation)), 6, model=model)
    assert set(probe.calls) == {(True, True), (False, False)}
    assert probe.calls.count((True, True)) == 6


def test_evaluation_leaves_batch_norm_alone(problem: Any) -> None:
    model = problem.network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    aligner = problem.aligner(every=1)
    for _ in range(3):
        aligner.step(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training


def test_gradients_survive_evaluation(problem: Any) -> None:
    model = problem.network()
    model(problem.inputs[:9]).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    problem.aligner(every=1).step(model)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True))


def test_an_error_in_the_metric_leaves_the_model_as_it_was(problem: Any) -> None:
    def broken(outputs: Tensor, targets: Tensor) -> float:
        raise ArithmeticError("no")

    model = problem.network()
    model[1].eval()
    aligner = problem.aligner(
        metric=broken, higher_is_better=True, every=3, preset=la.default(gamma=1.0, evaluations=2)
    )
    aligner.step(model)  # the average starts here, and nothing is measured yet
    random, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    nn.init.ones_(model[0].weight)
    with pytest.raises(ArithmeticError):
        aligner.step(model)
    assert (model[0].weight == 1).all()
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled()


def test_other_weights_are_put_in_place_and_taken_out_again() -> None:
    model = nn.Linear(2, 1)
    own = model.weight.detach().clone()
    with evaluating(model, {"weight": torch.full((1, 2), 5.0)}):
        assert (model.weight == 5).all()
    assert torch.equal(model.weight, own)


def test_the_average_is_what_is_measured(problem: Any) -> None:
    measured: list[Tensor] = []

    def pipeline(model: nn.Module, loader: Any) -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        assert loader is problem.val_loader
        measured.append(model[0].weight.clone())  # type: ignore[index]
        return 0.5

    for average in (None, 2.0):
        measured.clear()
        preset = la.default(weight_average=average, evaluations=1)
        aligner = problem.aligner(metric=pipeline, higher_is_better=True, preset=preset, total_steps=3)
        model = problem.train(aligner, 3)
        assert torch.equal(measured[0], model[0].weight) == (average is None)
        assert torch.equal(aligner.best_state_dict()["0.weight"], measured[0])


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float().mean()


def pipeline_accuracy(model: nn.Module, loader: Any) -> float:
    pairs = [(model(x), y) for x, y in loader]
    return float(accuracy(torch.cat([o for o, _ in pairs]), torch.cat([y for _, y in pairs])))


def test_one_metric_in_four_guises_gives_one_run(problem: Any) -> None:
    guises: list[tuple[Any, bool | None]] = [
        (la.metrics.ErrorRate(), None),
        (MulticlassAccuracy(num_classes=3, average="micro"), None),
        (accuracy, True),
        (pipeline_accuracy, True),
    ]
    runs = []
    for metric, higher in guises:
        torch.manual_seed(0)
        preset = la.default(sensitivity=False, reward="sign")
        aligner = problem.aligner(metric=metric, higher_is_better=higher, preset=preset, total_steps=30)
        problem.train(aligner, 30)
        runs.append(aligner)
    assert (runs[0].phi != 0).any()
    for aligner in runs[1:]:
        assert torch.equal(aligner.history.phi, runs[0].history.phi)
        best, first = aligner.best_state_dict(), runs[0].best_state_dict()
        assert all(torch.equal(best[name], first[name]) for name in first)


class Tempered(la.AdaptiveLoss):
    """Cross-entropy of logits times a temperature that is moved; speaks of no class."""

    def __init__(self) -> None:
        group = la.ParameterGroup(name="heat", labels=("τ",), initial=1.0, low=0.5, high=2.0, beta=0.25)
        self.spec, self.num_statistics = la.ParameterSpec((group,)), 1

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        return F.cross_entropy(outputs * phi[0], targets, reduction="none")

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets).reshape(1, 1)

    def check_targets(self, targets: Tensor, name: str) -> None:
        if targets.is_floating_point():
            raise la.InputError(f"{name}: whole numbers, please.")


def test_a_loss_of_ones_own(problem: Any) -> None:
    aligner = problem.aligner(loss=Tempered())
    problem.train(aligner, 45)
    assert set(aligner.history.phi.flatten().tolist()) <= {0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0}
    assert len(aligner.history.phi.unique()) > 1
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(aligner(outputs, targets), aligner.loss(outputs, targets, aligner.phi).mean())


def test_batches_of_any_kind_with_forward(problem: Any) -> None:
    def forward(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return model(batch["x"]), batch["y"]

    loader = [{"x": x, "y": y} for x, y in problem.val_loader]
    own, usual = problem.aligner(val_loader=loader, forward=forward), problem.aligner()
    for aligner in (own, usual):
        torch.manual_seed(0)
        problem.train(aligner, 12)
    assert torch.equal(own.history.phi, usual.history.phi)


def test_validation_in_bfloat16_is_measured_in_float32(problem: Any) -> None:
    seen: list[torch.dtype] = []

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return accuracy(outputs, targets)

    preset = la.default(sensitivity=False)
    aligner = problem.aligner(metric=metric, higher_is_better=True, every=1, preset=preset)
    with torch.autocast("cpu", torch.bfloat16):
        problem.train(aligner, 3)
    assert set(seen) == {torch.float32}
    assert aligner.phi.dtype is torch.float32


class Elementwise(nn.Module):
    """Nothing in it is computed in another precision under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] * self.scale


def test_the_controller_computes_in_float32_under_autocast(problem: Any) -> None:
    own, usual = problem.aligner(every=1), problem.aligner(every=1)
    with torch.autocast("cpu", torch.bfloat16):
        problem.train(own, 20, model=Elementwise())
    problem.train(usual, 20, model=Elementwise())
    assert torch.equal(own.history.phi, usual.history.phi)
    for name, tensor in own.policy.state_dict().items():
        assert torch.equal(tensor, usual.policy.state_dict()[name])


def test_best_state_dict_has_the_best_metric(problem: Any) -> None:
    seen: list[float] = []

    def metric(outputs: Tensor, targets: Tensor) -> float:
        seen.append(float(F.cross_entropy(outputs, targets)))
        return seen[-1]

    preset = la.default(evaluations=1, sensitivity=False)
    aligner = problem.aligner(metric=metric, higher_is_better=False, preset=preset, every=2, total_steps=40)
    model = problem.train(aligner, 40, lr=2.0)
    assert len(seen) == 20
    assert seen[-1] > min(seen)
    best = aligner.best_state_dict()
    model.load_state_dict(best, strict=True)
    with torch.no_grad():
        outputs = torch.cat([model.eval()(x) for x, _ in problem.val_loader])
    assert float(F.cross_entropy(outputs, problem.targets[60:])) == min(seen)
    best["0.weight"].zero_()
    assert aligner.best_state_dict()["0.weight"].any()


def test_a_policy_that_does_not_learn_stays_as_it_is(problem: Any, tmp_path: Any) -> None:
    teacher = problem.aligner(every=1)
    problem.train(teacher, 20)
    path = teacher.policy.save(tmp_path / "policy.safetensors")
    for learn in (False, True):
        policy = la.Policy.load(path)
        assert all(torch.equal(policy.state_dict()[n], t) for n, t in teacher.policy.state_dict().items())
        aligner = problem.aligner(every=1, controller=policy, learn=learn)
        assert aligner.policy is policy
        problem.train(aligner, 20)
        same = [torch.equal(policy.state_dict()[n], t) for n, t in teacher.policy.state_dict().items()]
        assert all(same) is not learn
        assert (aligner.phi != 0).any()


@pytest.mark.parametrize(
    ("options", "pretrained", "learns"),
    [
        ({}, True, False),
        ({"learn": True}, True, True),
        ({"controller": "fresh"}, False, True),
        ({"loss": la.AlignedLoss(3, groups=("weights",))}, False, True),
        ({"loss": la.AlignedLoss(3, groups=("offsets", "pairs"))}, False, True),
        ({"preset": la.default(sensitivity=False)}, False, True),
    ],
)
def test_one_model_uses_the_policy_that_comes_with_lossalign_where_it_fits(
    options: dict[str, Any], pretrained: bool, learns: bool, problem: Any
) -> None:
    aligner = problem.aligner(every=1, **{"controller": "auto", **options})
    given, before = la.Policy.pretrained().state_dict(), copy.deepcopy(aligner.policy.state_dict())
    same = [t.shape == given[n].shape and torch.equal(t, given[n]) for n, t in before.items()]
    assert all(same) is pretrained
    problem.train(aligner, 20)
    assert any(not torch.equal(t, before[n]) for n, t in aligner.policy.state_dict().items()) is learns
    assert (aligner.phi != 0).any()


def test_iterations_beyond_the_last_are_fine(problem: Any) -> None:
    aligner = problem.aligner(total_steps=6)
    with pytest.warns(UserWarning, match="total_steps=6: the run is longer than that") as said:
        problem.train(aligner, 15)
    assert len(said) == 1
    assert len(aligner.history) == 5


@pytest.mark.parametrize(("total", "every"), [(5, 5), (50, 10), (3_000, 30), (100_000, 200)])
def test_every_is_a_hundredth_of_the_run_from_10_to_200(total: int, every: int, problem: Any) -> None:
    assert problem.aligner(total_steps=total, every=None).every == every


def test_the_same_seed_gives_the_same_run(problem: Any) -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        aligner = problem.aligner(seed=seed)
        problem.train(aligner, 15)
        runs.append(aligner.history.phi)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
