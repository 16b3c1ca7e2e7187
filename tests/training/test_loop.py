"""Algorithm 1 on digits: who trains under which Φ, who sees what, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.children import Member, Optimisation, make_children
from lossalign.control import LearningController, Preset, discounted_metric, preset_named
from lossalign.core import Controller, InputError, NonFiniteError, Observation, generator
from lossalign.data import BatchStream, Dataset, fit_transform, load_digits, normalise
from lossalign.losses import AdaptiveLoss, AlignedLoss, ClassCorrelationLoss
from lossalign.metrics import AUROC, BalancedError, FunctionMetric, Metric, WorstClassRecall, error
from lossalign.models import MLP
from lossalign.training import LabelledSet, Part, Population, StepRecord, load_checkpoint, loop, past, save_checkpoint

DIGITS = load_digits()
TRAIN = DIGITS.subset(range(200))
TRANSFORM = fit_transform(TRAIN, noise=0.1)
EVERY = 3


def labelled(part: Dataset) -> LabelledSet:
    return LabelledSet(normalise(part.inputs, TRANSFORM), part.targets)


VALIDATION, SELECTION = labelled(DIGITS.subset(range(200, 260))), labelled(DIGITS.subset(range(260, 320)))


class Constant:
    """A controller that never moves, and remembers what it saw."""

    def __init__(self, *rows: float, parameters: int = 10) -> None:
        self.phi = torch.tensor(rows)[:, None].expand(-1, parameters)
        self.parents: Tensor | None = None
        self.seen: list[Observation] = []

    def move(self, observation: Observation) -> dict[str, Tensor]:
        self.seen.append(observation)
        return {"told": observation.error}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


class Spoiled:
    """A stream whose inputs turn infinite after some batches."""

    def __init__(self, stream: BatchStream, after: int) -> None:
        self.stream, self.left = stream, after

    def next(self) -> tuple[Tensor, Tensor]:
        inputs, targets = self.stream.next()
        self.left -= 1
        return (inputs if self.left >= 0 else inputs * torch.inf), targets

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


def learners(loss: AdaptiveLoss, preset: Preset, sizes: Sequence[int] = (2, 1), seed: int = 0) -> list[Controller]:
    return [
        LearningController(
            loss.spec,
            children=size,
            preset=preset,
            statistics=loss.num_statistics,
            generator=generator(seed, "controller", at),
        )
        for at, size in enumerate(sizes)
    ]


def member(child: int, spoiled_after: int | None = None) -> Member:
    with torch.random.fork_rng([]):
        torch.manual_seed(child)
        model = MLP(64, hidden=(8,))

    def stream() -> Any:
        batches = BatchStream(TRAIN, 16, TRANSFORM, generator(child, "batches"))
        return batches if spoiled_after is None else Spoiled(batches, spoiled_after)

    return Member(model, child, stream)


def build(
    engine: Any = "sequential",
    preset: Preset | None = None,
    loss: AdaptiveLoss | None = None,
    controllers: Sequence[Controller] | None = None,
    spoiled: dict[int, int] | None = None,
    metric: Metric | None = None,
    steps: int = 8,
    tolerant: bool = False,
    restores: int = 0,
    **sets: Sequence[LabelledSet],
) -> Population:
    preset = preset or preset_named("default")
    loss = loss or AlignedLoss(10)
    controllers = learners(loss, preset) if controllers is None else controllers
    optimisation = Optimisation(iterations=steps * EVERY, average_decay=0.8)
    members = [member(child, (spoiled or {}).get(child)) for child in range(3)]
    given: dict[str, Any] = {"validation": [VALIDATION] * 3, "selection": [SELECTION] * 3, **sets}
    return Population(
        make_children(members, loss, optimisation, engine=engine),
        {"part": Part.of(loss, controllers)},
        metric=metric or BalancedError(),
        preset=preset,
        every=EVERY,
        steps=steps,
        generator=generator(0, "minibatch"),
        tolerant=tolerant,
        restores=restores,
        **given,
    )


def assert_same_record(one: StepRecord, other: StepRecord) -> None:
    assert (one.step, one.iteration) == (other.step, other.iteration)
    for mine, theirs in (
        (one.loss, other.loss),
        (one.metric, other.metric),
        (one.selection, other.selection),
        *((one.logs[name], other.logs[name]) for name in ("reward", "entropy", "reset")),
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("evaluation", ["literal", "minibatch", "window"])
@pytest.mark.parametrize("name", ["default", "paper"])
@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_resumes_exactly(
    engine: str,
    name: str,
    evaluation: str,
    tmp_path: Path,
    assert_equal: Callable[[Any, Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_MINIBATCH", 20)
    preset = preset_named(name, evaluation=evaluation)

    def fresh(seed: int) -> Population:
        loss = AlignedLoss(10) if name == "default" else ClassCorrelationLoss(10)
        return build(engine, preset, loss, learners(loss, preset, seed=seed))

    whole, path = fresh(0), tmp_path / "population.ckpt"
    for _ in range(6):
        whole.step()
    save_checkpoint(path, whole.state_dict())
    resumed = fresh(1)
    resumed.load_state_dict(load_checkpoint(path)[0])
    for _ in range(2):
        assert_same_record(resumed.step(), whole.step())
    assert_equal(resumed.state_dict(), whole.state_dict())
    assert_equal(resumed.history, whole.history)
    assert torch.equal(resumed.best_errors, whole.best_errors)
    assert resumed.step_count == 8
    moved = whole.owners[0].controller.state_dict()
    assert len(moved["replay"]["matured"]) > 0
    assert not torch.equal(moved["phi"], fresh(0).owners[0].controller.phi)


def test_controllers_see_the_tie_breaker_and_records_do_not() -> None:
    metric, told = WorstClassRecall(), Constant(0.0, 0.0)
    record = build(metric=metric, controllers=[told, Constant(0.0)]).step()
    assert record.metric.tolist() == [0.0, 0.0, 0.0], "after three iterations no network knows every digit"
    assert torch.equal(told.seen[0].error, error(metric, record.metric)[:2])
    tie_breaker = told.seen[0].tie_breaker
    assert tie_breaker is not None
    assert -1 < tie_breaker[0] < 0
    assert tie_breaker[0] != tie_breaker[1]
    plain = Constant(0.0, 0.0)
    build(controllers=[plain, Constant(0.0)]).step()
    assert plain.seen[0].tie_breaker is None


def test_learns_while_it_trains() -> None:
    population = build()
    policy = population.owners[0].controller.policy  # type: ignore[attr-defined]
    before = [weight.clone() for weight in policy.parameters()]
    records = [population.step() for _ in range(8)]
    assert (records[-1].loss < records[0].loss).all()
    assert records[0].logs["reward"].isnan().all()
    assert records[1].logs["reward"].isfinite().all()
    assert not any(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_controllers_own_neighbouring_children_in_order() -> None:
    first, second = Constant(0.5), Constant(-0.5, 1.0)
    population = build(controllers=[first, second])
    record = population.step()
    phi, steps = population.history
    assert phi[0, :, 0].tolist() == [0.5, -0.5, 1.0]
    assert steps.tolist() == [1]
    assert torch.equal(torch.cat([first.seen[0].error, second.seen[0].error]), record.metric)
    assert torch.equal(record.logs["told"], record.metric)
    assert [len(second.seen[0].statistics), len(second.seen[0].sensitivity)] == [2, 2]


def test_each_child_trains_under_its_controllers_phi() -> None:
    alone = build(controllers=[Constant(0.0, 0.0, 0.0)])
    tilted = Constant(0.0, 0.0)
    tilted.phi = torch.stack([torch.zeros(10), torch.linspace(-2, 2, 10)])
    mixed = build(controllers=[Constant(0.0), tilted])
    for population in (alone, mixed):
        population.step()
    same = [
        torch.equal(alone.children.child_state(c, "raw")["layers.0.weight"], other["layers.0.weight"])
        for c in range(3)
        for other in [mixed.children.child_state(c, "raw")]
    ]
    assert same == [True, True, False]


def test_the_last_weights_are_those_that_were_measured() -> None:
    """A controller asks for copies after every step; after the last one they are not made, as nothing measures them."""
    copying = Constant(0.0, 0.0, 0.0)
    copying.parents = torch.tensor([2, 2, 2])
    population = build(controllers=[copying], steps=2)
    records = [population.step() for _ in range(2)]
    outputs = population.children.outputs([SELECTION.inputs] * 3, "averaged")
    measured = torch.stack([BalancedError()(child, SELECTION.targets) for child in outputs])
    assert torch.equal(measured, records[-1].selection)
    assert len(measured.unique()) > 1


def test_a_controller_moves_only_its_own_children() -> None:
    loss, preset = AlignedLoss(10), preset_named("default")
    one, other = learners(loss, preset), [*learners(loss, preset)[:1], Constant(0.0)]
    populations = build(controllers=one), build(controllers=other)
    for population in populations:
        for _ in range(7):
            population.step()
    a, b = (population.history[0] for population in populations)
    assert torch.equal(a[:, :2], b[:, :2])
    assert (a[1:, 2] != 0).any()
    assert not (b[:, 2] != 0).any()
    for child in range(2):
        mine, theirs = (population.children.child_state(child, "raw") for population in populations)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_silent_controller_tells_nan() -> None:
    population = build(controllers=[*learners(AlignedLoss(10), preset_named("default"), (2,)), Constant(0.0)])
    population.step()
    logs = population.step().logs
    assert logs["reward"].isnan().tolist() == [False, False, True]
    assert logs["told"].isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("name", ["default", "paper"])
def test_the_metric_is_equation_4(name: str) -> None:
    preset = preset_named(name, evaluations=3)
    metric = AUROC() if name == "paper" else BalancedError()
    population = build(preset=preset, controllers=[Constant(0.0, 0.0, 0.0)], metric=metric)
    twin = build(preset=preset, controllers=[Constant(0.0, 0.0, 0.0)], metric=metric).children
    values = []
    for _ in range(EVERY):
        twin.advance(1, torch.zeros(3, 10))
        outputs = twin.outputs([VALIDATION.inputs] * 3, "raw" if preset.weight_average is None else "averaged")
        values.append(torch.stack([metric(child, VALIDATION.targets) for child in outputs]))
    torch.testing.assert_close(population.step().metric, discounted_metric(torch.stack(values), preset.gamma))


@pytest.mark.parametrize("metric", [BalancedError(), AUROC()])
def test_best_weights_have_the_best_selection_metric(metric: Metric) -> None:
    population = build(metric=metric, engine="vmap")
    records = [population.step() for _ in range(6)]
    seen = torch.stack([record.selection for record in records])
    best = seen.amax(0) if metric.higher_is_better else seen.amin(0)
    outputs = population.children.outputs([SELECTION.inputs] * 3, "best")
    measured = torch.stack([metric(child, SELECTION.targets) for child in outputs])
    assert torch.equal(measured, best)
    assert torch.equal(population.best_errors, error(metric, best))


def test_progress_runs_to_one() -> None:
    controller = Constant(0.0, 0.0, 0.0)
    population = build(controllers=[controller], steps=4)
    for _ in range(4):
        population.step()
    assert [seen.progress for seen in controller.seen] == [0.25, 0.5, 0.75, 1.0]


def test_memory_is_released_after_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    population, rested = build(steps=3), list[int]()
    monkeypatch.setattr(population.children, "release_memory", lambda: rested.append(population.step_count))
    for _ in range(3):
        population.step()
    assert rested == [3]


def test_a_long_history_keeps_every_third_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "_NUMBERS", 100)  # 8 steps of 3 children with 10 parameters are 240
    population, resumed = build(), build()
    for _ in range(5):
        population.step()
    resumed.load_state_dict(population.state_dict())
    for _ in range(3):
        resumed.step()
    phi, steps = resumed.history
    assert steps.tolist() == [1, 4, 7]
    assert phi.shape == (3, 3, 10)


def test_no_history_before_the_first_step() -> None:
    phi, steps = build().history
    assert (phi.shape, len(steps)) == ((0, 3, 10), 0)


@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_a_loss_that_is_not_finite_names_the_step_and_the_child(engine: str) -> None:
    population = build(engine, spoiled={1: EVERY + 1})
    population.step()
    with pytest.raises(NonFiniteError, match="step 2: the training loss of child 1 is not finite"):
        population.step()


@pytest.mark.parametrize("engine", ["sequential", "fused"])
def test_a_tolerant_population_sets_failed_children_aside_and_continues(engine: str) -> None:
    population, whole = (build(engine, spoiled=spoiled, tolerant=True) for spoiled in ({1: EVERY + 1}, {}))
    for _ in range(3):
        record, expected = population.step(), whole.step()
    assert population.failed.tolist() == [False, True, False]
    assert record.loss.isnan().tolist() == [False, True, False]
    assert float(record.metric[1]) == pytest.approx(0.9), "ten classes, all outputs zero"
    torch.testing.assert_close(record.loss[[0, 2]], expected.loss[[0, 2]])
    again = build(engine, spoiled={1: 0}, tolerant=True)
    again.load_state_dict(population.state_dict())
    assert again.failed.tolist() == [False, True, False]


@pytest.mark.parametrize("engine", ["sequential", "fused"])
def test_who_failed_and_inherits_is_judged_again(engine: str) -> None:
    controller = Constant(0.0, 0.0, 0.0)
    population = build(engine, controllers=[controller], tolerant=True)
    population.step()
    broken = {name: weights * torch.nan for name, weights in population.children.training_state(1)["weights"].items()}
    population.children.load_training_state(1, {**population.children.training_state(1), "weights": broken})
    assert float(population.step().metric[1]) == pytest.approx(0.9), "ten classes, all outputs zero"
    controller.parents = torch.tensor([0, 0, 2])
    population.step()
    controller.parents = None
    record = population.step()
    assert record.loss.isfinite().all()
    assert float(record.metric[1]) < 0.8, "it goes on from the weights of child 0"
    assert population.failed.tolist() == [False, True, False], "it is still told that it failed"


def spoil(population: Population, child: int) -> None:
    """One child's weights are NaN, as after a NaN gradient."""
    state = population.children.training_state(child)
    broken = {name: weights * torch.nan for name, weights in state["weights"].items()}
    population.children.load_training_state(child, {**state, "weights": broken})


