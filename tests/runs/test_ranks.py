"""A run on several ranks leaves what one process leaves, byte for byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lossalign import fit
from lossalign.core import InputError, Interrupted, RankError
from lossalign.runs import Listener

METHODS = ("fixed", "ala", "post-hoc-offsets", "random-matrix")  # two populations, of 6 and 3 children
SETTINGS = {
    "iterations": 60,
    "children": 3,
    "inherit_every": 2,
    "methods": METHODS,
    "engine": "sequential",
    "device": "cpu",
}
SAME = ("metrics.jsonl", "policy-0.safetensors", "best.safetensors")


class StopAfter(Listener):
    def __init__(self, steps):
        self.left = steps

    def stop(self):
        self.left -= 1
        return self.left <= 0


def assert_same_run(one, other):
    for name in SAME:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    results = [json.loads((path / "results.json").read_text())["seeds"] for path in (one, other)]
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process with all children."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    fit("digits-lt", out=folder, final=True, **SETTINGS)
    return folder


@pytest.fixture(scope="module")
def two(on_ranks, tmp_path_factory):
    """A folder with what two ranks wrote from Python, and what each found."""
    folder = tmp_path_factory.mktemp("two")
    on_ranks(__file__, 2, folder)
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_ranks_leave_the_run_of_one_process(two, alone):
    folder, seen = two
    assert_same_run(folder / "run", alone)
    assert seen[0]["result"] == seen[1]["result"]
    assert [path.name for path in (folder / "run").glob("ledger*")] == ["ledger.jsonl"]
    assert len((folder / "run" / "environment.jsonl").read_text().splitlines()) == 1


def test_all_stop_when_one_is_asked_to_and_one_process_resumes(two, alone):
    folder, seen = two
    assert [type(found["stopped"]) for found in seen] == [Interrupted, Interrupted]
    fit("digits-lt", out=folder / "cut", existing="resume", final=True, **SETTINGS)
    assert_same_run(folder / "cut", alone)


def test_a_rank_with_another_policy_is_named_with_the_step(two):
    for found in two[1]:
        assert isinstance(found["other"], RankError)
        assert "step 1: policy and Φ of rank 1" in str(found["other"])


def test_a_rank_with_other_data_is_named_before_anything_is_written(two):
    for found in two[1]:
        assert isinstance(found["data"], RankError)
        assert "rank 1 has other data than rank 0 (inputs" in str(found["data"])
    assert not (two[0] / "data").exists()


def test_what_one_rank_lacks_is_an_error_on_all(two):
    for found in two[1]:
        assert isinstance(found["lacking"], InputError)
        assert "here.csv" in str(found["lacking"])


def test_torchrun_with_three_ranks_leaves_the_run_of_one_process(alone, tmp_path):
    done = torchrun(3, "--methods", *METHODS, "--children", "3", "--out", str(tmp_path / "run"), "--final", "--json")
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "run", alone)
    assert json.loads(done.stdout)["split"] == "test"  # said once
    assert "3 ranks" in done.stderr


def test_more_ranks_than_children_is_refused_before_anything_is_written(two):
    assert [str(found["crowd"]).startswith("2 ranks for 1 children") for found in two[1]] == [True, True]
    assert not (two[0] / "crowd").exists()


def torchrun(count, *args):
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    task = ["-m", "lossalign", "train", "digits-lt", "--iterations", "60", "--engine", "sequential", "--device", "cpu"]
    task += ["--inherit-every", "2"]
    return subprocess.run([*ranks, *task, *args], capture_output=True, text=True, timeout=100)


def _caught(work):
    try:
        work()
    except Exception as error:
        return error
    return None


def _main(rank, count, meeting, folder):
    (folder / f"{rank}").mkdir()
    if rank == 0:
        (folder / "0" / "here.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(200)))
    result = fit("digits-lt", out=folder / "run", final=True, **SETTINGS)
    listener = StopAfter(4 if rank == 1 else 1000)
    seen = {
        "result": result.to_json(),
        "stopped": _caught(lambda: fit("digits-lt", out=folder / "cut", listener=listener, **SETTINGS)),
        "crowd": _caught(lambda: fit("digits-lt", out=folder / "crowd", children=1)),
        "other": _caught(
            lambda: fit("digits-lt", out=folder / "other", **SETTINGS, policy=["pretrained", "none"][rank])
        ),
        "data": _caught(lambda: fit("digits-lt", out=folder / "data", **{**SETTINGS, "seed": rank})),
        "lacking": _caught(lambda: fit(f"table:{folder / str(rank) / 'here.csv'}", out=folder / "table", children=2)),
    }
    torch.save(seen, folder / f"{rank}.pt")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
