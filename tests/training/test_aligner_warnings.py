"""What works but is most likely a mistake is said once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

import lossalign as la
from lossalign.training.aligner import _FORGOTTEN


def heard(work: Callable[[], Any]) -> list[str]:
    """What is said while it works; each of them is lossalign's."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        work()
    assert all(issubclass(one.category, UserWarning) and "lossalign" in one.filename for one in said)
    return [str(one.message) for one in said]


def test_a_usual_run_says_nothing(problem: Any) -> None:
    assert heard(lambda: problem.train(problem.aligner(), 30)) == []


def test_a_run_longer_than_it_was_said_to_be(problem: Any) -> None:
    aligner = problem.aligner(total_steps=6)
    assert heard(lambda: problem.train(aligner, 6)) == []
    [said] = heard(lambda: problem.train(aligner, 9))
    assert said.startswith("total_steps=6: the run is longer than that")
    assert "total_steps=len(loader) * epochs" in said


def test_a_run_shorter_than_it_was_said_to_be(problem: Any) -> None:
    aligner = problem.aligner(total_steps=9)
    problem.train(aligner, 6)
    assert heard(aligner.state_dict) == []  # a checkpoint is written while a run is on its way
    [said] = heard(lambda: [aligner.best_state_dict(), aligner.best_state_dict()])
    assert said.startswith("total_steps=9: the best weights are asked for after 6 iterations; if the run is over")
    assert said.endswith("make the Aligner with total_steps=6.")
    whole = problem.aligner(total_steps=6)
    problem.train(whole, 6)
    assert heard(whole.best_state_dict) == []


class TestOneBatchThatIsNotFinite:
    """The averages of the weights are those from before, so that measuring and Φ go on."""

    def run(self, problem: Any, poison: Callable[[nn.Module], None], after: int = 7) -> tuple[la.Aligner, list[str]]:
        aligner = problem.aligner(total_steps=after + 12)
        model = problem.train(aligner, after)

        def rest() -> None:
            poison(model)
            problem.train(aligner, 12, start=after, model=model)

        return aligner, heard(rest)

    def test_nan_gradients(self, problem: Any) -> None:
        def poison(model: nn.Module) -> None:
            with torch.no_grad():
                model[0].weight.fill_(torch.nan)

        aligner, said = self.run(problem, poison)
        assert len(said) == 1
        assert said[0].startswith("step: the model's weights were NaN or inf in the 3 iterations before 9")
        assert len(aligner.history) == 6
        assert all(tensor.isfinite().all() for tensor in aligner.best_state_dict().values())
        assert aligner.history.metric.isfinite().all()

    def test_batch_statistics(self, problem: Any) -> None:
        aligner, said = self.run(problem, lambda model: model[1].running_mean.fill_(torch.inf))
        assert len(said) == 1
        assert aligner.history.metric.isfinite().all()

    def test_weights_that_are_good_again_are_averaged_again(self, problem: Any) -> None:
        aligner = problem.aligner()
        model = problem.train(aligner, 7)
        good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            model[0].weight.fill_(torch.inf)
        heard(lambda: problem.train(aligner, 2, start=7, model=model))
        before = aligner.get_extra_state()["averaged"]["0.weight"]
        model.load_state_dict(good)
        assert heard(lambda: problem.train(aligner, 3, start=9, model=model)) == []
        after = aligner.get_extra_state()["averaged"]["0.weight"]
        assert after.isfinite().all()
        assert not torch.equal(after, before)


def losses(aligner: la.Aligner, problem: Any, number: int) -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    for _ in range(number):
        aligner(logits, problem.targets[:4])


def test_a_forgotten_step(problem: Any) -> None:
    aligner = problem.aligner()
    assert heard(lambda: losses(aligner, problem, _FORGOTTEN)) == []
    [said] = heard(lambda: losses(aligner, problem, 500))
    assert said.startswith(f"aligner.step: {_FORGOTTEN + 1} losses were computed since the last call of it")
    assert "call aligner.step(model) after every optimizer.step()" in said


def test_neither_accumulation_nor_evaluation_is_a_forgotten_step(problem: Any) -> None:
    aligner, model = problem.aligner(every=1), problem.network()

    def accumulate() -> None:
        for _ in range(3):
            losses(aligner, problem, _FORGOTTEN)
            aligner.step(model)
        with torch.no_grad():
            losses(aligner, problem, 2 * _FORGOTTEN)

    assert heard(accumulate) == []


def test_a_large_k_waits_longer_for_a_forgotten_step(problem: Any) -> None:
    aligner = problem.aligner(every=100, total_steps=1000)
    assert heard(lambda: losses(aligner, problem, 2000)) == []
    assert len(heard(lambda: losses(aligner, problem, 1))) == 1


def test_probabilities_in_place_of_logits(problem: Any) -> None:
    model = nn.Sequential(problem.network(), nn.Softmax(-1))
    [said] = heard(lambda: problem.train(problem.aligner(), 9, model=model))
    assert said.startswith("outputs: every row is non-negative and sums to 1, as if the model ended in a softmax")


@pytest.mark.parametrize(
    "outputs", [torch.zeros(4, 3), torch.ones(4, 3), -torch.rand(4, 3), torch.eye(3)[[0, 1, 2, 0]] * 5]
)
def test_logits_are_not_taken_for_probabilities(outputs: Tensor, problem: Any) -> None:
    assert heard(lambda: problem.aligner()(outputs, problem.targets[:4])) == []


def test_embeddings_are_not_taken_for_probabilities(problem: Any) -> None:
    aligner = problem.aligner(loss=la.DistanceMixtureLoss(), metric=la.metrics.RecallAtK((1,)))
    assert heard(lambda: aligner(torch.rand(6, 4).softmax(-1), problem.targets[:6])) == []


def test_a_validation_set_in_another_order(problem: Any) -> None:
    loader = DataLoader(problem.val_loader.dataset, batch_size=16, shuffle=True)
    [said] = heard(lambda: problem.train(problem.aligner(val_loader=loader), 15))
    assert said.startswith("val_loader: a second pass gave its samples in another order")
    assert "shuffle=False" in said


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    accuracy.calls += 1  # type: ignore[attr-defined]
    return float((outputs.argmax(-1) == targets).float().mean())


@pytest.mark.parametrize("metric", [accuracy, MulticlassAccuracy(num_classes=3, average="micro")])
def test_a_metric_that_the_sensitivity_calls_many_times(metric: Any, problem: Any) -> None:
    accuracy.calls = 0  # type: ignore[attr-defined]
    higher = True if metric is accuracy else None
    [said] = heard(lambda: problem.train(problem.aligner(metric=metric, higher_is_better=higher), 9))
    assert "is called up to 6 times more at every move of Φ" in said
    assert "preset=lossalign.default(sensitivity=False)" in said
    if metric is accuracy:
        assert 3 < accuracy.calls <= 3 * (1 + 1 + 6)  # type: ignore[attr-defined]
    preset = la.default(sensitivity=False)
    quiet = problem.aligner(metric=metric, higher_is_better=higher, preset=preset)
    assert heard(lambda: problem.train(quiet, 9)) == []
