"""A config refuses what makes no sense, by name, and knows what follows from its fields."""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lossalign.control import Preset
from lossalign.core import InputError
from lossalign.core.values import check_value
from lossalign.experiments import KEYS, Config, by_key, configure, from_plain, to_plain


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


WRONG = [
    "nonsense",
    "cosinus",
    "",
    None,
    True,
    False,
    0,
    -1,
    2**70,
    10**400,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    b"1",
    1j,
]
WRONG += [
    [],
    [1],
    ["a"],
    (),
    (None,),
    {},
    {"a": 1},
    {1},
    object(),
    int,
    print,
    Path("x"),
    "nan",
    "1e999",
    "[1]",
    "a,b",
    "\0",
]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("task", ["digits-lt", "digits-retrieval"])
def test_any_value_makes_a_config_or_one_sentence(task, name):
    """From Python and recipe files: no foreign exception, and no value of another type in the config."""
    for value in WRONG:
        with suppress(InputError):
            config = configure(task, {name: value})
            assert from_plain(to_plain(config)) == config
            check_value(name, by_key(config)[name], _hint(name))


@pytest.mark.parametrize("name", KEYS)
def test_a_section_refuses_another_type_too(name):
    """Python code that replaces fields of a config gets the same answer as a flag."""
    config, key = configure("digits-lt"), KEYS[name]
    owner = {Config: config, Preset: config.control.options}.get(key.owner) or getattr(config, key.section)
    for value in (object(), b"x", {}, [1], 1j):
        with pytest.raises(InputError, match=rf"^{name}=.*: give "):
            replace(owner, **{key.field: value})


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"schedule": "cosinus"}, "schedule='cosinus': give one of cosine, steps, constant."),
        ({"precision": "bf16"}, "precision='bf16': give one of auto, float32, bfloat16."),
        ({"flip": "false"}, "flip='false': give true or false."),
        ({"iterations": 10.0}, "iterations=10.0: give a whole number."),
    ],
)
def test_a_mistyped_field_is_answered_with_its_choices(change, answer):
    with pytest.raises(InputError) as refused:
        replace(configure("digits-lt").optimisation, **change)
    assert str(refused.value) == answer


def _hint(name):
    return tuple[str, ...] if name == "methods" else KEYS[name].hint
