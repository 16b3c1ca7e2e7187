"""Methods are judged on the split that is scored, and fitted on none of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.core import InputError
from lossalign.evaluation import score
from lossalign.evaluation.judge import Judge, selection_errors
from lossalign.experiments import build, configure, labelled
from lossalign.experiments.methods import combined, derived
from lossalign.experiments.methods.derived import Guard
from lossalign.metrics import all_pairs, balanced_threshold

GUARD = Guard("ala", "fixed")


@pytest.mark.parametrize("final", [False, True])
def test_offsets_are_never_fitted_on_the_split_they_are_scored_on(monkeypatch, one_step, final):
    experiment, fitted_on = one_step("fixed", "post-hoc-offsets"), []

    def spy(outputs, targets, errors):
        fitted_on.append(len(targets))
        return torch.zeros(10)

    monkeypatch.setattr(derived, "fit_offsets", spy)
    score(experiment, final=final)
    validation, selection = (len(getattr(experiment.data[0], name).targets) for name in ("validation", "selection"))
    assert set(fitted_on) == {validation + selection if final else validation}


def test_offsets_of_the_validation_split_alone_are_fitted_on_nothing_else(monkeypatch, one_step):
    experiment, fitted_on = one_step("fixed", "post-hoc-validation"), []
    monkeypatch.setattr(derived, "fit_offsets", lambda o, targets, e: fitted_on.append(len(targets)) or torch.zeros(10))
    score(experiment, final=True)
    assert set(fitted_on) == {len(experiment.data[0].validation.targets)}


def test_post_hoc_offsets_change_nothing_but_the_outputs_of_fixed(monkeypatch, one_step):
    experiment = one_step("fixed", "post-hoc-offsets")
    monkeypatch.setattr(derived, "fit_offsets", lambda outputs, targets, errors: torch.zeros(10))
    scores = score(experiment, final=False)
    assert scores.best["post-hoc-offsets"] == scores.best["fixed"]


@pytest.mark.parametrize("final", [False, True])
def test_a_decision_never_sees_the_scored_split(monkeypatch, one_step, final):
    experiment, fitted_on = one_step("fixed", "fixed+decision", "ensemble-fixed+decision"), []
    fit = combined.Decision.fit
    monkeypatch.setattr(
        combined.Decision, "fit", lambda z, y, *rest, **more: fitted_on.append(y.clone()) or fit(z, y, *rest, **more)
    )
    score(experiment, final=final)
    parts = [getattr(experiment.data[0], name).targets for name in ("validation", *["selection"] * final)]
    assert all(torch.equal(labels, torch.cat(parts)) for labels in fitted_on)
    assert len(fitted_on) == 2 * 2 + 2 * 1, "children and their ensemble, under two weights each, once"


def test_ensembles_and_decisions_are_scored_like_any_method(one_step):
    methods = ("fixed", "fixed+decision", "ensemble-fixed", "ensemble-fixed+decision")
    experiment = one_step(*methods, "fixed+val", "fixed+val+decision", seeds=2, children=1)
    scores = score(experiment, final=True)
    assert (scores.best["ensemble-fixed"] == scores.best["fixed"]).all()
    assert (scores.last["ensemble-fixed"] == scores.last["fixed"]).all()
    assert all(len(values) == 2 for values in scores.best.values())
    assert set(scores.best) == {*methods, "fixed+val", "fixed+val+decision"}


def test_the_scored_split_is_the_selection_split_until_the_end(one_step):
    experiment = one_step("fixed")
    data = experiment.data[0]
    for final, part in ((False, data.splits.selection), (True, data.test)):
        assert torch.equal(Judge(experiment, "best", final).targets(0, "scored"), part.targets)


def test_a_judge_runs_every_network_once_on_every_split(monkeypatch, one_step):
    experiment = one_step("fixed", "ala", "post-hoc-offsets", "best-of-fixed")
    children, calls = experiment.populations["mlp-16"].children, []
    outputs = children.outputs
    monkeypatch.setattr(children, "outputs", lambda *args: calls.append(1) or outputs(*args))
    judge = Judge(experiment, "best", final=False)
    assert {method for method, _ in judge.values} == {"fixed", "ala", "post-hoc-offsets", "best-of-fixed"}
    assert len(calls) == 2, "the scored split, which is the selection split, and the validation split"


def test_the_value_of_a_method_is_the_metric_of_its_own_children(one_step):
    experiment = one_step("fixed", "ala", seeds=2)
    judge = Judge(experiment, "best", final=False)
    for arm in experiment.arms:
        outputs = judge.outputs(arm.method, arm.seed, "scored")
        targets = judge.targets(arm.seed, "scored")
        expected = [float(experiment.metric(each, targets)) for each in outputs]
        assert judge.value(arm.method, arm.seed).tolist() == pytest.approx(expected)


def test_the_best_child_alone_is_scored(one_step, preferring):
    experiment = one_step("fixed", "best-of-fixed", seeds=2)
    preferring(experiment, {("fixed", seed): [0.5, 0.4] for seed in (0, 1)})
    values = Judge(experiment, "best", final=False).values
    for seed in (0, 1):
        assert values["best-of-fixed", seed] == values["fixed", seed][1]


def test_the_best_child_scores_what_its_outputs_do(one_step, preferring):
    experiment = one_step("ala", "fixed", "best-of-fixed")
    preferring(experiment, {("ala", 0): [0.5, 0.4], ("fixed", 0): [0.5, 0.4]})
    arm = experiment.arm("fixed", 0)
    outputs = experiment.populations["mlp-16"].children.outputs([experiment.data[0].selection.inputs] * 4, "best")
    value = experiment.metric(outputs[arm.start + 1], experiment.data[0].selection.targets)
    assert score(experiment, final=False).best["best-of-fixed"][0] == pytest.approx(float(value))


class TestGuard:
    METHODS = ("ala", "fixed", "guarded-ala")

    def test_it_keeps_what_the_selection_split_prefers_seed_by_seed(self, one_step, preferring):
        experiment = one_step(*self.METHODS, seeds=2)
        preferring(experiment, {("ala", 0): 0.5, ("fixed", 0): 0.6, ("ala", 1): 0.5, ("fixed", 1): 0.4})
        judge = Judge(experiment, "best", final=False)
        assert [GUARD.keeps(judge, seed) for seed in (0, 1)] == ["ala", "fixed"]
        scores = score(experiment, final=False)
        assert scores.best["guarded-ala"].tolist() == [scores.best["ala"][0], scores.best["fixed"][1]]

    def test_in_doubt_it_does_not_adapt(self, one_step, preferring):
        experiment = one_step(*self.METHODS, seeds=2)
        preferring(experiment, {(method, seed): 0.5 for method in ("ala", "fixed") for seed in (0, 1)})
        judge = Judge(experiment, "best", final=False)
        assert {GUARD.keeps(judge, seed) for seed in (0, 1)} == {"fixed"}

    def test_the_mean_over_children_decides(self, one_step, preferring):
        experiment = one_step(*self.METHODS)
        preferring(experiment, {("ala", 0): [0.1, 0.7], ("fixed", 0): [0.3, 0.3]})
        assert GUARD.keeps(Judge(experiment, "best", final=False), 0) == "fixed"


def test_costs_change_decisions_after_training(one_step, tmp_path):
    costs = 1 - np.eye(10)
    costs[0] *= 5
    np.savetxt(tmp_path / "costs.csv", costs, delimiter=",")
    experiment = one_step("fixed", "bayes-decision", metric=f"mean-cost:{tmp_path / 'costs.csv'}")
    scores = score(experiment, final=False)
    assert scores.best["bayes-decision"] != scores.best["fixed"]
    with pytest.raises(InputError, match="needs costs"):
        one_step("fixed", "bayes-decision")


def test_selection_errors_are_those_of_the_arm(one_step, preferring):
    experiment = one_step("fixed", "ala")
    preferring(experiment, {("fixed", 0): [0.1, 0.2], ("ala", 0): [0.3, 0.4]})
    assert selection_errors(experiment, experiment.arm("ala", 0)).tolist() == pytest.approx([0.3, 0.4])


def test_a_failed_child_counts_with_zeros_and_spoils_no_other(monkeypatch, one_step):
    experiment = one_step("fixed", "ala")
    population = experiment.populations["mlp-16"]
    before = Judge(experiment, "best", final=False).of_population("mlp-16", "scored")
    outputs = population.children.outputs

    def spoiled(inputs, weights):
        found = outputs(inputs, weights).clone()
        found[0] = torch.nan
        return found

    monkeypatch.setattr(population.children, "outputs", spoiled)
    population.failed[0] = True
    after = Judge(experiment, "best", final=False).of_population("mlp-16", "scored")
    assert not after[0].any()
    torch.testing.assert_close(after[1:], before[1:])


PAIRS = ("Person_10 1 2", "Person_11 1 3", "Person_10 1 Person_11 1", "Person_10 3 Person_11 4")


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """A tiny LFW: twelve people with four images; two of them are tested with four pairs."""
    draw, root = np.random.default_rng(0), tmp_path / "data" / "lfw"
    people = [f"Person_{c:02d}" for c in range(12)]
    for c, name in enumerate(people):
        (root / name).mkdir(parents=True)
        for i in range(1, 5):
            pixels = draw.integers(0, 30, (8, 8, 3)) + 18 * c
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{name}_{i:04d}.jpg")
    lines = {
        "peopleDevTrain.txt": ["10", *(f"{name}\t4" for name in people[:10])],
        "peopleDevTest.txt": ["2", *(f"{name}\t4" for name in people[10:])],
        "pairsDevTest.txt": ["2", *(pair.replace(" ", "\t") for pair in PAIRS)],
    }
    for name, text in lines.items():
        (root / name).write_text("\n".join(text) + "\n")
    return tmp_path / "data"


def test_faces_are_tested_by_the_published_pairs_at_a_distance_of_the_selection_split(faces):
    settings = {"data": str(faces), "image_size": 8, "model": "mlp-16+unit", "embedding": 8, "crop": 0, "flip": False}
    held_out = {"validation_classes": 3, "selection_classes": 3, "batch_size": 8, "per_class": 2, "device": "cpu"}
    small = {"iterations": 100, "every": 10, "children": 2, "methods": ("fixed", "ala", "guarded-ala")}
    experiment = build(configure("lfw", {**settings, **held_out, **small}))
    assert len(experiment.data[0].test) == 6
    for _ in range(10):
        next(iter(experiment.populations.values())).step()
    data, children = experiment.data[0], next(iter(experiment.populations.values())).children
    test = labelled(data.test, data.transform, torch.device("cpu"))
    expected = []
    for child in range(2):
        seen = children.outputs([data.selection.inputs] * 4, "best")[child]
        threshold = balanced_threshold(*all_pairs(seen, data.selection.targets))
        shown = children.outputs([test.inputs] * 4, "best")[child]
        alike = {
            pair: (shown[pair[0]] - shown[pair[1]]).norm() <= threshold for pair in ((0, 1), (3, 4), (0, 3), (2, 5))
        }
        expected.append(sum(said == (pair[0] // 3 == pair[1] // 3) for pair, said in alike.items()) / 4)
    scores = score(experiment, final=True)
    assert scores.best["fixed"][0] == pytest.approx(float(sum(expected)) / 2)
    assert scores.pairs["fixed"].shape == (4,), "one share of the networks for each published pair"
    for method in ("fixed", "ala", "guarded-ala"):
        assert scores.pairs[method].mean() == pytest.approx(scores.best[method][0])
    assert score(experiment, final=False).pairs == {}
