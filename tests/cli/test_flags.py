"""Flags are the keys of a config: grouped, explained, and each changes its own key and no other."""

import re

import pytest

from lossalign.cli.flags import as_flag, parse
from lossalign.cli.main import run_command
from lossalign.core import InputError
from lossalign.experiments import KEYS, SECTIONS, TASKS, by_key, compared, configure, write_recipe
from lossalign.experiments.keys import RENAMED


def texts(asked):
    return tuple(spec.text for spec in asked.config.methods.specs)


def helped(task, capsys, command="train"):
    with pytest.raises(SystemExit) as leave:
        parse(command, task, ["--help"])
    assert leave.value.code == 0
    return capsys.readouterr().out


def in_help(value):
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


class TestHelp:
    def test_flags_are_grouped_by_section(self, capsys):
        said = helped("digits-lt", capsys)
        headings = re.findall(r"^([a-z][a-z ]*):$", said, re.MULTILINE)
        assert headings == ["options", "run folder and output", "metric", *SECTIONS]
        for section, following in zip(SECTIONS, [*list(SECTIONS)[1:], None], strict=True):
            part = said[said.index(f"\n{section}:\n") : said.index(f"\n{following}:\n") if following else None]
            flags = re.findall(r"^  (--[a-z-]+)", part.rstrip().rsplit("\n\n", 1)[-1], re.MULTILINE)
            keys = [as_flag(key.name) for key in KEYS.values() if key.section == section]
            assert flags == keys + ["--guard", "--refit"] * (section == "methods")

    @pytest.mark.parametrize("task", ["digits-lt", "omniglot"])
    def test_every_flag_shows_the_default_of_the_task(self, task, capsys):
        said = " ".join(helped(task, capsys).split())
        said = re.sub(r" \[(true\|false|[A-Z]+ \.\.\.)\]", "", said)  # placeholders of values
        for name, value in by_key(configure(task)).items():
            about = said[said.index(f" {as_flag(name)} ") :]
            assert f"[{in_help(value)}]" in about[: about.index("]") + 1], name

    def test_a_comparison_shows_its_own_methods_and_seeds(self, capsys):
        said = " ".join(helped("digits-lt", capsys, "compare").split())
        assert "[fixed deferred-reweighting logit-adjustment" in said
        assert "--seeds NUMBER Number of seeds. [5]" in said

    def test_it_fits_a_terminal(self, capsys):
        assert max(map(len, helped("lfw", capsys).splitlines())) <= 100


class TestValues:
    @pytest.mark.parametrize("task", TASKS)
    def test_without_flags_it_is_the_task(self, task):
        assert parse("train", task, []).config == configure(task)
        assert parse("compare", task, []).config == compared(task)

    @pytest.mark.parametrize("task", ["digits-lt", "digits-retrieval"])
    def test_all_defaults_as_flags_are_the_task_again(self, task):
        args = []
        for name, value in by_key(configure(task)).items():
            parts = value if isinstance(value, tuple) else (value,)
            args += [as_flag(name), *("none" if part is None else str(part) for part in parts)]
        assert parse("train", task, args).config == configure(task)

    @pytest.mark.parametrize(
        ("args", "key", "value"),
        [
            ("--horizon 1", "horizon", 1),
            ("--horizon=1", "horizon", 1),
            ("--ratio-clip none", "ratio_clip", None),
            ("--groups weights offsets", "groups", ("weights", "offsets")),
            ("--policy-hidden 8 4", "policy_hidden", (8, 4)),
            ("--flip", "flip", True),
            ("--flip true", "flip", True),
            ("--no-sensitivity", "sensitivity", False),
            ("--sensitivity false", "sensitivity", False),
            ("--methods fixed ala:horizon=1", "methods", ("fixed", "ala:horizon=1")),
            ("--weight-decay 1e-4", "weight_decay", 1e-4),
        ],
    )
    def test_a_flag_changes_its_key_and_no_other(self, args, key, value):
        found, before = by_key(parse("train", "digits-lt", args.split()).config), by_key(configure("digits-lt"))
        assert {name for name in found if found[name] != before[name]} == {key}
        assert found[key] == value

    @pytest.mark.parametrize(
        ("args", "average", "beta"),
        [
            ("", 4.0, 1.0),
            ("--beta-scale 2", 4.0, 2.0),
            ("--preset paper", None, 1.0),
            ("--preset=paper --weight-average 4", 4.0, 1.0),
        ],
    )
    def test_options_add_to_the_tasks_and_go_with_its_preset(self, args, average, beta):
        options = parse("compare", "omniglot", args.split()).config.control.options
        assert (options.weight_average, options.beta_scale) == (average, beta)


