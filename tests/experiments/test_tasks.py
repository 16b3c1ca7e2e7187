"""A task and changes become one config: later changes win, none is lost, and each brings what it implies."""

from pathlib import Path

import pytest

from lossalign.cli.flags import parse
from lossalign.core import InputError
from lossalign.experiments import TASKS, build, by_key, compared, configure
from lossalign.experiments.methods.names import COMPARED_CLASSES, COMPARED_EMBEDDINGS
from lossalign.experiments.recipes import write_recipe
from lossalign.experiments.tasks import find_task, options_of

RECIPES = Path(__file__).parents[2] / "recipes"


def options(task, **changes):
    return configure(task, changes).control.options


def texts(config):
    return tuple(spec.text for spec in config.methods.specs)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_a_whole_run(task):
    assert configure(task).task == task


@pytest.mark.parametrize("task", TASKS)
def test_what_a_task_says_of_itself_is_in_its_config(task):
    values = by_key(configure(task))
    for key, value in TASKS[task].values.items():
        assert values[key] == value, key


@pytest.mark.parametrize("task", ["mnist", "table:", "table:no-such-file.csv", "images:nowhere", "images:"])
def test_unknown_tasks_are_refused(task):
    with pytest.raises(InputError, match=r"unknown|does not exist"):
        configure(task)


def test_an_unknown_task_is_answered_with_what_may_be_given_instead():
    with pytest.raises(InputError, match=r"did you mean 'digits'\?.*table:FILE, images:FOLDER, or a recipe FILE\.toml"):
        configure("digit")


def test_later_changes_win_and_the_earlier_stay():
    config = configure("digits", {"children": 4, "seeds": 3}, {"children": "5"})
    assert (config.methods.children, config.methods.seeds) == (5, 3)


def test_what_is_usual_gives_way_to_the_task():
    config = configure("digits", usual={"children": 3, "seeds": 4})
    assert (config.methods.children, config.methods.seeds) == (20, 4)


class TestOptions:
    def test_a_change_is_one_field_of_the_preset(self):
        changed = options("digits", horizon="1", ratio_clip="none", evaluation="literal", sensitivity="false")
        assert (changed.horizon, changed.ratio_clip, changed.evaluation, changed.sensitivity) == (
            1,
            None,
            "literal",
            False,
        )
        assert changed.reward == "relative"

    def test_changes_add_to_those_of_the_task_and_of_the_recipe_file(self, tmp_path):
        assert options("omniglot").weight_average == 4.0
        file = tmp_path / "mine.toml"
        file.write_text('task = "omniglot"\nbeta_scale = 2\n')
        changed = options(str(file), horizon="1")
        assert (changed.weight_average, changed.beta_scale, changed.horizon) == (4.0, 2.0, 1)
        changed = options(str(file), weight_average=1, beta_scale=3)
        assert (changed.weight_average, changed.beta_scale) == (1.0, 3.0)

    @pytest.mark.parametrize("task", ["omniglot", "cifar10-lt", "file"])
    def test_the_paper_as_printed_has_none_of_the_options_chosen_for_the_default(self, task, tmp_path):
        file = tmp_path / "mine.toml"
        file.write_text('task = "cifar10"\nweight_average = 4\n')
        task = str(file) if task == "file" else task
        assert options(task, preset="paper").weight_average is None
        assert options(task, preset="paper", weight_average=4).weight_average == 4.0

    def test_the_paper_starts_where_the_paper_does_unless_told(self):
        starts = [
            configure("digits-retrieval", changes).control.start
            for changes in ({}, {"preset": "paper"}, {"preset": "paper", "start": "default"})
        ]
        assert starts == ["default", "paper", "default"]

    def test_another_loss_brings_its_groups_whoever_asks_for_it(self):
        assert options("digits-retrieval").groups == ("positive", "negative")
        assert options("digits-retrieval", loss="focal-weighting").groups == ("focus",)
        assert options("digits-retrieval", loss="scale-matched", groups="ratio").groups == ("ratio",)

    def test_a_method_that_asks_for_another_loss_gets_its_groups(self):
        config = configure("digits-retrieval", {"methods": ("ala:loss=focal-weighting", "ala")})
        assert [options_of(config, spec).groups for spec in config.methods.specs] == [
            ("focus",),
            ("positive", "negative"),
        ]

    @pytest.mark.parametrize(
        ("name", "value"),
        [("horizon", "many"), ("evaluation", "never"), ("sensitivity", "maybe"), ("policy_hidden", "wide")],
    )
    def test_bad_values_are_refused(self, name, value):
        with pytest.raises(InputError, match=f"{name}={value}: give "):
            options("digits", **{name: value})