class TestRestored:
    """A child that diverges starts again from its best weights under its initial Φ, and others do not notice."""

    @pytest.mark.parametrize("engine", ["sequential", "vmap", "fused"])
    def test_it_trains_on_and_the_others_are_the_same(self, engine: str) -> None:
        constant = [Constant(0.5, 0.5, 0.5) for _ in range(2)]
        population, whole = (build(engine, controllers=[each], tolerant=True, restores=3) for each in constant)
        for other in (population, whole):
            other.step()
        best = population.children.child_state(1, "best")
        spoil(population, 1)
        record, expected = population.step(), whole.step()
        assert record.logs["restored"].tolist() == [0, 1, 0]
        assert record.loss.isnan().tolist() == [False, True, False]
        state = population.children.training_state(1)
        for name in state["weights"]:
            assert torch.equal(state["weights"][name], best[name])
        assert not any(momentum.any() for momentum in state["momenta"].values())
        record, expected = population.step(), whole.step()
        assert record.loss.isfinite().all()
        torch.testing.assert_close(record.loss[[0, 2]], expected.loss[[0, 2]])
        assert population.failed.tolist() == [False, True, False]

    def test_its_phi_is_the_initial_one(self) -> None:
        population = build(tolerant=True, restores=3, preset=preset_named("default", inherit_every=0, reset=None))
        for _ in range(3):
            population.step()
        spoil(population, 1)
        population.step()
        phi = torch.cat([owner.controller.phi for owner in population.owners])
        assert not phi[1].any()
        assert phi[[0, 2]].any()

    def test_it_is_retired_when_it_fails_again_and_again(self) -> None:
        population = build(tolerant=True, restores=2)
        seen = []
        for step in range(7):
            if step:
                spoil(population, 1)
            logs = population.step().logs
            seen.append([float(logs[name][1]) if name in logs else 0 for name in ("restored", "retired")])
        assert seen == [[0, 0], [1, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 0]]

    def test_one_without_finite_best_weights_is_retired_at_once(self) -> None:
        population = build(spoiled={1: 0}, tolerant=True, restores=2)
        assert population.step().logs["retired"].tolist() == [0, 1, 0]
        assert population.step().metric.isfinite().all()

    def test_a_metric_that_is_not_finite_for_one_child_is_no_reason_to_stop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        population, measure, calls = build(tolerant=True, restores=2), loop.measure, []

        def once_not_finite(metric: Metric, outputs: Tensor, targets: Tensor, step: int) -> Tensor:
            calls.append(outputs)
            if len(calls) == 1:
                raise NonFiniteError("its metric is not finite", child=1)
            return measure(metric, outputs, targets, step)

        monkeypatch.setattr(loop, "measure", once_not_finite)
        assert population.step().metric.isfinite().all()
        assert not calls[1][1].any()
        assert population.failed.tolist() == [False, True, False]

    def test_a_run_resumes_with_what_was_restored(self) -> None:
        whole, cut = (build(tolerant=True, restores=1) for _ in range(2))
        for population in (whole, cut):
            population.step()
            spoil(population, 1)
            population.step()
        resumed = build(tolerant=True, restores=1)
        resumed.load_state_dict(cut.state_dict())
        for population in (whole, resumed):
            spoil(population, 1)
        assert_same_record(resumed.step(), whole.step())
        for population in (whole, resumed):
            assert population.state_dict()["diverged"]["retired"].tolist() == [False, True, False]


