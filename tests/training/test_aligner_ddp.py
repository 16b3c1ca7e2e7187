"""An aligner in a DDP loop of two ranks: the metric is of the whole validation set, and Φ is one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lossalign as la
from lossalign.core import InputError, RankError

EXAMPLE = Path(__file__).parents[2] / "examples/own_loop_ddp.py"
STEPS = 8
BY_ZERO = "integer division or modulo by zero"

G = torch.Generator().manual_seed(0)
TARGETS = torch.arange(103) % 3
INPUTS = torch.randn(103, 4, generator=G) + TARGETS[:, None]
VALIDATION = TensorDataset(INPUTS[60:], TARGETS[60:])  # 43 samples: two ranks cannot share them evenly


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def aligner(loader, **options):
    metric = options.pop("metric", la.metrics.BalancedError())
    return la.Aligner(
        la.AlignedLoss(3), metric, loader, 3 * STEPS, every=3, controller="fresh", split_validation=False, **options
    )


def trained(aligner, model, seed=0):
    """The user's loop; ranks with the same ``seed`` see the same batches. Returns what must be one for all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for iteration in range(3 * STEPS):
        at = torch.randint(60, (12,), generator=torch.Generator().manual_seed(100 * seed + iteration))
        loss = aligner(model(INPUTS[at]), TARGETS[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        aligner.step(model)
    return {
        "history": aligner.history.phi,
        "policy": dict(aligner.policy.state_dict()),
        "best": aligner.best_state_dict(),
        "error": aligner.state_dict()["_extra_state"]["best_error"],
    }


@pytest.fixture(scope="module")
def two(on_ranks, tmp_path_factory):
    """What two ranks held in the end."""
    folder = tmp_path_factory.mktemp("ddp")
    on_ranks(__file__, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def one():
    """One process over the same batches and the whole validation set."""
    with torch.random.fork_rng([]):
        return trained(aligner(DataLoader(VALIDATION, 16)), network())


@pytest.mark.parametrize("how", ["sharded", "whole", "other batches", "raw", "minibatch", "own sampler"])
def test_ranks_hold_one_phi_one_policy_and_one_best(two, how):
    first, second = (rank[how] for rank in two)
    assert bool((first["history"][0] != first["history"][-1]).any())
    assert torch.equal(first["history"], second["history"])
    for name in ("policy", "best"):
        assert all(torch.equal(tensor, second[name][key]) for key, tensor in first[name].items())


@pytest.mark.parametrize("how", ["sharded", "whole"])
def test_ranks_with_the_same_batches_do_what_one_process_does(two, one, how):
    assert torch.equal(two[0][how]["history"], one["history"])
    assert two[0][how]["error"] == pytest.approx(one["error"])
    for name in ("policy", "best"):
        for key, tensor in one[name].items():
            torch.testing.assert_close(two[0][how][name][key], tensor)


def test_what_the_sampler_repeats_is_counted_once(two):
    assert set(two[0]["counted"]) == {43}


def test_the_best_weights_load_into_the_plain_network(two):
    found = network().load_state_dict(two[1]["sharded"]["best"], strict=False)
    assert found.missing_keys == found.unexpected_keys == []


def test_another_seed_on_one_rank_is_found_out(two):
    for rank in two:
        assert isinstance(rank["other seed"], RankError)
        assert "step 1: policy and Φ of rank 1 are not those of rank 0" in str(rank["other seed"])


def test_a_pipeline_that_scores_its_part_alone_is_refused(two):
    for rank in two:
        assert isinstance(rank["pipeline"], InputError)
        assert "must gather" in str(rank["pipeline"])


def test_a_mistake_on_one_rank_is_raised_on_both(two):
    assert [str(rank["mistake"]) for rank in two] == [f"rank 1: ZeroDivisionError: {BY_ZERO}", BY_ZERO]


def test_the_example_runs_on_two_ranks():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    # Not the exit code: on a busy machine torch's own threads now and then abort a rank that has finished.
    offsets = re.findall(r"rank \d of 2: offsets (\[[^]]*\])", done.stdout)
    assert len(offsets) == 2, done.stderr
    assert offsets[0] == offsets[1]


def _caught(work):
    try:
        work()
    except Exception as error:
        return error
    return None


def _main(rank, count, meeting, folder):
    whole = DataLoader(VALIDATION, 16)
    part = DataLoader(VALIDATION, 16, sampler=DistributedSampler(VALIDATION, shuffle=False))
    halves = [(INPUTS[60 + rank :: 2], TARGETS[60 + rank :: 2])]  # 22 and 21 samples
    raw = la.default(weight_average=None)
    minibatch = la.default(evaluation="minibatch")

    def run(aligner, seed=0):
        return trained(aligner, DistributedDataParallel(network()), seed)

    counted = []

    def count_samples(outputs, targets):
        counted.append(len(targets))
        return float((outputs.argmax(-1) != targets).float().mean())

    def own_part(model, loader):
        return float(rank)

    def mistaken(model, batch):
        return model(batch[0]) * (1 // (1 - rank)), batch[1]

    seen = {
        "sharded": run(aligner(part, val_sharded=True)),
        "whole": run(aligner(whole)),
        "other batches": run(aligner(part, val_sharded=True), seed=rank),
        "raw": run(aligner(part, val_sharded=True, preset=raw), seed=rank),
        "minibatch": run(aligner(part, val_sharded=True, preset=minibatch), seed=rank),
        "own sampler": run(aligner(halves, val_sharded=True), seed=rank),
        "other seed": _caught(lambda: run(aligner(whole, seed=rank))),
        "pipeline": _caught(lambda: run(aligner(part, val_sharded=True, metric=own_part, higher_is_better=False))),
        "mistake": _caught(lambda: run(aligner(whole, forward=mistaken))),
    }
    run(aligner(part, val_sharded=True, metric=count_samples, higher_is_better=False))
    seen["counted"] = counted
    torch.save(seen, folder / f"{rank}.pt")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
