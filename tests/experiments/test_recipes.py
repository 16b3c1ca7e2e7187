"""A recipe file is a task with keys; what is written as one is read back as the same run."""

import re

import pytest

from lossalign.core import InputError
from lossalign.experiments import TASKS, compared, configure, is_recipe, write_recipe
from lossalign.experiments.keys import RENAMED

CHANGED = [
    ("digits-lt", {"methods": ("fixed", "ala:horizon=1", "ala:groups=weights,offsets", "post-hoc-offsets")}),
    ("digits-lt", {"preset": "paper"}),
    ("digits-lt", {"preset": "paper", "start": "default", "weight_average": 3.0}),
    ("digits-lt", {"ratio_clip": None, "reset": None, "policy_hidden": (8,), "antithetic": True}),
    ("digits-lt", {"groups": ("weights", "offsets"), "loss": "aligned"}),
    ("digits-lt", {"held_out_fraction": 0.1, "validation_per_class": 22}),
    ("digits-lt", {"validation_of_train": 0.2}),
    ("digits-lt", {"policy": "pretrained", "freeze": True, "seeds": 3, "seed": 9}),
    ("digits-lt", {"data": 'a folder "with" \\ signs/ünïcode', "image_cache": "somewhere"}),
    ("digits-retrieval", {"loss": "focal-weighting", "framework": "margin", "metric": "recall@1,2"}),
    ("cifar10-lt", {"iterations": 1000, "learning_rate": 1e-3, "weight_decay": 0.0, "engine": "vmap"}),
]


def read_back(config, folder):
    file = folder / "written.toml"
    file.write_text(write_recipe(config), encoding="utf-8")
    return configure(str(file))


@pytest.mark.parametrize("task", TASKS)
def test_a_written_task_is_read_back_the_same(task, tmp_path):
    assert read_back(configure(task), tmp_path) == configure(task)
    assert read_back(compared(task), tmp_path) == compared(task)


@pytest.mark.parametrize(("task", "changes"), CHANGED, ids=str)
def test_a_written_change_is_read_back_the_same(task, changes, tmp_path):
    assert read_back(configure(task, changes), tmp_path) == configure(task, changes)


def test_own_images_to_retrieve_are_read_back_the_same(tmp_path):
    config = configure(f"images:{tmp_path}", {"loss": "distance-mixture"})
    assert read_back(config, tmp_path) == config


def test_a_file_is_a_task_with_keys(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('task = "digits-lt"\nchildren = 3\nmethods = ["fixed", "ala:horizon=1"]\n')
    assert is_recipe(str(file))
    assert configure(str(file)) == configure("digits-lt", {"children": 3, "methods": ("fixed", "ala:horizon=1")})
    assert configure(str(file), {"children": 4}).methods.children == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("children = 3", "must name its task"),
        ('task = "other.toml"', "must name its task"),
        ("task = ", "invalid TOML: "),
        ('task = "digits"\n[more]\nx = 1', "'more' is a table"),
        ('task = "digits"\nchild = 1', "'child': it is unknown; did you mean 'children'?"),
        ('task = "digits"\nxyzzy = 1', "'xyzzy': it is unknown; choose from 'metric', "),
        ('task = "digits"\nswitches = ["beta=2"]', "every option of the preset is a key of its own"),
        ('task = "digits"\nchildren = "many"', "children=many: give a whole number."),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(sentence)):
        configure(str(file))


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_name_of_version_0_1_is_answered_with_todays(tmp_path, old, new):
    file = tmp_path / "old.toml"
    file.write_text(f'task = "digits"\n{old} = 1\n')
    with pytest.raises(InputError, match=rf"old\.toml '{old}': it is now called '{new}'"):
        configure(str(file))


def test_a_missing_file_is_one_sentence():
    with pytest.raises(InputError, match="cannot be read"):
        configure("missing.toml")


def test_a_file_that_is_not_text_is_one_sentence(tmp_path):
    (tmp_path / "image.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="invalid TOML"):
        configure(str(tmp_path / "image.toml"))


@pytest.mark.parametrize("content", [b"\xff", b"task = " + b"[" * 100_000, b"children = " + b"9" * 10_000, b"\0"])
def test_any_content_of_a_recipe_is_one_sentence(tmp_path, content):
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.toml'"):
        configure(str(tmp_path / "mine.toml"))
