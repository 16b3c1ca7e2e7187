"""Whole runs on the embedded digits, as small as they can be: interrupted, resumed, diverged, scored once."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lossalign import fit
from lossalign.core import CheckpointError, InputError, Interrupted, NonFiniteError, RunFolderError
from lossalign.data import load_digits
from lossalign.runs import RunFolder, runner
from lossalign.training import Population
from lossalign.training.checkpoint import load_checkpoint, previous, save_checkpoint

SMALL = {"iterations": 60, "children": 3, "seeds": 2, "methods": ("fixed", "ala")}


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, engine, stop_after):
    settings = {**SMALL, "engine": engine, "methods": ("fixed", "ala", "random-matrix", "ldam-drw")}
    whole = fit("digits-lt", out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted, match="--resume"):
        fit("digits-lt", out=tmp_path / "cut", listener=stop_after(3), **settings)
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path / "cut", existing="resume", listener=stop_after(5), **settings)
    resumed = fit("digits-lt", out=tmp_path / "cut", existing="resume", **settings)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    assert resumed.rows == whole.rows
    for name in ("phi-aligned.npz", "phi-class-correlation.npz", "phi-ldam+cosine.npz"):
        np.testing.assert_array_equal(
            np.load(tmp_path / "cut" / name)["phi"], np.load(tmp_path / "whole" / name)["phi"]
        )
    for name in ("policy-0.safetensors", "policy-1.safetensors", "best.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("damage", ["cut off", "cannot be read"])
def test_a_damaged_checkpoint_falls_back_and_says_so(tmp_path, damage, stop_after):
    whole = fit("digits-lt", out=tmp_path / "whole", **SMALL)
    for existing, steps in (("refuse", 2), ("resume", 1)):
        with pytest.raises(Interrupted):
            fit("digits-lt", out=tmp_path / "cut", existing=existing, listener=stop_after(steps), **SMALL)
    newest = tmp_path / "cut" / "checkpoint-mlp-16.pt"
    assert previous(newest).exists()
    if damage == "cut off":
        newest.write_bytes(newest.read_bytes()[:1000])
    else:
        newest.unlink()
    listener = stop_after(1000)
    resumed = fit("digits-lt", out=tmp_path / "cut", existing="resume", listener=listener, **SMALL)
    assert any("checkpoint-mlp-16.pt" in sentence and damage in sentence for sentence in listener.sentences)
    assert resumed.rows == whole.rows


@pytest.mark.parametrize("methods", [("ala",), ("fixed", "ala")])
def test_divergence_names_the_step_and_the_child_and_keeps_the_run(tmp_path, methods):
    settings = {**SMALL, "schedule": "constant", "learning_rate": 1e30, "methods": methods}
    sentence = rf"step 1: the training loss of child 0 is not finite.*\({methods[0]}, seed 0, child 0\)"
    with pytest.raises(NonFiniteError, match=sentence):
        fit("digits-lt", out=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "config.json").exists()


def test_one_diverging_child_does_not_stop_a_run(tmp_path, monkeypatch, stop_after):
    settings = {**SMALL, "methods": "ala", "engine": "sequential"}
    step = Population.step

    def spoiled(population):
        if population.step_count == 2:
            state = population.children.training_state(1)
            broken = {name: weights * torch.nan for name, weights in state["weights"].items()}
            population.children.load_training_state(1, {**state, "weights": broken})
        return step(population)

    monkeypatch.setattr(Population, "step", spoiled)
    listener = stop_after(1000)
    result = fit("digits-lt", out=tmp_path / "run", listener=listener, **settings)
    assert result.failed == {"ala": 1}
    sentence = "step 3: child 1 of ala, seed 0, was not finite; it is restored from its best weights"
    assert any(each.startswith(sentence) for each in listener.sentences)
    assert [row.get("restored") for row in rows(tmp_path / "run")][2] == [0, 1, 0, 0, 0, 0]
    assert rows(tmp_path / "run")[-1]["loss"][1] is not None


def test_nan_in_the_middle_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "short_lived.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Sequential):\n"
        "    trained = 0\n"
        "    def forward(self, x):\n"
        "        self.trained += self.training\n"
        "        return super().forward(x) * (float('nan') if self.trained > 35 else 1)\n"
        "def model():\n"
        "    return Model(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = {**SMALL, "model": "short_lived:model", "engine": "sequential"}
    with pytest.raises(NonFiniteError, match="step 4: the training loss of child 0 is not finite"):
        fit("digits-lt", out=tmp_path / "run", **settings)
    state, warning = load_checkpoint(tmp_path / "run" / "checkpoint-short-lived-model.pt")
    assert 1 <= state["step"] <= 3
    assert warning is None
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("state", [{}, {"step": 1}, {"step": "x", "best": None, "diverged": 3}])
def test_a_checkpoint_of_something_else_is_one_sentence(tmp_path, state, stop_after):
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path, listener=stop_after(2), **SMALL)
    save_checkpoint(tmp_path / "checkpoint-mlp-16.pt", state)
    with pytest.raises(CheckpointError, match=r"checkpoint-mlp-16\.pt does not fit this run"):
        fit("digits-lt", out=tmp_path, existing="resume", **SMALL)


class TestOtherData:
    """A run is resumed on the data that it began with."""

    @pytest.fixture
    def digits(self):
        return load_digits().subset(torch.arange(900))

    def cut(self, folder, digits, stop_after):
        with pytest.raises(Interrupted):
            fit(digits, out=folder, listener=stop_after(2), **SMALL)

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (lambda data: data.subset(torch.arange(900).flip(0)), "inputs of the train split"),
            (lambda data: replace(data, inputs=data.inputs * 0.5), "inputs of the train split"),
            (lambda data: replace(data, targets=9 - data.targets), "labels of the train split"),
        ],
        ids=["permuted rows", "changed features", "swapped labels"],
    )
    def test_a_change_is_named_and_nothing_is_written(self, tmp_path, digits, change, what, stop_after):
        self.cut(tmp_path, digits, stop_after)
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        with pytest.raises(RunFolderError, match=f"the data have changed since this run began.*{what}"):
            fit(change(digits), out=tmp_path, existing="resume", **SMALL)
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before

    def test_equal_data_resume(self, tmp_path, digits, stop_after):
        self.cut(tmp_path, digits, stop_after)
        result = fit(replace(digits, inputs=digits.inputs.clone()), out=tmp_path, existing="resume", **SMALL)
        assert (tmp_path / "results.json").exists()
        assert result.folder == tmp_path


def test_results_do_not_depend_on_the_log(tmp_path, stop_after):
    settings = {**SMALL, "methods": ("fixed", "ala", "random-walk"), "iterations": 400, "children": 6}
    whole = fit("digits-lt", out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path / "cut", listener=stop_after(30), **settings)
    (tmp_path / "cut" / "metrics.jsonl").unlink()
    listener = stop_after(1000)
    resumed = fit("digits-lt", out=tmp_path / "cut", existing="resume", listener=listener, **settings)
    assert resumed.learnable is not None
    assert resumed.learnable == whole.learnable
    assert any("30 of 30 steps of mlp-16 are missing" in sentence for sentence in listener.sentences)


def test_the_log_is_on_disk_before_the_checkpoint(tmp_path, monkeypatch):
    order = []
    sync, save = RunFolder.sync_log, runner.save_checkpoint
    monkeypatch.setattr(RunFolder, "sync_log", lambda folder: order.append("log") or sync(folder))
    monkeypatch.setattr(runner, "save_checkpoint", lambda *of: order.append("checkpoint") or save(*of))
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    assert order == ["log", "checkpoint"] * (len(order) // 2)


def test_a_run_that_diverged_may_resume_at_a_lower_rate(tmp_path, stop_after):
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path / "run", listener=stop_after(2), **SMALL)
    fit("digits-lt", out=tmp_path / "run", existing="resume", learning_rate=0.01, **SMALL)
    starts = (tmp_path / "run" / "environment.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"]["optimisation"]["learning_rate"] for line in starts] == [0.1, 0.01]


def test_the_test_split_is_scored_once_and_entered_in_the_ledger(tmp_path):
    first = fit("digits-lt", out=tmp_path / "run", **SMALL)
    assert first.split == "selection"
    final = fit("digits-lt", out=tmp_path / "run", existing="resume", final=True, **SMALL)
    assert final.split == "test"
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["scores"]["ala"] for line in ledger] == [final.rows["ala"].mean]
    fit("digits-lt", out=tmp_path / "run", existing="resume", **SMALL)
    with pytest.raises(RunFolderError, match="it can be scored once"):
        fit("digits-lt", out=tmp_path / "run", existing="resume", final=True, **SMALL)


def test_a_run_that_cannot_start_destroys_nothing(tmp_path):
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(InputError):
        fit("digits-lt", out=tmp_path / "run", existing="overwrite", model="typo", **SMALL)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_saved_policy_is_reused_without_learning(tmp_path):
    fit("digits-lt", out=tmp_path / "first", **SMALL)
    policy = tmp_path / "first" / "policy-0.safetensors"
    fit("digits-lt", out=tmp_path / "second", policy=str(policy), freeze=True, **{**SMALL, "seeds": 1, "seed": 7})
    reused = load_file(tmp_path / "second" / "policy-7.safetensors")
    assert all(torch.equal(reused[name], tensor) for name, tensor in load_file(policy).items())


def test_a_random_walk_comes_with_the_r2_of_its_reward(tmp_path):
    result = fit("digits-lt", out=tmp_path / "run", **{**SMALL, "iterations": 120, "methods": ("random-walk",)})
    assert result.learnable.decisions == 2 * 3 * 7
    assert 0 <= result.learnable.r2 <= 1


def test_a_method_can_have_children_of_its_own_number(tmp_path):
    two = {**SMALL, "children": 2, "iterations": 100}
    few = fit("digits-lt", out=tmp_path / "few", **{**two, "methods": ("fixed", "logit-adjustment:children=1", "ala")})
    arms = json.loads((tmp_path / "few" / "arms.json").read_text())
    assert [arm["children"] for arm in arms] == [2, 1, 2] * 2
    assert [arm["start"] for arm in arms] == [0, 2, 3, 5, 7, 8]
    every = fit("digits-lt", out=tmp_path / "every", **{**two, "methods": ("fixed", "logit-adjustment", "ala")})
    for method in ("fixed", "ala"):
        assert few.rows[method].mean == pytest.approx(every.rows[method].mean, abs=1e-6)


def test_resets_of_lost_children_are_said(tmp_path, stop_after):
    listener = stop_after(1000)
    settings = {**SMALL, "children": 6, "reset": 0.1, "methods": "ala"}
    fit("digits-lt", out=tmp_path / "run", listener=listener, **settings)
    resets = sum(value or 0 for row in rows(tmp_path / "run") for value in row["reset"])
    assert resets > 0
    assert any(f"ala: {int(resets)} times in 6 steps × 12 children" in sentence for sentence in listener.sentences)
