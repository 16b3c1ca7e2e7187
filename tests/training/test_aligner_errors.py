"""Whatever cannot work is refused with one sentence that names it and the way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lossalign as la
from lossalign.control import switch


def pairs(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.zeros(size, 4), torch.arange(size) % 3) for size in sizes]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": 0, "every": None}, "total_steps=0: give the number of optimiser iterations of the whole run"),
        ({"total_steps": 5, "every": 6}, "every=6: K must be between 1 and total_steps=5"),
        ({"every": 0}, "every=0: K must be between 1 and total_steps=60"),
        ({"loss": nn.CrossEntropyLoss()}, "loss: CrossEntropyLoss is not an AdaptiveLoss; try AlignedLoss"),
        ({"loss": la.AlignedLoss}, "loss: ABCMeta is not an AdaptiveLoss"),
        ({"metric": lambda outputs, targets: 0.0}, "does not say which way is better; pass higher_is_better=True"),
        ({"metric": lambda model, loader: 0.0}, "does not say which way is better; pass higher_is_better=True"),
        ({"metric": la.metrics.BalancedError}, "metric is the class BalancedError; pass an instance"),
        ({"val_loader": []}, "val_loader: it is empty; give at least two validation samples"),
        ({"val_loader": iter(pairs(6))}, "val_loader: it can be read only once; give a list or a DataLoader"),
        ({"val_loader": [torch.zeros(3, 4)]}, r"batches are not pairs of tensors \(inputs, targets\); pass forward="),
        ({"val_loader": [(torch.zeros(3, 4),) * 3]}, "val_loader: its batches are not pairs"),
        ({"val_loader": [({"x": 1}, torch.zeros(3))]}, "val_loader: its batches are not pairs"),
        ({"val_loader": [(torch.zeros(3, 4), [0, 1, 2])]}, "val_loader: its batches are not pairs"),
        ({"val_loader": [(torch.zeros(3, 4), torch.zeros(3))]}, "val_loader: labels have type torch.float32"),
        ({"val_loader": [(torch.zeros(3, 4), torch.eye(3).long())]}, r"val_loader: labels have shape \(3, 3\)"),
        ({"val_loader": [(torch.zeros(1, 4), torch.tensor([3]))]}, "val_loader: label 3 is out of range"),
        ({"policy": "statistics"}, "policy: it was learned on states with"),
        ({"policy": "policy.safetensors"}, "policy='policy.safetensors': give a lossalign.Policy, 'auto' or 'fresh'"),
    ],
)
def test_refused_before_anything_is_trained(options: dict[str, Any], message: str, problem: Any) -> None:
    if options.get("policy") == "statistics":
        options = {"policy": problem.aligner(loss=la.AlignedLoss(3, groups=("pairs",))).policy}
    with pytest.raises(la.InputError, match=message):
        problem.aligner(**options)


@pytest.mark.parametrize("evaluation", ["literal", "window"])
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (pairs(1), "val_loader: it holds 1 samples; a metric needs at least 2"),
        (pairs(2, 2), "val_loader: class 2 has no samples, and Eq. 7 divides by their number; add at least one"),
        ([*pairs(3), (torch.zeros(1, 4), torch.tensor([7]))], "val_loader: label 7 is out of range for num_classes=3"),
        ([*pairs(3), (torch.zeros(1, 4), torch.tensor([1.0]))], "val_loader: labels have type torch.float32"),
    ],
)
def test_refused_at_the_first_look_at_the_whole_loader(
    loader: list[Any], message: str, evaluation: str, problem: Any
) -> None:
    preset = switch(la.default(), {"evaluation": evaluation, "evaluations": 3})
    aligner = problem.aligner(val_loader=loader, preset=preset)
    with pytest.raises(la.InputError, match=message):
        problem.train(aligner, 1)


def test_minibatches_are_looked_at_too(problem: Any) -> None:
    loader = [*pairs(3), (torch.zeros(1, 4), torch.tensor([7]))]
    aligner = problem.aligner(val_loader=loader, preset=switch(la.default(), {"evaluation": "minibatch"}))
    problem.train(aligner, 1)
    with pytest.raises(la.InputError, match="val_loader: label 7 is out of range for num_classes=3"):
        problem.train(aligner, 1)


class Emptied:
    """Has batches at first, and then no more."""

    def __init__(self) -> None:
        self.left = 1

    def __iter__(self) -> Any:
        self.left -= 1
        return iter(pairs(6) if self.left >= 0 else [])


@pytest.mark.parametrize("evaluation", ["literal", "minibatch"])
def test_a_loader_that_runs_dry(evaluation: str, problem: Any) -> None:
    aligner = problem.aligner(val_loader=Emptied(), preset=switch(la.default(), {"evaluation": evaluation}))
    with pytest.raises(la.InputError, match="val_loader: it is empty"):
        problem.train(aligner, 3)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 3]), "targets: label 3 is out of range for num_classes=3; labels must be 0 … 2"),
        (torch.tensor([0, -1]), "targets: label -1 is out of range"),
        (torch.tensor([0.0, 1.0]), r"targets: labels have type torch.float32; convert them with .long\(\)"),
    ],
)
def test_labels_of_any_training_batch(targets: Tensor, message: str, problem: Any) -> None:
    aligner = problem.aligner()
    aligner(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(la.InputError, match=message):
        aligner(torch.zeros(2, 3), targets)


def test_outputs_that_are_not_finite_name_the_step(problem: Any) -> None:
    aligner, model = problem.aligner(every=2), problem.network()
    problem.train(aligner, 2, model=model)
    model[4].bias.data[1] = torch.nan
    with pytest.raises(la.NonFiniteError, match="step 2: the outputs of child 0 are not finite; lower the learning"):
        problem.train(aligner, 2, model=model)


def test_a_metric_that_is_not_finite_names_the_step(problem: Any) -> None:
    def of_outputs(outputs: Tensor, targets: Tensor) -> float:
        return float("nan")

    def of_model(model: nn.Module, loader: Any) -> float:
        return float("inf")

    for metric in (of_outputs, of_model):
        aligner = problem.aligner(metric=metric, higher_is_better=True)
        with pytest.raises(la.NonFiniteError, match="step 1: the metric of child 0 is not finite"):
            problem.train(aligner, 3)


def test_best_weights_before_anything_is_measured(problem: Any) -> None:
    with pytest.raises(la.InputError, match="best_state_dict: nothing is measured yet; it comes after 3 iterations"):
        problem.aligner().best_state_dict()
