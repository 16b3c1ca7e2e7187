"""Runs that are built and trained for a few steps, and a way to choose what the selection split says of them."""

import pytest
import torch

from lossalign.experiments import build, configure

SMALL = {"iterations": 100, "children": 2, "seeds": 1}


@pytest.fixture
def one_step():
    """A run on digits-lt of which every population has taken one step."""

    def make(*methods, **changes):
        experiment = build(configure("digits-lt", {**SMALL, "methods": methods, **changes}))
        for population in experiment.populations.values():
            population.step()
        return experiment

    return make


@pytest.fixture
def preferring():
    """Make the selection split say ``errors`` of the children of each method and seed."""

    def change(experiment, errors):
        for arm in experiment.arms:
            chosen = torch.as_tensor(errors[arm.method, arm.seed])
            experiment.populations[arm.population].best_errors[arm.rows] = chosen
        return experiment

    return change


@pytest.fixture(scope="module")
def retrieving():
    """A small run of metric learning after four steps."""
    small = {"iterations": 40, "every": 10, "children": 2, "seeds": 2, "methods": ("fixed", "ala"), "device": "cpu"}
    experiment = build(configure("digits-retrieval", small))
    for _ in range(4):
        next(iter(experiment.populations.values())).step()
    return experiment
