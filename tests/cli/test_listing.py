"""``lossalign list`` names everything that a flag may name."""

import json

import pytest

from lossalign.cli.listing import POLICIES, REGISTRIES
from lossalign.cli.main import run_command


def listed(args, capsys):
    assert run_command(["list", *args]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_registered_name_has_a_row(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [line.split() for line in listed([kind], capsys).splitlines()]
    named = {row[0]: " ".join(row[1:]) for row in rows if len(row) > 1}
    for registry in REGISTRIES[kind]:
        assert len(registry) > 0
        for name in registry:
            assert named[name] == " ".join(registry.summary(name).split()), name


@pytest.mark.parametrize("kind", REGISTRIES)
def test_no_name_is_cut_in_a_narrow_terminal(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    words = listed([kind], capsys).split()
    assert all(name in words for registry in REGISTRIES[kind] for name in registry)


@pytest.mark.parametrize(("kind", "hint"), [("tasks", "table:FILE"), ("losses", "pml-NAME"), ("metrics", "module:")])
def test_what_may_be_given_instead_of_a_name_is_said(kind, hint, capsys):
    assert hint in listed([kind], capsys)


def test_without_a_word_everything_is_listed(capsys):
    said = listed([], capsys)
    assert all(kind in said.split() for kind in (*REGISTRIES, POLICIES))


def test_learned_policies_are_listed_with_their_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"format": "lossalign-run", "schema": 2}))
    (run / "environment.jsonl").write_text(json.dumps({"command": "lossalign train digits-lt"}) + "\n")
    (run / "policy-3.safetensors").touch()
    said = listed(["policies"], capsys)
    assert "pretrained" in said
    assert "runs/mine/policy-3.safetensors" in said
    assert "learned by lossalign train digits-lt" in said


def test_help_names_what_can_be_listed(capsys):
    said = listed(["--help"], capsys)
    assert all(kind in said for kind in (*REGISTRIES, POLICIES))
