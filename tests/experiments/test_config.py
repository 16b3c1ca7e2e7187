import pytest

from lossalign.core import InputError
from lossalign.experiments import RunConfig, recipe_for
from lossalign.experiments.config import parse_switches
from lossalign.experiments.recipes import RECIPES


@pytest.mark.parametrize("task", sorted(RECIPES))
def test_a_recipe_is_a_whole_run_and_survives_json(task):
    config = recipe_for(task)
    assert config.task == task
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"children": 0}, "children=0"),
        ({"seeds": 0}, "seeds=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"in_memory_gb": -1.0}, "in_memory_gb=-1.0: it cannot be negative"),
        ({"iterations": 0}, "iterations=0"),
        ({"every": 2000}, "every=2000: a step of K iterations must fit into the run"),
        ({"methods": ()}, "name each method once"),
        ({"methods": ("ala", "ala")}, "name each method once"),
        ({"freeze": True}, "no policy to freeze"),
        ({"colour": "red"}, "'colour' is not a field"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        recipe_for("digits", **changes)


@pytest.mark.parametrize("task", ["mnist", "table:", "table:no-such-file.csv", "images:nowhere"])
def test_unknown_tasks_are_refused(task):
    with pytest.raises(InputError, match=r"unknown|does not exist"):
        recipe_for(task)


def test_switches_change_one_field_of_the_preset():
    config = recipe_for("digits", switches=("returns=1", "clip=none", "evaluation=literal", "sensitivity=false"))
    preset = config.controls()
    assert (preset.returns, preset.clip, preset.evaluation, preset.sensitivity) == (1, None, "literal", False)
    assert preset.reward == "relative"


def test_switches_add_to_those_of_the_task_and_of_the_recipe_file(tmp_path):
    assert recipe_for("omniglot").switches == ("average=4",)
    file = tmp_path / "mine.toml"
    file.write_text('task = "omniglot"\nswitches = ["beta=2"]\n')
    controls = recipe_for(str(file), switches=("returns=1",)).controls()
    assert (controls.average, controls.beta, controls.returns) == (4.0, 2.0, 1)
    assert recipe_for(str(file), switches=("average=1", "beta=3")).switches == ("average=1", "beta=3")


@pytest.mark.parametrize("task", ["omniglot", "cifar10-lt", "file"])
def test_the_paper_as_printed_has_none_of_the_switches_chosen_for_the_default(task, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('task = "cifar10"\nswitches = ["average=4"]\n')
    task = str(file) if task == "file" else task
    assert recipe_for(task, preset="paper").controls().average is None
    assert recipe_for(task, preset="paper", switches=("average=4",)).controls().average == 4.0


def test_another_loss_brings_its_groups_whoever_asks_for_it():
    config = recipe_for("digits-retrieval")
    assert config.controls().groups == ("positive", "negative")
    assert config.controls(("loss=focal-weighting",)).groups == ("focus",)
    assert config.controls(("loss=scale-matched", "groups=ratio")).groups == ("ratio",)


@pytest.mark.parametrize("switch", ["returns", "colour=red", "returns=many", "evaluation=never", "sensitivity=maybe"])
def test_bad_switches_are_refused(switch):
    with pytest.raises(InputError, match="switch"):
        parse_switches((switch,))


def test_the_average_spans_two_steps_by_default():
    recipe = recipe_for("digits", every=10).recipe()
    assert recipe.average == pytest.approx(0.95)
