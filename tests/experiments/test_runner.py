"""Whole runs on the embedded digits, as small as they can be."""

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lossalign.control import Policy
from lossalign.core import InputError, NonFiniteError, RunFolderError
from lossalign.data import load_digits, long_tailed_counts, normalise
from lossalign.experiments import METHODS, Interrupted, Listener, fit
from lossalign.experiments.methods import FIXED_EMBEDDINGS
from lossalign.experiments.populations import build
from lossalign.experiments.recipes import recipe_for
from lossalign.experiments.score import score
from lossalign.training.checkpoint import load_checkpoint, previous

SMALL = {"iterations": 60, "children": 3, "seeds": 2, "methods": ("fixed", "ala")}


class StopAfter(Listener):
    def __init__(self, steps):
        self.left, self.sentences = steps, []

    def stepped(self, population, record, arms):
        self.left -= 1

    def said(self, sentence):
        self.sentences.append(sentence)

    def stop(self):
        return self.left <= 0


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_method_runs_and_leaves_its_files(tmp_path):
    np.savetxt(tmp_path / "costs.csv", 1 - np.eye(10), delimiter=",")
    methods = tuple(name for name in METHODS if name not in FIXED_EMBEDDINGS)
    settings = {"iterations": 30, "methods": methods, "metric": f"mean-cost:{tmp_path / 'costs.csv'}"}
    result = fit("digits-lt", out=tmp_path / "run", **{**SMALL, **settings})
    assert list(result.rows) == list(methods)
    assert all(0 <= row.mean <= 1 and row.policies == 2 for row in result.rows.values())
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        *("config.json", "environment.jsonl", "arms.json", "metrics.jsonl", "results.json", "best.safetensors"),
        *("phi-aligned.npz", "phi-class-correlation.npz", "checkpoint-aligned.pt", "checkpoint-class-correlation.pt"),
        *("policy-0.safetensors", "policy-1.safetensors", "curves.png", "phi.png", "tensorboard"),
    } <= names
    assert "ledger.jsonl" not in names
    Policy.load(tmp_path / "run" / "policy-0.safetensors")


def test_the_best_weights_load_into_a_plain_model(tmp_path):
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    from lossalign.models import build_model

    model = build_model("mlp-16", input_shape=(1, 8, 8), num_classes=10, generator=torch.Generator())
    model.load_state_dict(load_file(tmp_path / "run" / "best.safetensors"))
    with safe_open(tmp_path / "run" / "best.safetensors", framework="pt") as file:
        described = json.loads(file.metadata()["lossalign"])
    digits = load_digits()
    inputs = (digits.inputs * described["scale"] - torch.tensor(described["mean"])) / torch.tensor(described["std"])
    wrong = model(inputs).argmax(1) != digits.targets
    assert wrong.float().mean() < 0.5
    assert described["class_names"] == list(digits.class_names)


@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, engine):
    settings = {**SMALL, "engine": engine, "methods": ("fixed", "ala", "random-matrix")}
    whole = fit("digits-lt", out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted, match="--resume"):
        fit("digits-lt", out=tmp_path / "cut", listener=StopAfter(3), **settings)
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path / "cut", existing="resume", listener=StopAfter(5), **settings)
    resumed = fit("digits-lt", out=tmp_path / "cut", existing="resume", **settings)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    assert resumed.rows == whole.rows
    for name in ("phi-aligned.npz", "phi-class-correlation.npz"):
        np.testing.assert_array_equal(
            np.load(tmp_path / "cut" / name)["phi"], np.load(tmp_path / "whole" / name)["phi"]
        )
    for name in ("policy-0.safetensors", "policy-1.safetensors", "best.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("damage", ["cut off", "cannot be read"])
def test_a_damaged_checkpoint_falls_back_and_says_so(tmp_path, damage):
    whole = fit("digits-lt", out=tmp_path / "whole", **SMALL)
    for existing, steps in (("refuse", 2), ("resume", 1)):
        with pytest.raises(Interrupted):
            fit("digits-lt", out=tmp_path / "cut", existing=existing, listener=StopAfter(steps), **SMALL)
    newest = tmp_path / "cut" / "checkpoint-aligned.pt"
    assert previous(newest).exists()
    if damage == "cut off":
        newest.write_bytes(newest.read_bytes()[:1000])
    else:
        newest.unlink()
    listener = StopAfter(1000)
    resumed = fit("digits-lt", out=tmp_path / "cut", existing="resume", listener=listener, **SMALL)
    assert any("checkpoint-aligned.pt" in sentence and damage in sentence for sentence in listener.sentences)
    assert resumed.rows == whole.rows


def test_divergence_names_the_step_and_keeps_the_run(tmp_path):
    settings = {**SMALL, "schedule": "constant", "learning_rate": 1e30}
    with pytest.raises(NonFiniteError, match=r"step 1: the training loss of child 0 is not finite"):
        fit("digits-lt", out=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "config.json").exists()


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
    state, warning = load_checkpoint(tmp_path / "run" / "checkpoint-aligned.pt")
    assert 1 <= state["step"] <= 3
    assert warning is None
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3]