def test_when_all_fail_even_a_tolerant_population_stops() -> None:
    population = build(spoiled={0: 1, 1: 1, 2: 1}, tolerant=True)
    with pytest.raises(NonFiniteError, match="step 1: the training loss of child 0 is not finite"):
        population.step()


@pytest.mark.parametrize("which", ["validation", "selection"])
def test_outputs_that_are_not_finite_name_the_step_and_the_child(which: str) -> None:
    broken = LabelledSet(VALIDATION.inputs.clone().index_fill_(0, torch.tensor(7), torch.inf), VALIDATION.targets)
    population = build(**{which: [VALIDATION, VALIDATION, broken]})
    with pytest.raises(NonFiniteError, match="step 1: the outputs of child 2 are not finite"):
        population.step()


def test_a_metric_that_is_not_finite_names_the_step_and_the_child() -> None:
    calls = iter(range(99))
    nan = FunctionMetric(lambda o, t: float("nan") if next(calls) == 1 else 0.5, higher_is_better=True, name="own")
    with pytest.raises(NonFiniteError, match="step 1: the metric of child 1 is not finite"):
        build(metric=nan).step()


@pytest.mark.parametrize("which", ["validation", "selection"])
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (VALIDATION.targets.clamp(max=8), "class 9 has no samples"),
        (VALIDATION.targets[:1], "it holds 1 samples; a metric needs at least 2"),
        (VALIDATION.targets.float(), r"labels have type torch.float32; convert them with .long\(\)"),
        (VALIDATION.targets + 1, "label 10 is out of range for num_classes=10"),
    ],
)
def test_labels_that_cannot_be_used_name_the_set(which: str, targets: Tensor, message: str) -> None:
    broken = LabelledSet(VALIDATION.inputs[: len(targets)], targets)
    with pytest.raises(InputError, match=f"{which}: {message}"):
        build(**{which: [broken] * 3})


