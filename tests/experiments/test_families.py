"""Methods with one loss, one network and one way to measure train side by side in one population."""

import pytest

from lossalign.core import InputError
from lossalign.experiments import configure
from lossalign.experiments.families import families


def planned(*methods, task="digits-lt", **changes):
    return families(configure(task, {"methods": methods, **changes}))


def populations(*methods, **changes):
    return {name: [spec.text for spec in family.methods] for name, family in planned(*methods, **changes).items()}


def test_methods_under_one_loss_share_a_population():
    assert populations("fixed", "random-walk", "ala", "ala:horizon=1") == {
        "aligned": ["fixed", "random-walk", "ala", "ala:horizon=1"]
    }


def test_what_is_measured_in_another_way_is_a_population_of_its_own():
    methods = ("fixed", "ala", "ala:evaluations=3", "ala:weight_average=4,evaluations=3")
    assert populations(*methods) == {
        "aligned": ["fixed", "ala"],
        "aligned-evaluations=3": ["ala:evaluations=3"],
        "aligned-average=4.0-evaluations=3": ["ala:weight_average=4,evaluations=3"],
    }


def test_another_network_or_loss_is_a_population_of_its_own():
    found = planned("fixed", "ldam-drw", "pairwise")
    assert {name: (family.loss, family.model) for name, family in found.items()} == {
        "aligned": ("aligned", "mlp-16"),
        "ldam+cosine": ("ldam", "mlp-16+cosine"),
        "pairwise": ("pairwise", "mlp-16"),
    }


def test_a_population_has_the_groups_that_at_least_one_of_its_methods_needs():
    found = planned("fixed", "inverse-frequency", "ala:groups=offsets")["aligned"]
    assert set(found.preset.groups) == {"weights", "offsets"}


def test_a_population_measures_sensitivity_if_one_of_its_methods_looks_at_it():
    (found,) = planned("ala:sensitivity=false", "ala").values()
    assert found.preset.sensitivity
    (found,) = planned("ala:sensitivity=false").values()
    assert not found.preset.sensitivity


def test_a_refit_trains_after_all_others_wherever_it_is_named():
    assert list(populations("refit-ala", "ldam-drw", "ala")) == ["ldam+cosine", "aligned", "aligned-refit"]


def test_derived_methods_train_nothing():
    assert populations("fixed", "post-hoc-offsets", "best-of-fixed") == {"aligned": ["fixed"]}


def test_a_missing_first_method_is_named():
    with pytest.raises(InputError, match="method 'guarded-ala' starts from 'ala'; add it to the methods"):
        planned("fixed", "guarded-ala")
