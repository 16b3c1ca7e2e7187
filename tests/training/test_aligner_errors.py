"""Whatever cannot work is refused with one sentence that names it and the way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lossalign as la


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
        ({"controller": "statistics"}, "policy: it was learned on states with"),
        (
            {"controller": "policy.safetensors"},
            "controller='policy.safetensors': give 'auto', 'confusion-rule', ",
        ),
    ],
)
def test_refused_before_anything_is_trained(options: dict[str, Any], message: str, problem: Any) -> None:
    if options.get("controller") == "statistics":
        options = {"controller": problem.aligner(loss=la.AlignedLoss(3, groups=("pairs",))).policy}
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
    preset = la.default(evaluation=evaluation, evaluations=3)
    aligner = problem.aligner(val_loader=loader, preset=preset)
    with pytest.raises(la.InputError, match=message):
        problem.train(aligner, 1)


def test_minibatches_are_looked_at_too(problem: Any) -> None:
    loader = [*pairs(3), (torch.zeros(1, 4), torch.tensor([7]))]
    aligner = problem.aligner(val_loader=loader, preset=la.default(evaluation="minibatch"))
    problem.train(aligner, 1)
    with pytest.raises(la.InputError, match="val_loader: label 7 is out of range for num_classes=3"):
        problem.train(aligner, 1)


class Reading(la.AlignedLoss):
    """Its statistics read a value, which vmap cannot; it does not say so."""

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().statistics(outputs, targets) * outputs.abs().max().item()


def test_a_loss_that_vmap_cannot_lift_is_told_to_say_so(problem: Any) -> None:
    with pytest.raises(la.InputError, match=r"Reading\.statistics: torch.func.vmap cannot .* set vectorised = False"):
        problem.train(problem.aligner(loss=Reading(3)), 3)


class Emptied:
    """Has batches at first, and then no more."""

    def __init__(self) -> None:
        self.left = 1

    def __iter__(self) -> Any:
        self.left -= 1
        return iter(pairs(6) if self.left >= 0 else [])


@pytest.mark.parametrize("evaluation", ["literal", "minibatch"])
def test_a_loader_that_runs_dry(evaluation: str, problem: Any) -> None:
    aligner = problem.aligner(val_loader=Emptied(), preset=la.default(evaluation=evaluation))
    with pytest.raises(la.InputError, match="val_loader: it is empty"):
        problem.train(aligner, 3)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 3]), "targets: label 3 is out of range for num_classes=3; labels must be 0 … 2"),
        (torch.tensor([0, -1]), "targets: label -1 is out of range"),
        (torch.tensor([0.0, 1.0]), r"targets: labels have type torch.float32; convert them with .long\(\)"),
        (
            torch.tensor([0.3, 0.7]),
            r"give class indices; for soft labels .* mix the losses instead, e\.g\. λ \* aligner",
        ),
        (torch.eye(3)[:2], r"for soft labels .*λ \* aligner\(outputs, y_a\) \+ \(1 - λ\) \* aligner\(outputs, y_b\)"),
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
    with pytest.warns(UserWarning, match="NaN or inf in the 2 iterations before"):
        problem.train(aligner, 2 * 10, model=model)
    with pytest.raises(la.NonFiniteError, match="step 12: the outputs of child 0 are not finite; lower the learning"):
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
    sentence = r"nothing is measured yet after 0 calls of aligner\.step\(model\); the first measurement comes after 3"
    with pytest.raises(la.InputError, match=sentence):
        problem.aligner().best_state_dict()


class Answers(nn.Module):
    """A model that returns what it is told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.network, self.answer = nn.Linear(4, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.network(x))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda logits: {"logits": logits}, "a dict with the keys 'logits'"),
        (lambda logits: (logits, None), "a tuple"),
        (lambda logits: None, "None"),
    ],
)
def test_a_model_that_returns_no_tensor_is_told_to_pass_forward(answer: Any, found: str, problem: Any) -> None:
    model, aligner = Answers(answer), problem.aligner(every=1)
    message = f"model: it returns {found}, not one tensor of outputs; pass forward=…"
    with pytest.raises(la.InputError, match=message):
        aligner.step(model)
    with pytest.raises(la.InputError, match=f"outputs: {found}, not a tensor; give the tensor alone"):
        aligner(model(problem.inputs[:3]), problem.targets[:3])

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model.network(batch[0]), batch[1]  # type: ignore[operator]

    problem.aligner(every=1, forward=forward).step(model)


