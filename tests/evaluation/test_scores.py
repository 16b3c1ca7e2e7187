"""Scores are means over children, by method and seed, of the split that is asked for."""

import numpy as np
import pytest
import torch

from lossalign.evaluation import score
from lossalign.evaluation.scores import spread


def test_children_of_one_policy_are_averaged_before_anything_else(one_step):
    experiment = one_step("fixed", "ala", seeds=2, children=3)
    record = experiment.populations["mlp-16"].step()
    values = score(experiment, final=False).last["fixed"]
    arms = [arm for arm in experiment.arms if arm.method == "fixed"]
    assert values == pytest.approx([float(record.selection[arm.rows].mean()) for arm in arms])


def test_there_is_one_value_for_each_method_and_seed(one_step):
    scores = score(one_step("fixed", "ala", "best-of-ala", seeds=3), final=True)
    assert list(scores.best) == list(scores.last) == ["fixed", "ala", "best-of-ala"]
    assert all(values.shape == (3,) for values in (*scores.best.values(), *scores.last.values()))


def test_the_training_error_is_of_the_methods_that_train(one_step):
    experiment = one_step("fixed", "post-hoc-offsets")
    train = score(experiment, final=False).train
    assert list(train) == ["fixed"]
    data, children = experiment.data[0], experiment.populations["mlp-16"].children
    inputs = (data.train.load().inputs * data.transform.scale - data.transform.mean) / data.transform.std
    wrong = children.outputs([inputs] * 2, "best").argmax(-1) != data.train.targets
    assert train["fixed"] == pytest.approx([float(wrong.float().mean())])


def test_metric_learning_has_no_training_error_and_classification_no_collapse(one_step, retrieving):
    assert score(retrieving, final=False).train == {}
    assert score(one_step("fixed"), final=False).collapsed == {}


def test_without_pairs_nothing_is_scored_over_them(retrieving):
    assert score(retrieving, final=True).pairs == {}


@pytest.mark.parametrize(("scale", "point", "collapsed"), [(1.0, 0.0, False), (0.01, 1.0, True), (0.0, 1.0, True)])
def test_spread_tells_a_point_from_a_cloud(scale, point, collapsed):
    embeddings = torch.randn(1200, 5, generator=torch.Generator().manual_seed(0))
    assert (float(spread(point + scale * embeddings)) < 0.05) is collapsed


def test_children_that_collapsed_are_counted(retrieving, monkeypatch):
    assert score(retrieving, final=False).collapsed == {}
    children = next(iter(retrieving.populations.values())).children
    outputs = children.outputs

    def at_a_point(inputs, weights):
        found = outputs(inputs, weights)
        for arm in [arm for arm in retrieving.arms if arm.method == "ala" and weights == "best"]:
            found[arm.start] = torch.eye(found.shape[-1])[0]
        return found

    monkeypatch.setattr(children, "outputs", at_a_point)
    assert score(retrieving, final=False).collapsed == {"ala": 2}


def test_children_that_failed_are_not_counted_as_collapsed(retrieving, monkeypatch):
    population = next(iter(retrieving.populations.values()))
    children, outputs = population.children, population.children.outputs

    def not_finite(inputs, weights):
        found = outputs(inputs, weights).clone()
        found[0] = torch.nan
        return found

    monkeypatch.setattr(children, "outputs", not_finite)
    monkeypatch.setattr(population._diverged, "failed", torch.arange(children.count) == 0)
    assert score(retrieving, final=False).collapsed == {}


def test_selected_weights_are_not_the_last(one_step):
    experiment = one_step("fixed")
    population = experiment.populations["mlp-16"]
    for _ in range(9):
        population.step()
    population.children.keep_best(torch.zeros(population.children.count, dtype=torch.bool))
    scores = score(experiment, final=False)
    assert np.isfinite(scores.best["fixed"]).all()
    assert scores.best["fixed"][0] <= scores.last["fixed"][0] + 1e-6
