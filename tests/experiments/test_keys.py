"""One flat list of keys stands for the nested config, in flags, recipe files and Python."""

import json
from dataclasses import fields

import pytest

from lossalign.control import Preset
from lossalign.core import InputError
from lossalign.experiments import (
    KEYS,
    SECTIONS,
    TASKS,
    by_key,
    check_key,
    compared,
    configure,
    from_plain,
    plain_by_key,
    to_plain,
)
from lossalign.experiments.keys import RENAMED


@pytest.mark.parametrize("task", TASKS)
def test_a_config_survives_json(task):
    for config in (configure(task), compared(task)):
        assert from_plain(json.loads(json.dumps(to_plain(config)))) == config
        assert plain_by_key(to_plain(config)) == by_key(config)


@pytest.mark.parametrize("task", TASKS)
def test_its_values_by_key_give_a_config_again(task):
    config = compared(task)
    assert configure(task, by_key(config)) == config


def test_every_field_of_every_section_has_one_key():
    expected = {"metric", *(field.name for field in fields(Preset))}
    for cls in SECTIONS.values():
        expected |= {field.metadata.get("key", field.name) for field in fields(cls)}
    assert set(KEYS) == expected - {"source", "options"}
    total = 1 + len(fields(Preset)) + sum(len(fields(cls)) for cls in SECTIONS.values()) - 2
    assert len(KEYS) == total, "two fields share a key"


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_key_is_explained(key):
    assert len(key.doc) > 10
    assert key.placeholder


@pytest.mark.parametrize("new", RENAMED.values())
def test_an_old_name_leads_to_a_key_that_exists(new):
    assert new in KEYS


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("returns", "recipe x.toml 'returns': it is now called 'horizon'."),
        ("reward_per_class", "recipe x.toml 'reward_per_class': it is now called 'validation_per_class'."),
        ("validation_fraction", "recipe x.toml 'validation_fraction': it is now called 'held_out_fraction'."),
        ("switches", "recipe x.toml 'switches': it was removed; every option of the preset is a key of its own"),
        ("childen", "recipe x.toml 'childen': it is unknown; did you mean 'children'?"),
        ("xyzzy", "recipe x.toml 'xyzzy': it is unknown; choose from 'metric', 'data', "),
    ],
)
def test_a_wrong_key_is_answered_with_the_right_one(name, answer):
    with pytest.raises(InputError) as refused:
        check_key(name, "recipe x.toml")
    assert str(refused.value).startswith(answer)


def test_a_key_that_is_known_is_found():
    assert check_key("horizon", "flags").section == "control"


def test_unknown_and_renamed_changes_are_refused_by_name():
    with pytest.raises(InputError, match="changes 'colour': it is unknown"):
        configure("digits", {"colour": "red"})
    with pytest.raises(InputError, match="changes 'beta': it is now called 'beta_scale'"):
        configure("digits", {"beta": 2})
