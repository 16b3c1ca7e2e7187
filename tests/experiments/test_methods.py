"""Each method does what its name says: which Φ it trains under, and on which data it may look."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from lossalign.control import Policy
from lossalign.core import InputError
from lossalign.experiments import METHODS, fit, results
from lossalign.experiments import score as score_module
from lossalign.experiments.populations import build
from lossalign.experiments.recipes import recipe_for
from lossalign.losses import AlignedLoss
from lossalign.rivals import rescaled

SMALL = {"iterations": 100, "children": 2, "seeds": 1}


def phi_of(method, step):
    """Φ of the groups weights and offsets under which a step trained, of the first child."""
    experiment = build(recipe_for("digits-lt", methods=(method, "logit-adjustment", "inverse-frequency"), **SMALL))
    population, spec = experiment.populations["aligned"], experiment.losses["aligned"].spec
    for _ in range(step):
        population.step()
    phi = population.history[0][step - 1][0]
    return {name: phi[where] for name, where in spec.slices.items()}, experiment.counts


@pytest.mark.parametrize(("step", "on"), [(1, False), (8, False), (9, True), (10, True)])
def test_deferred_reweighting_starts_at_four_fifths(step, on):
    phi, _ = phi_of("deferred-reweighting", step)
    assert bool((phi["weights"] != 0).any()) is on


def test_designed_losses_follow_the_class_counts():
    phi, counts = phi_of("fixed", 1)
    assert not phi["weights"].any()
    assert not phi["offsets"].any()
    experiment = build(recipe_for("digits-lt", methods=("inverse-frequency", "logit-adjustment"), **SMALL))
    log_counts = counts.float().log()
    centred = log_counts - log_counts.mean()
    weights, offsets = (experiment.controller(arm).phi[0] for arm in experiment.arms)
    slices = experiment.losses["aligned"].spec.slices
    torch.testing.assert_close(weights[slices["weights"]], -centred)
    torch.testing.assert_close(offsets[slices["offsets"]], centred)


def test_class_weights_are_normalised_by_the_training_frequencies():
    loss = build(recipe_for("digits-lt", methods=("inverse-frequency",), **SMALL)).losses["aligned"]
    assert isinstance(loss, AlignedLoss)
    assert loss.frequencies[0] / loss.frequencies[9] == pytest.approx(20)


@pytest.mark.parametrize("final", [False, True])
def test_offsets_are_never_fitted_on_the_split_they_are_scored_on(monkeypatch, final):
    experiment = build(recipe_for("digits-lt", methods=("fixed", "post-hoc-offsets"), **SMALL))
    experiment.populations["aligned"].step()
    sizes = []

    def spy(outputs, targets, error):
        sizes.append(len(targets))
        return torch.zeros(10)

    monkeypatch.setattr(score_module, "fit_offsets", spy)
    score_module.score(experiment, final=final)
    reward, selection = len(experiment.data[0].reward.targets), len(experiment.data[0].selection.targets)
    assert set(sizes) == {reward + selection if final else reward}


def test_post_hoc_offsets_change_nothing_but_the_outputs_of_fixed(monkeypatch):
    experiment = build(recipe_for("digits-lt", methods=("fixed", "post-hoc-offsets"), **SMALL))
    experiment.populations["aligned"].step()
    monkeypatch.setattr(score_module, "fit_offsets", lambda outputs, targets, error: torch.zeros(10))
    scores = score_module.score(experiment, final=False)
    assert scores.best["post-hoc-offsets"] == scores.best["fixed"]


def test_the_best_weights_are_of_the_child_that_selection_likes_best(tmp_path):
    fit("digits-lt", out=tmp_path / "run", methods=("fixed", "ala"), **{**SMALL, "children": 6, "seeds": 2})
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    arms = json.loads((tmp_path / "run" / "arms.json").read_text())
    best = {}
    for arm in [arm for arm in arms if arm["method"] == "ala"]:
        for child in range(arm["children"]):
            best[arm["seed"], child] = min(row["selection"][arm["start"] + child] for row in rows)
    with safe_open(tmp_path / "run" / "best.safetensors", framework="pt") as file:
        described = json.loads(file.metadata()["lossalign"])
    assert described["method"] == "ala"
    assert best[described["seed"], described["child"]] == min(best.values())


@pytest.mark.parametrize("loss", ["class-correlation", "log-class-correlation", "aligned"])
@pytest.mark.parametrize("preset", ["paper", "default"])
def test_any_loss_runs_under_any_preset(loss, preset):
    experiment = build(recipe_for("digits-lt", loss=loss, preset=preset, methods=("fixed", "ala"), **SMALL))
    assert list(experiment.populations) == [loss]
    experiment.populations[loss].step()


def test_a_fraction_for_validation_replaces_the_numbers_per_class():
    data = build(recipe_for("digits", largest=None, validation_fraction=0.1, **SMALL)).data[0]
    assert len(data.reward.targets) == pytest.approx(180, abs=5)
    assert len(data.train) > 1200


def test_every_method_has_a_controller_or_starts_from_one():
    for method in METHODS.values():
        assert (method.controller is None) == (method.derived is not None)
        assert bool(method.after) == (method.derived is not None or method.refits)


class TestWrittenMethods:
    def test_switches_give_a_method_a_preset_of_its_own(self):
        methods = ("fixed", "ala", "ala:returns=1", "ala:groups=weights,offsets")
        experiment = build(recipe_for("digits-lt", methods=methods, **SMALL))
        assert list(experiment.populations) == ["aligned"]
        assert {arm.method for arm in experiment.arms} == set(methods)
        for _ in range(4):
            experiment.populations["aligned"].step()
        weights = experiment.losses["aligned"].spec.slices["weights"]
        moved = {arm.method: bool(experiment.controller(arm).phi[:, weights].any()) for arm in experiment.arms}
        assert moved == {"fixed": False, "ala": False, "ala:returns=1": False, "ala:groups=weights,offsets": True}

    def test_what_is_measured_in_another_way_is_a_population_of_its_own(self):
        methods = ("fixed", "ala", "ala:evaluations=3", "ala:average=4,evaluations=3")
        experiment = build(recipe_for("digits-lt", methods=methods, **SMALL))
        names = {arm.method: arm.population for arm in experiment.arms}
        assert names["fixed"] == names["ala"] == "aligned"
        assert names["ala:evaluations=3"] == "aligned-evaluations=3"
        assert names["ala:average=4,evaluations=3"] == "aligned-average=4.0-evaluations=3"

    def test_and_val_trains_on_the_reward_split_too_and_leaves_the_others_alone(self):
        settings = {**SMALL, "methods": ("fixed", "fixed+val", "logit-adjustment+val")}
        among, alone = (
            build(recipe_for("digits-lt", **{**settings, "methods": m})) for m in (settings["methods"], ("fixed",))
        )
        for experiment in (among, alone):
            experiment.populations["aligned"].step()
        children, single = among.populations["aligned"].children, alone.populations["aligned"].children
        arms = {arm.method: arm for arm in among.arms}
        plain, more = (children.child_state(arms[name].start, "raw") for name in ("fixed", "fixed+val"))
        assert any(not torch.equal(plain[name], more[name]) for name in plain)
        for name, tensor in single.child_state(0, "raw").items():
            torch.testing.assert_close(plain[name], tensor)
        counts = among.data[0].splits.train_and_reward.counts.float().log()
        offsets = among.losses["aligned"].spec.slices["offsets"]
        told = among.controller(arms["logit-adjustment+val"]).phi[0][offsets]
        torch.testing.assert_close(told, counts - counts.mean())

    @pytest.mark.parametrize(
        ("written", "sentence"),
        [
            ("nobody", "method 'nobody' is unknown"),
            ("ala+val", "looks at that split"),
            ("proportional-rule+val", "looks at that split"),
            ("best-of-fixed:returns=1", "has no switches"),
            ("ala:nothing=1", "switch 'nothing=1'"),
            ("guarded-ala", "add it to the methods"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, written, sentence):
        with pytest.raises(InputError, match=re.escape(sentence)):
            build(recipe_for("digits-lt", methods=("fixed", written), **SMALL))


class TestGuard:
    def scored(self, errors):
        methods = ("ala", "fixed", "guarded-ala", "best-of-fixed")
        experiment = build(recipe_for("digits-lt", methods=methods, **{**SMALL, "seeds": 2}))
        population = experiment.populations["aligned"]
        population.step()
        for arm in experiment.arms:
            population._best[arm.rows] = errors[arm.method, arm.seed]
        return experiment, score_module.score(experiment, final=False)

    def test_it_keeps_what_the_selection_split_prefers_policy_by_policy(self):
        half = torch.tensor([0.5, 0.5])
        errors = {("ala", 0): half, ("fixed", 0): half + 0.1, ("ala", 1): half, ("fixed", 1): half - 0.1}
        experiment, scores = self.scored(errors)
        assert [score_module.kept(experiment, seed).method for seed in (0, 1)] == ["ala", "fixed"]
        assert scores.best["guarded-ala"].tolist() == [scores.best["ala"][0], scores.best["fixed"][1]]

    def test_in_doubt_it_does_not_adapt(self):
        errors = {(method, seed): torch.tensor([0.5, 0.5]) for method in ("ala", "fixed") for seed in (0, 1)}
        experiment, _ = self.scored(errors)
        assert {score_module.kept(experiment, seed).method for seed in (0, 1)} == {"fixed"}

    def test_the_best_child_alone_is_scored(self):
        errors = {(method, seed): torch.tensor([0.5, 0.4]) for method in ("ala", "fixed") for seed in (0, 1)}
        experiment, scores = self.scored(errors)
        arm = next(arm for arm in experiment.arms if (arm.method, arm.seed) == ("fixed", 0))
        outputs = experiment.populations["aligned"].children.outputs(
            [experiment.data[a.seed].selection.inputs for a in experiment.arms for _ in range(a.children)], "best"
        )
        value = experiment.metric(outputs[arm.start + 1], experiment.data[0].selection.targets)
        assert scores.best["best-of-fixed"][0] == pytest.approx(float(value))


class TestRecipeFiles:
    def test_a_file_is_a_task_with_fields(self, tmp_path):
        file = tmp_path / "mine.toml"
        file.write_text('task = "digits-lt"\nchildren = 3\nmethods = ["fixed", "ala:returns=1"]\n')
        assert recipe_for(str(file)) == recipe_for("digits-lt", children=3, methods=("fixed", "ala:returns=1"))
        assert recipe_for(str(file), children=4).children == 4

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("children = 3", "must name its task"),
            ('task = "other.toml"', "must name its task"),
            ("task = ", "is not TOML"),
            ('task = "digits"\n[more]\nx = 1', "'more' is a table"),
            ('task = "digits"\nchild = 1', "'child' is not a field of a run"),
        ],
    )
    def test_a_wrong_file_is_one_sentence(self, tmp_path, text, sentence):
        file = tmp_path / "wrong.toml"
        file.write_text(text)
        with pytest.raises(InputError, match=re.escape(sentence)):
            recipe_for(str(file))

    def test_a_missing_file_is_one_sentence(self):
        with pytest.raises(InputError, match="cannot be read"):
            recipe_for("missing.toml")


def test_a_refit_trains_last_on_both_splits_under_what_ala_learned():
    experiment = build(recipe_for("digits-lt", methods=("refit-ala", "fixed", "ala"), **SMALL))
    assert list(experiment.populations) == ["aligned", "aligned-refit"]
    first, second = experiment.populations.values()
    for _ in range(first.steps):
        first.step()
    for _ in range(3):
        second.step()
    arm = next(arm for arm in experiment.arms if arm.method == "ala")
    learned = first.history[0][:, arm.rows].mean(1)
    data = experiment.data[0]
    expected = rescaled({"offsets": learned}, data.train.counts, data.splits.train_and_reward.counts)["offsets"]
    torch.testing.assert_close(second.history[0][:3, 0], expected[:3])
    assert second.history[0][2].any()


def test_a_method_may_start_from_a_policy_of_its_own(tmp_path):
    fit("digits-lt", out=tmp_path / "run", **{**SMALL, "children": 4})
    file = tmp_path / "run" / "policy-0.safetensors"
    methods = ("ala", f"ala:policy={file}", f"ala:policy={file},freeze=true")
    experiment = build(recipe_for("digits-lt", methods=methods, **SMALL))
    fresh, warm, frozen = (experiment.controller(arm) for arm in experiment.arms)
    given = Policy.load(file).state_dict()
    for _ in range(8):
        experiment.populations["aligned"].step()
    same = [all(torch.equal(c.policy.state_dict()[n], t) for n, t in given.items()) for c in (fresh, warm, frozen)]
    assert same == [False, False, True]
    with pytest.raises(InputError, match="freeze is true or false"):
        build(recipe_for("digits-lt", methods=("ala:freeze=1",), **SMALL))


@pytest.fixture
def photos(tmp_path):
    """Three classes of twenty images."""
    for name, shade in (("a", 40), ("b", 120), ("c", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (8, 8), (shade, i, 0)).save(tmp_path / "photos" / name / f"{i}.png")
    return f"images:{tmp_path / 'photos'}"


@pytest.mark.parametrize(
    ("changes", "pretrained"),
    [
        ({}, False),
        ({"ratio": 2.0}, True),
        ({"ratio": 2.0, "policy": "none"}, False),
        ({"policy": "pretrained"}, True),
        ({"ratio": 2.0, "switches": ("sensitivity=false",)}, False),
        ({"ratio": 2.0, "switches": ("groups=weights",)}, False),
        ({"ratio": 2.0, "preset": "paper"}, False),
    ],
)
def test_long_tailed_images_start_from_the_policy_that_comes_with_lossalign(photos, changes, pretrained):
    small = {**SMALL, "image_size": 8, "model": "mlp-4", "device": "cpu", "iterations": 10, "every": 10}
    experiment = build(recipe_for(photos, **small, **changes))
    mine, given = experiment.controller(experiment.arms[0]).policy.state_dict(), Policy.pretrained().state_dict()
    same = all(mine[name].shape == tensor.shape and torch.equal(mine[name], tensor) for name, tensor in given.items())
    assert same is pretrained


def test_digits_start_from_nothing_as_the_policy_was_learned_on_them():
    first, second = (build(recipe_for("digits-lt", policy=name, **SMALL)) for name in ("auto", "none"))
    mine, other = (each.controller(each.arms[0]).policy.state_dict() for each in (first, second))
    assert all(torch.equal(mine[name], tensor) for name, tensor in other.items())


def test_the_pretrained_policy_helps_splits_it_has_not_seen(tmp_path):
    settings = {"seed": 9100, "seeds": 4, "children": 4, "every": 5, "policy": "pretrained", "freeze": True}
    result = fit("digits-lt", out=tmp_path / "run", methods=("fixed", "ala"), **settings)
    assert result.rows["ala"].mean < result.rows["fixed"].mean - 0.02


def test_a_pretrained_policy_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="it was learned on states with"):
        build(recipe_for("digits-lt", policy="pretrained", loss="ranking", metric="aucpr", **SMALL))


def test_rivals_that_know_the_costs_need_a_metric_of_costs(tmp_path):
    costs = torch.ones(10, 10) - torch.eye(10)
    costs[0] *= 5
    np.savetxt(tmp_path / "costs.csv", costs.numpy(), delimiter=",")
    methods = ("fixed", "cost-weighted", "bayes-decision")
    settings = {**SMALL, "methods": methods, "metric": f"mean-cost:{tmp_path / 'costs.csv'}"}
    result = fit("digits-lt", out=tmp_path / "run", **settings)
    assert set(result.rows) == set(methods)
    assert result.rows["bayes-decision"].mean != result.rows["fixed"].mean
    for method in ("cost-weighted", "bayes-decision"):
        with pytest.raises(InputError, match="needs costs"):
            build(recipe_for("digits-lt", methods=("fixed", method), **SMALL))


@pytest.mark.parametrize(
    ("preferred", "methods", "kept"),
    [
        ("ala", ("ala", "refit-ala"), "refit-ala"),
        ("ala", ("ala", "fixed", "guarded-ala", "refit-ala"), "refit-ala"),
        ("fixed", ("ala", "fixed", "guarded-ala", "refit-ala"), "fixed"),
        ("fixed", ("ala", "fixed"), "ala"),
    ],
)
def test_whose_weights_a_run_leaves(preferred, methods, kept):
    experiment = build(recipe_for("digits-lt", methods=methods, **SMALL))
    for arm in experiment.arms:
        experiment.populations[arm.population]._best[arm.rows] = 0.1 if arm.method == preferred else 0.2
    assert results._best(experiment).arm.method == kept


def test_a_method_can_have_children_of_its_own_number(tmp_path):
    two = SMALL | {"seeds": 2}
    few = fit("digits-lt", out=tmp_path / "few", methods=("fixed", "logit-adjustment:children=1", "ala"), **two)
    arms = json.loads((tmp_path / "few" / "arms.json").read_text())
    assert [arm["children"] for arm in arms] == [2, 1, 2] * 2
    assert [arm["start"] for arm in arms] == [0, 2, 3, 5, 7, 8]
    every = fit("digits-lt", out=tmp_path / "every", methods=("fixed", "logit-adjustment", "ala"), **two)
    for method in ("fixed", "ala"):
        assert few.rows[method].mean == pytest.approx(every.rows[method].mean, abs=1e-6)


@pytest.mark.parametrize("children", ["0", "-1", "two"])
def test_a_number_of_children_that_is_none_is_named(children):
    with pytest.raises(InputError, match=re.escape(f"'ala:children={children}': children is a number, at least 1.")):
        build(recipe_for("digits-lt", methods=(f"ala:children={children}",), **SMALL))
