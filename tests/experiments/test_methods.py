"""Each method does what its name says: which Φ it trains under, and on which data it may look."""

import json

import pytest
import torch
from safetensors import safe_open

from lossalign.experiments import METHODS, fit
from lossalign.experiments import score as score_module
from lossalign.experiments.populations import build
from lossalign.experiments.recipes import recipe_for
from lossalign.losses import AlignedLoss

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
        assert (method.controller is None) == (method.after is not None)