class TestWaysToSizeASplit:
    def test_a_share_held_out_replaces_the_numbers_per_class_that_came_before(self):
        split = configure("digits-lt", {"held_out_fraction": 0.1}).split
        assert (split.validation_per_class, split.selection_per_class, split.test_per_class) == (None, None, None)

    def test_a_number_given_beside_the_share_stays(self):
        split = configure("digits-lt", {"held_out_fraction": 0.1, "validation_per_class": 22}).split
        assert (split.validation_per_class, split.selection_per_class) == (22, None)

    def test_a_share_of_the_training_classes_and_a_number_replace_each_other(self):
        tail = configure("digits-lt", {"validation_of_train": 0.2}).split
        assert (tail.validation_per_class, tail.validation_of_train, tail.selection_per_class) == (None, 0.2, 22)
        number = configure("digits-lt", {"validation_of_train": 0.2}, {"validation_per_class": 5}).split
        assert (number.validation_per_class, number.validation_of_train) == (5, None)

    def test_both_at_once_are_refused(self):
        with pytest.raises(InputError, match="each sizes the validation split; give one of the two"):
            configure("digits-lt", {"validation_of_train": 0.2, "validation_per_class": 22})

    def test_a_share_held_out_replaces_a_share_of_the_training_classes(self):
        split = configure("digits-lt", {"validation_of_train": 0.2}, {"held_out_fraction": 0.1}).split
        assert (split.validation_of_train, split.selection_per_class, split.held_out_fraction) == (None, None, 0.1)
        beside = configure("digits-lt", {"validation_of_train": 0.2, "held_out_fraction": 0.1}).split
        assert (beside.validation_of_train, beside.held_out_fraction) == (0.2, 0.1)


class TestWhatCannotBe:
    @pytest.mark.parametrize(
        ("task", "changes"),
        [
            ("digits-lt", {"validation_classes": 5}),
            ("digits-lt", {"framework": "margin"}),
            ("digits-lt", {"start": "paper"}),
            ("digits-retrieval", {"ratio": 10}),
            ("digits-retrieval", {"validation_per_class": 5}),
            ("digits-retrieval", {"held_out_fraction": 0.1}),
        ],
    )
    def test_a_key_of_another_kind_is_refused(self, task, changes):
        (name,) = changes
        with pytest.raises(InputError, match=rf"{name}=.*: it is for .*, and {task} is .*; leave it out\."):
            configure(task, changes)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("learning_rate", -1), ("learning_rate", 0), ("weight_decay", -0.1), ("crop", -1), ("noise", -1)],
            *[("device", "tpu"), ("model", "nosuch"), ("model", "nosuch:module"), ("metric", "nosuch")],
            *[("metric", "nosuch:module"), ("ratio", 0.5), ("validation_per_class", 0), ("held_out_fraction", 1)],
        ],
    )
    def test_a_value_that_no_run_can_have_is_refused_before_a_recipe_is_printed(self, name, value):
        with pytest.raises(InputError, match=f"{name}.*{value}"):
            parse("train", "digits", [f"--{name.replace('_', '-')}={value}", "--print-config"])

    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("preset", ["default", "paper"])
    def test_the_printed_recipe_of_a_task_is_none_of_that(self, task, preset, tmp_path):
        config = configure(task, {"preset": preset})
        (tmp_path / "printed.toml").write_text(write_recipe(config), encoding="utf-8")
        assert configure(str(tmp_path / "printed.toml")) == config


