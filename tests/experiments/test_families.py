"""Methods with one loss, one network and one way to measure are a family; families differ in a population by loss."""

import pytest

from lossalign.core import InputError
from lossalign.experiments import configure
from lossalign.experiments.families import families


def planned(*methods, task="digits-lt", **changes):
    return families(configure(task, {"methods": methods, **changes}))


def members(*methods, **changes):
    return {name: [spec.text for spec in family.methods] for name, family in planned(*methods, **changes).items()}


def test_methods_under_one_loss_are_a_family():
    assert members("fixed", "random-walk", "ala", "ala:horizon=1") == {
        "aligned": ["fixed", "random-walk", "ala", "ala:horizon=1"]
    }


def test_what_is_measured_in_another_way_is_a_family_of_its_own():
    methods = ("fixed", "ala", "ala:evaluations=3", "ala:weight_average=4,evaluations=3")
    assert members(*methods) == {
        "aligned": ["fixed", "ala"],
        "aligned-evaluations=3": ["ala:evaluations=3"],
        "aligned-average=4.0-evaluations=3": ["ala:weight_average=4,evaluations=3"],
    }


def test_another_network_or_loss_is_a_family_of_its_own():
    found = planned("fixed", "ldam-drw", "pairwise")
    assert {name: (family.loss, family.model) for name, family in found.items()} == {
        "aligned": ("aligned", "mlp-16"),
        "ldam+cosine": ("ldam", "mlp-16+cosine"),
        "pairwise": ("pairwise", "mlp-16"),
    }


def test_families_of_one_network_that_are_measured_alike_train_in_one_population():
    found = planned("fixed", "pairwise", "ldam-drw", "ala:weight_average=4", "refit-ala", "ala")
    together = {}
    for name, family in found.items():
        together.setdefault(family.population, []).append(name)
    assert together == {
        "mlp-16": ["aligned", "pairwise"],
        "mlp-16+cosine": ["ldam+cosine"],
        "mlp-16-average=4.0": ["aligned-average=4.0"],
        "mlp-16-refit": ["aligned-refit"],
    }


def test_a_family_has_the_groups_that_at_least_one_of_its_methods_needs():
    found = planned("fixed", "inverse-frequency", "ala:groups=offsets")["aligned"]
    assert set(found.preset.groups) == {"weights", "offsets"}


def test_a_family_measures_sensitivity_if_one_of_its_methods_looks_at_it():
    (found,) = planned("ala:sensitivity=false", "ala").values()
    assert found.preset.sensitivity
    (found,) = planned("ala:sensitivity=false").values()
    assert not found.preset.sensitivity


def test_a_refit_trains_after_all_others_wherever_it_is_named():
    assert list(members("refit-ala", "ldam-drw", "ala")) == ["ldam+cosine", "aligned", "aligned-refit"]


def test_derived_methods_train_nothing():
    assert members("fixed", "post-hoc-offsets", "best-of-fixed") == {"aligned": ["fixed"]}


def test_a_missing_first_method_is_named():
    with pytest.raises(InputError, match="method 'guarded-ala' starts from 'ala'; add it to the methods"):
        planned("fixed", "guarded-ala")