@pytest.mark.parametrize("sets", [[VALIDATION] * 2, [VALIDATION, VALIDATION, labelled(DIGITS.subset(range(200, 250)))]])
def test_every_child_needs_a_set_of_one_size(sets: list[LabelledSet]) -> None:
    with pytest.raises(InputError, match="validation: give one set for each of 3 children, all of one size"):
        build(validation=sets)


@pytest.mark.parametrize(("value", "shown"), [(3.5, "3.5"), (float("nan"), "nan")])
def test_a_phi_out_of_range_is_refused_before_anything_trains(value: float, shown: str) -> None:
    population = build(controllers=[Constant(0.0, 0.0, value)])
    with pytest.raises(InputError, match=rf"phi: parameter '0' is {shown}, outside its range \[-3, 3\]"):
        population.step()
    assert population.children.iteration == 0


def test_a_phi_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="phi has shape"):
        build(controllers=[Constant(0.0, 0.0, 0.0, parameters=4)]).step()


def test_controllers_must_own_all_children() -> None:
    with pytest.raises(InputError, match=r"controllers own the children \[0, 1\], but 3 train"):
        build(controllers=[Constant(0.0, 0.0)])


def test_a_metric_that_the_sensitivity_calls_many_times_is_named_once_a_run() -> None:
    slow = FunctionMetric(lambda o, t: float((o.argmax(-1) == t).float().mean()), higher_is_better=True, name="slow")
    population = build(metric=slow)
    with pytest.warns(UserWarning, match="metric 'slow' is called up to 60 times more at every move") as said:
        population.step()
    assert len(said) == 1
    population.step()  # a warning would be an error here
    resumed = build(metric=slow)
    resumed.load_state_dict(population.state_dict())
    resumed.step()
    build(metric=slow, preset=preset_named("default", sensitivity=False)).step()