@pytest.mark.parametrize(
    ("flags", "methods"),
    [
        (["--guard"], ("ala", "fixed", "guarded-ala")),
        (["--refit"], ("ala", "refit-ala")),
        (["--guard", "--refit"], ("ala", "fixed", "guarded-ala", "refit-ala")),
        (["--refit", "--methods", "fixed"], ("fixed", "ala", "refit-ala")),
    ],
)
def test_guard_and_refit_train_what_they_need(flags, methods):
    assert texts(parse("train", "digits-lt", flags)) == methods


@pytest.mark.parametrize(
    ("args", "existing"), [([], "refuse"), (["--resume"], "resume"), (["--overwrite"], "overwrite")]
)
def test_what_to_do_with_a_folder_that_exists(args, existing):
    assert parse("train", "digits", args).existing == existing


def test_the_run_folder_is_named_after_the_run():
    assert parse("compare", "digits-lt", []).out.as_posix() == "runs/compare-digits-lt"
    assert parse("train", "digits", ["--out", "here"]).out.as_posix() == "here"


class TestRefusals:
    @pytest.mark.parametrize(("old", "new"), RENAMED.items())
    def test_an_old_flag_is_answered_with_todays(self, old, new):
        with pytest.raises(InputError, match=f"flag {as_flag(old)}: it is now called {as_flag(new)}"):
            parse("train", "digits", [as_flag(old), "1"])

    @pytest.mark.parametrize(
        ("args", "sentence"),
        [
            ("--switches horizon=1", "flag --switches: it was removed; every option of the preset is a key of its own"),
            ("--childen 3", "flag --childen: it is unknown; did you mean --children?"),
            ("--child 3", "flag --child: it is unknown; did you mean --children?"),
            ("--xyzzy", "flag --xyzzy: it is unknown; choose from --metric, "),
            ("--no-children", "write --children true or false"),
            ("three", "'three' belongs to no flag; write --flag value"),
            ("--children", "--children: expected one argument; see `lossalign train digits --help`"),
            ("--resume --overwrite", "resume, overwrite: choose one of the two"),
            ("--children three", "children=three: give a whole number"),
            ("--flip perhaps", "flip=perhaps: give true or false"),
            ("--schedule linear", "schedule=linear: give one of cosine, steps, constant"),
        ],
    )
    def test_a_wrong_flag_is_one_sentence(self, args, sentence):
        with pytest.raises(InputError) as refused:
            parse("train", "digits", args.split())
        assert sentence in str(refused.value)


class TestPrintConfig:
    @pytest.mark.parametrize("command", ["train", "compare"])
    @pytest.mark.parametrize(
        ("task", "args"),
        [
            ("digits-lt", ""),
            ("digits-lt", "--held-out-fraction 0.1 --validation-per-class 22 --guard"),
            ("digits-lt", "--preset paper --methods fixed ala:groups=diagonal --seeds 3"),
            ("digits-retrieval", "--loss focal-weighting --horizon 1 --ratio-clip none"),
        ],
    )
    def test_what_is_printed_runs_as_a_recipe_with_the_same_config(self, command, task, args, tmp_path, capsys):
        assert run_command([command, task, *args.split(), "--print-config"]) == 0
        file = tmp_path / "printed.toml"
        file.write_text(capsys.readouterr().out, encoding="utf-8")
        asked = parse(command, task, args.split()).config
        assert parse(command, str(file), []).config == asked
        assert parse("train", str(file), []).config == asked

    def test_nothing_is_trained(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert run_command(["train", "digits", "--print-config"]) == 0
        assert capsys.readouterr().out == write_recipe(configure("digits"))
        assert list(tmp_path.iterdir()) == []