@pytest.mark.parametrize("pair", [None, torch.zeros(3), ({"logits": 1}, torch.zeros(3)), (torch.zeros(3),)])
def test_a_forward_that_returns_no_pair_of_tensors(pair: Any, problem: Any) -> None:
    aligner = problem.aligner(every=1, forward=lambda model, batch: pair)
    with pytest.raises(la.InputError, match=r"forward: it returned .*; return two tensors"):
        aligner.step(problem.network())


def test_targets_that_are_no_tensor(problem: Any) -> None:
    with pytest.raises(la.InputError, match="targets: a list, not a tensor"):
        problem.aligner()(torch.zeros(2, 3), [0, 1])


def test_a_step_is_given_the_model(problem: Any) -> None:
    optimizer = torch.optim.SGD(problem.network().parameters(), lr=0.1)
    with pytest.raises(
        la.InputError, match=r"step: SGD is not a model; give the .* that trains, aligner\.step\(model\)"
    ):
        problem.aligner().step(optimizer)


@pytest.mark.parametrize("average", [None, 2.0])
def test_a_step_is_given_the_same_model_as_before(average: float | None, problem: Any) -> None:
    def stepped_with(model: nn.Module) -> None:
        aligner = problem.aligner(every=1, preset=la.default(weight_average=average))
        aligner.step(problem.network())
        aligner.step(model)

    wider = problem.network()
    wider[0], wider[1], wider[4] = nn.Linear(4, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)
    stepped_with(problem.network())
    with pytest.raises(la.InputError, match=r"another model than before, '0\.bias' has shape \(9,\), not \(8,\)"):
        stepped_with(wider)
    with pytest.raises(la.InputError, match=r"another model than before, '\w+\.\w+' is (missing|new)"):
        stepped_with(nn.ModuleDict({"net": problem.network()})["net"][:1])
    with pytest.raises(la.InputError, match=r"another model than before, '0\.bias' is missing"):
        stepped_with(Answers(lambda logits: logits))


def test_a_model_of_another_shape_after_resuming(problem: Any) -> None:
    aligner = problem.aligner()
    problem.train(aligner, 4)
    again = problem.aligner()
    again.load_state_dict(aligner.state_dict())
    with pytest.raises(la.InputError, match="another model than before"):
        again.step(Answers(lambda logits: logits))


def test_a_model_without_numbers(problem: Any) -> None:
    model = problem.network().to("meta")
    with pytest.raises(la.InputError, match="step: the model is on the meta device and holds no numbers; load its"):
        problem.aligner().step(model)
    with pytest.raises(la.InputError, match="outputs: a tensor on the meta device holds no numbers"):
        problem.aligner()(model(torch.zeros(3, 4, device="meta")), torch.arange(3))


MULTI = [(torch.randn(8, 4), (torch.arange(24).reshape(8, 3) % 5 < 2).float())]


@pytest.mark.parametrize(
    "metric",
    [
        *(la.metrics.MacroF1(), la.metrics.BalancedError(), la.metrics.ErrorRate(), la.metrics.MeanCost(torch.eye(3))),
        *(la.metrics.TopKError(2), la.metrics.WorstExpectedRecall(), la.metrics.RecallAtK((1,))),
    ],
    ids=lambda metric: type(metric).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.long])
def test_several_labels_and_a_metric_of_one_are_refused_before_training(
    metric: Any, dtype: torch.dtype, problem: Any
) -> None:
    loader = [(inputs, targets.to(dtype)) for inputs, targets in MULTI]
    with pytest.raises(la.InputError, match=r"needs one label for each sample, but val_loader gives 3 .*AUCPR\(\)"):
        problem.aligner(loss=la.losses.RankingLoss(3), metric=metric, val_loader=loader)


@pytest.mark.parametrize("metric", [la.metrics.AUCPR(), la.metrics.AUROC()], ids=lambda metric: metric.name)
def test_several_labels_and_a_metric_of_several(metric: Any, problem: Any) -> None:
    problem.aligner(loss=la.losses.RankingLoss(3), metric=metric, val_loader=MULTI, every=1).step(nn.Linear(4, 3))


def test_several_labels_from_a_forward_of_ones_own_are_refused_at_the_first_look(problem: Any) -> None:
    aligner = problem.aligner(
        loss=la.losses.RankingLoss(3),
        metric=la.metrics.MacroF1(),
        val_loader=[{"x": MULTI[0][0], "y": MULTI[0][1]}],
        forward=lambda model, batch: (model(batch["x"]), batch["y"]),
        every=1,
    )
    with pytest.raises(la.InputError, match="metric 'macro-f1' needs one label for each sample"):
        aligner.step(nn.Linear(4, 3))