class TestRegressions:
    def test_flags_beside_a_recipe_file_keep_the_options_of_the_file(self):
        file = str(RECIPES / "omniglot-triplet.toml")
        before = configure(file).control.options
        for config in (parse("train", file, ["--horizon", "1"]).config, configure(file, {"horizon": 1})):
            after = config.control.options
            assert (after.horizon, after.beta_scale, after.weight_average) == (1, 2.0, before.weight_average)

    def test_a_flag_equal_to_the_default_of_the_task_counts(self, tmp_path):
        assert TASKS["digits-lt"].values["validation_per_class"] == 22
        config = parse("train", "digits-lt", ["--held-out-fraction", "0.1", "--validation-per-class", "22"]).config
        data = build(config).data[0]
        assert data.validation.targets.bincount().tolist() == [22] * 10

    @pytest.mark.parametrize("changes", [{}, {"horizon": 1}, {"validation_per_class": 22}])
    def test_a_recipe_file_is_the_same_run_from_python_and_from_the_command_line(self, tmp_path, changes):
        file = tmp_path / "mine.toml"
        file.write_text('task = "digits-lt"\nheld_out_fraction = 0.1\nvalidation_per_class = 22\nbeta_scale = 2\n')
        flags = [word for key, value in changes.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        config = configure(str(file), changes)
        assert config == parse("train", str(file), flags).config
        assert config.split.validation_per_class == 22
        assert config.control.options.beta_scale == 2


class TestOwnData:
    def test_a_table_or_folder_names_its_data_itself(self, tmp_path):
        file = tmp_path / "mine.csv"
        file.write_text("a,b\n1,2\n")
        assert configure(f"table:{file}").data.folder == str(file)
        assert configure(f"table:{file}", {"data": str(file)}).data.folder == str(file)
        with pytest.raises(InputError, match="already names its data; leave data out"):
            configure(f"table:{file}", {"data": "elsewhere"})

    @pytest.mark.parametrize(
        ("loss", "kind", "metric"),
        [
            (None, "classification", "balanced-error"),
            ("ranking", "classification", "balanced-error"),
            ("distance-mixture", "retrieval", "recall@1"),
        ],
    )
    def test_the_loss_says_whether_own_images_are_classified_or_retrieved(self, tmp_path, loss, kind, metric):
        config = configure(f"images:{tmp_path}", {} if loss is None else {"loss": loss})
        assert (config.kind, config.metric) == (kind, metric)

    def test_a_recipe_file_may_name_that_loss(self, tmp_path):
        (tmp_path / "mine.toml").write_text(f'task = "images:{tmp_path.as_posix()}"\nloss = "distance-mixture"\n')
        assert configure(str(tmp_path / "mine.toml")).kind == "retrieval"

    def test_without_a_path_the_word_is_no_task(self):
        with pytest.raises(InputError, match="task 'table' is unknown"):
            find_task("table")


class TestCompared:
    @pytest.mark.parametrize(
        ("task", "methods"), [("digits-lt", COMPARED_CLASSES), ("digits-retrieval", COMPARED_EMBEDDINGS)]
    )
    def test_a_comparison_has_the_usual_methods_of_its_kind_on_five_seeds(self, task, methods):
        config = compared(task)
        assert texts(config) == methods
        assert config.methods.seeds == 5

    @pytest.mark.parametrize("metric", ["aucpr", "top5-error"])
    def test_decisions_are_usual_only_where_they_can_change_the_metric(self, metric):
        methods = texts(compared("digits-lt", {"metric": metric}))
        assert methods == tuple(name for name in COMPARED_CLASSES if not name.endswith("+decision"))

    def test_what_a_recipe_file_or_a_user_says_comes_first(self, tmp_path):
        file = tmp_path / "mine.toml"
        file.write_text('task = "digits-lt"\nseeds = 2\n')
        assert compared(str(file)).methods.seeds == 2
        assert texts(compared(str(file), {"methods": ["fixed", "ala"]})) == ("fixed", "ala")

    def test_training_alone_is_of_the_learner_on_one_seed(self):
        config = configure("digits-lt")
        assert texts(config) == ("ala",)
        assert config.methods.seeds == 1