def test_a_run_that_diverged_may_go_on_with_a_lower_rate(tmp_path):
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path / "run", listener=StopAfter(2), **SMALL)
    fit("digits-lt", out=tmp_path / "run", existing="resume", learning_rate=0.01, **SMALL)
    starts = (tmp_path / "run" / "environment.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"]["learning_rate"] for line in starts] == [0.1, 0.01]


def test_the_test_split_is_scored_once_and_entered_in_the_ledger(tmp_path):
    first = fit("digits-lt", out=tmp_path / "run", **SMALL)
    assert first.split == "selection"
    final = fit("digits-lt", out=tmp_path / "run", existing="resume", final=True, **SMALL)
    assert final.split == "test"
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["scores"]["ala"] for line in ledger] == [final.rows["ala"].mean]
    fit("digits-lt", out=tmp_path / "run", existing="resume", **SMALL)
    with pytest.raises(RunFolderError, match="a test set is used once"):
        fit("digits-lt", out=tmp_path / "run", existing="resume", final=True, **SMALL)


def test_a_run_that_cannot_start_destroys_nothing(tmp_path):
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(InputError):
        fit("digits-lt", out=tmp_path / "run", existing="overwrite", model="typo", **SMALL)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_method_does_not_depend_on_its_company():
    """Paired seeds: alone or among rivals, a method trains the same children on the same batches."""
    settings = {**SMALL, "iterations": 20, "engine": "sequential"}
    alone = build(recipe_for("digits-lt", **{**settings, "methods": ("ala",)}))
    among = build(recipe_for("digits-lt", **{**settings, "methods": ("fixed", "logit-adjustment", "ala")}))
    for experiment in (alone, among):
        for _ in range(2):
            experiment.populations["aligned"].step()
    np.testing.assert_array_equal(score(alone, final=False).best["ala"], score(among, final=False).best["ala"])


def test_children_of_one_policy_are_averaged_before_anything_else():
    experiment = build(recipe_for("digits-lt", **SMALL))
    population = experiment.populations["aligned"]
    record = population.step()
    values = score(experiment, final=False).last["fixed"]
    arms = [arm for arm in experiment.arms if arm.method == "fixed"]
    assert values == pytest.approx([float(record.selection[arm.rows].mean()) for arm in arms])


def test_splits_are_disjoint_and_every_seed_has_its_own():
    experiment = build(recipe_for("digits-lt", **SMALL))
    first, second = experiment.data[0], experiment.data[1]
    assert not torch.equal(first.test.inputs, second.test.inputs)
    parts = [normalise(first.train.inputs, first.transform), normalise(first.test.inputs, first.transform)]
    parts += [first.reward.inputs, first.selection.inputs]
    assert [len(part) for part in parts] == [long_tailed_counts(60, 10, 20).sum(), 300, 220, 220]
    for a, b in combinations(parts, 2):
        assert not (a[:, None] == b[None]).flatten(2).all(-1).any()


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
