"""A config refuses what makes no sense, by name, and knows what follows from its fields."""

import pytest

from lossalign.core import InputError
from lossalign.experiments import configure


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"children": 0}, "children=0"),
        ({"seeds": 0}, "seeds=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"in_memory_gb": -1.0}, "in_memory_gb=-1.0: it cannot be negative"),
        ({"iterations": 0}, "iterations=0"),
        ({"every": 2000}, "every=2000: a step of K iterations must fit into the run"),
        ({"every": 0}, "every=0: a step of K iterations must fit into the run"),
        ({"methods": ()}, "name each method once"),
        ({"methods": ("ala", "ala")}, "name each method once"),
        ({"freeze": True}, "not a policy to freeze"),
        ({"freeze": True, "policy": "none"}, "not a policy to freeze"),
        ({"preset": "best"}, "preset='best'"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        configure("digits", changes)


def test_the_average_spans_two_steps_by_default():
    config = configure("digits", {"every": 10})
    assert config.optimisation_on("cpu", config.control.options).average_decay == pytest.approx(0.95)


def test_a_remainder_of_iterations_is_not_trained():
    config = configure("digits", {"iterations": 105, "every": 10})
    assert config.steps == 10
    assert config.optimisation_on("cpu", config.control.options).iterations == 100


def test_automatic_precision_is_half_on_a_gpu_alone():
    config = configure("digits")
    on = {device: config.optimisation_on(device, config.control.options).precision for device in ("cpu", "cuda:0")}
    assert on == {"cpu": "float32", "cuda:0": "bfloat16"}
    fixed = configure("digits", {"precision": "bfloat16"})
    assert fixed.optimisation_on("cpu", fixed.control.options).precision == "bfloat16"


def test_a_title_leaves_out_the_folder_of_the_data(tmp_path):
    (tmp_path / "churn.csv").write_text("a,b\n1,2\n")
    assert configure(f"table:{tmp_path / 'churn.csv'}").short_name == "table:churn.csv"
    assert configure("digits-lt").short_name == "digits-lt"


def test_the_first_seed_is_where_the_seeds_begin():
    assert list(configure("digits", {"seed": 7, "seeds": 3}).methods.all_seeds) == [7, 8, 9]


@pytest.mark.parametrize(("task", "long_tailed"), [("cifar10-lt", True), ("cifar10", False), ("digits-lt", False)])
def test_digits_are_no_long_tailed_images(task, long_tailed):
    assert configure(task).long_tailed_images is long_tailed
