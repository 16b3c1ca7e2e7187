"""What a run leaves behind can be used without it: weights, policies, results."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lossalign import fit
from lossalign.control import Policy
from lossalign.data import load_digits
from lossalign.evaluation import Result
from lossalign.experiments import METHODS
from lossalign.losses.registry import LOSSES
from lossalign.models import build_model
from lossalign.report import figures
from lossalign.runs import RunFolder

SMALL = {"iterations": 60, "children": 3, "seeds": 2, "methods": ("fixed", "ala")}


def described(folder):
    with safe_open(folder / "best.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["lossalign"])


def rebuilt(folder):
    """The network that the metadata of the best weights names, with those weights."""
    about = described(folder)
    shape, classes = tuple(about["input_shape"]), len(about["class_names"])
    model = build_model(about["model"], input_shape=shape, num_classes=classes, generator=torch.Generator())
    model.load_state_dict(load_file(folder / "best.safetensors"))
    return model.eval()


def test_every_method_of_classification_runs_and_leaves_its_files(tmp_path):
    np.savetxt(tmp_path / "costs.csv", 1 - np.eye(10), delimiter=",")
    embeds = {name for name in LOSSES if LOSSES[name].embeds}
    methods = tuple(name for name in METHODS if getattr(METHODS[name], "loss", None) not in embeds)
    assert len(methods) > 30
    settings = {"iterations": 30, "methods": methods, "metric": f"mean-cost:{tmp_path / 'costs.csv'}"}
    result = fit("digits-lt", out=tmp_path / "run", **{**SMALL, **settings})
    assert list(result.rows) == list(methods)
    assert all(0 <= row.mean <= 1 and row.seeds == 2 for row in result.rows.values())
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        *("config.json", "environment.jsonl", "arms.json", "metrics.jsonl", "results.json", "best.safetensors"),
        *("phi-aligned.npz", "phi-class-correlation.npz", "checkpoint-mlp-16.pt", "checkpoint-mlp-16.pt"),
        *("policy-0.safetensors", "policy-1.safetensors", "curves.png", "phi.png", "tensorboard"),
    } <= names
    assert "ledger.jsonl" not in names
    Policy.load(tmp_path / "run" / "policy-0.safetensors")


class TestBestWeights:
    def test_they_load_into_a_plain_model(self, tmp_path):
        fit("digits-lt", out=tmp_path / "run", **SMALL)
        about, digits = described(tmp_path / "run"), load_digits()
        inputs = (digits.inputs * about["scale"] - torch.tensor(about["mean"])) / torch.tensor(about["std"])
        wrong = rebuilt(tmp_path / "run")(inputs).argmax(1) != digits.targets
        assert wrong.float().mean() < 0.5
        assert about["class_names"] == list(digits.class_names)

    def test_a_network_with_an_ending_is_named_with_it(self, tmp_path):
        fit("digits-lt", out=tmp_path / "run", **{**SMALL, "methods": "ldam-drw"})
        assert described(tmp_path / "run")["model"] == "mlp-16+cosine"
        assert rebuilt(tmp_path / "run")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)

    def test_they_are_of_the_child_that_selection_likes_best(self, tmp_path):
        fit("digits-lt", out=tmp_path / "run", **{**SMALL, "children": 6, "iterations": 100})
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        arms = json.loads((tmp_path / "run" / "arms.json").read_text())
        best = {}
        for arm in [arm for arm in arms if arm["method"] == "ala"]:
            for child in range(arm["children"]):
                best[arm["seed"], child] = min(row["selection"][arm["start"] + child] for row in rows)
        about = described(tmp_path / "run")
        assert about["method"] == "ala"
        assert best[about["seed"], about["child"]] == min(best.values())


def test_every_learner_leaves_its_policy_under_a_name_of_its_own(tmp_path):
    fit("digits-lt", out=tmp_path / "run", **{**SMALL, "seeds": 1, "methods": ("fixed", "ala", "ala:horizon=1")})
    names = sorted(path.name for path in (tmp_path / "run").glob("policy-*"))
    assert names == ["policy-0-ala-horizon=1.safetensors", "policy-0.safetensors"]


def test_the_result_on_disk_is_the_result(tmp_path):
    result = fit("digits-lt", out=tmp_path / "run", **SMALL)
    saved = json.loads((tmp_path / "run" / "results.json").read_text())
    assert saved["rows"]["ala"]["mean"] == result.rows["ala"].mean
    assert saved["seeds"] == result.seeds
    assert saved["roles"] == {"fixed": "baseline", "ala": "learner"}
    assert all(path.exists() for path in result.files)


def test_the_history_of_phi_has_a_row_for_every_step_and_child(tmp_path):
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    with np.load(tmp_path / "run" / "phi-aligned.npz") as saved:
        assert saved["phi"].shape == (6, 12, 10)
        assert saved["steps"].tolist() == [1, 2, 3, 4, 5, 6]
        assert saved["group_names"].tolist() == ["offsets"]


def test_a_run_of_classification_leaves_no_pictures_of_retrieval(tmp_path):
    settings = {"iterations": 20, "every": 10, "children": 1, "methods": ("fixed",)}
    result = fit("digits-lt", out=tmp_path / "run", **settings)
    assert not {"retrieval.npz", "neighbours.png", "distances.png"} & {path.name for path in result.files}


def test_a_run_of_metric_learning_ends_with_its_pictures(tmp_path):
    settings = {"iterations": 40, "every": 10, "children": 2, "seeds": 2, "methods": ("fixed", "ala"), "device": "cpu"}
    result = fit("digits-retrieval", out=tmp_path / "run", **settings)
    names = [path.name for path in result.files]
    assert {"retrieval.npz", "neighbours.png", "distances.png"} <= set(names)
    assert all(path.exists() for path in result.files)
    assert (result.children, result.collapsed) == ({"fixed": 4, "ala": 4}, {})


def test_rivals_that_know_the_costs_are_scored_by_them(tmp_path):
    costs = torch.ones(10, 10) - torch.eye(10)
    costs[0] *= 5
    np.savetxt(tmp_path / "costs.csv", costs.numpy(), delimiter=",")
    methods = ("fixed", "cost-weighted", "bayes-decision")
    settings = {"iterations": 100, "children": 2, "methods": methods, "metric": f"mean-cost:{tmp_path / 'costs.csv'}"}
    result = fit("digits-lt", out=tmp_path / "run", **settings)
    assert set(result.rows) == set(methods)
    assert result.rows["bayes-decision"].mean != result.rows["fixed"].mean


def test_the_pretrained_policy_helps_splits_it_has_not_seen(tmp_path):
    settings = {"seed": 9100, "seeds": 4, "children": 4, "every": 5, "policy": "pretrained", "freeze": True}
    result = fit("digits-lt", out=tmp_path / "run", methods=("fixed", "ala"), **settings)
    assert result.rows["ala"].mean < result.rows["fixed"].mean - 0.02


@pytest.mark.parametrize("final", [False, True])
def test_the_ledger_has_a_line_for_a_final_score_alone(tmp_path, final):
    fit("digits-lt", out=tmp_path / "run", final=final, **SMALL)
    assert (tmp_path / "run" / "ledger.jsonl").exists() is final


class TestStopped:
    """A run that is stopped while it finishes can be finished, and no look at the test split is lost."""

    @pytest.fixture
    def killed_before_the_ledger(self, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "enter", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fit("digits-lt", out=tmp_path / "run", final=True, **SMALL)
        assert not (tmp_path / "run" / "ledger.jsonl").exists()
        return tmp_path / "run"

    def entries(self, folder):
        return [json.loads(line)["scores"]["ala"] for line in (folder / "ledger.jsonl").read_text().splitlines()]

    def test_the_final_score_can_be_asked_for_again(self, killed_before_the_ledger):
        found = json.loads((killed_before_the_ledger / "results.json").read_text())["rows"]["ala"]["mean"]
        result = fit("digits-lt", out=killed_before_the_ledger, existing="resume", final=True, **SMALL)
        assert self.entries(killed_before_the_ledger) == [result.rows["ala"].mean] == [found]

    def test_without_it_the_score_is_entered(self, killed_before_the_ledger):
        found = json.loads((killed_before_the_ledger / "results.json").read_text())["rows"]["ala"]["mean"]
        fit("digits-lt", out=killed_before_the_ledger, existing="resume", **SMALL)
        assert self.entries(killed_before_the_ledger) == [found]

    def test_files_appear_all_at_once_or_not_at_all(self, tmp_path, monkeypatch):
        names = {"results.json", "best.safetensors", "phi-aligned.npz", "policy-0.safetensors"}
        with monkeypatch.context() as patch:
            patch.setattr(Result, "to_json", lambda result: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(OSError, match="No space left"):
                fit("digits-lt", out=tmp_path / "run", **SMALL)
        assert not names & {path.name for path in (tmp_path / "run").iterdir()}
        assert not list((tmp_path / "run").glob("*.part"))
        fit("digits-lt", out=tmp_path / "run", existing="resume", **SMALL)
        assert names <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize("task", ["digits-lt", "digits-retrieval"])
def test_pictures_that_cannot_be_drawn_cost_pictures_alone(tmp_path, monkeypatch, stop_after, task):
    settings = {"iterations": 20, "every": 10, "children": 2, "methods": ("fixed", "ala")}
    monkeypatch.setattr(figures, "curves_figure", lambda run: (_ for _ in ()).throw(OSError(28, "No space left")))
    listener = stop_after(1000)
    result = fit(task, out=tmp_path / "run", final=True, listener=listener, **settings)
    assert (tmp_path / "run" / "results.json").exists()
    assert (tmp_path / "run" / "ledger.jsonl").exists()
    assert not [path for path in result.files if path.suffix == ".png"]
    assert any("cannot be drawn (OSError: [Errno 28] No space left)" in sentence for sentence in listener.sentences)


def test_examples_that_cannot_be_written_cost_their_pictures_alone(tmp_path, monkeypatch, stop_after):
    settings = {"iterations": 20, "every": 10, "children": 2, "methods": ("fixed",)}
    monkeypatch.setattr(np, "savez_compressed", full_for("retrieval.npz"))
    listener = stop_after(1000)
    result = fit("digits-retrieval", out=tmp_path / "run", listener=listener, **settings)
    assert "retrieval.npz" not in {path.name for path in result.files}
    assert all(path.exists() for path in result.files)
    assert any("retrieval.npz cannot be written" in sentence for sentence in listener.sentences)


def full_for(name, save=np.savez_compressed):
    def savez_compressed(path, **arrays):
        if Path(path).name == name:
            raise OSError(28, "No space left")
        save(path, **arrays)

    return savez_compressed
