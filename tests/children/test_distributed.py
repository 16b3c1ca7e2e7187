"""Children spread over three processes are those of one process, bit for bit."""

import sys
from pathlib import Path

import pytest
import torch

from lossalign.children.distributed import DistributedChildren
from lossalign.core import InputError, Ranks

SEEDS = (0, 1, 2, 3, 4)  # shards of 2, 2 and 1
BETTER = torch.tensor([True, False, True, True, False])


def exercise(children, offsets, inputs):
    """Everything that a population does with children."""
    phi = offsets(len(SEEDS))
    seen = {"losses": children.advance(3, phi)}
    children.keep_best(BETTER)
    seen["more losses"] = children.advance(2, -phi)
    for weights in ("raw", "averaged", "best"):
        seen[weights] = children.outputs([inputs.float()] * len(SEEDS), weights)
    seen["own inputs"] = children.outputs([inputs[i : i + 4].float() for i in range(len(SEEDS))], "averaged")
    seen["weights"] = [children.child_state(child, "best") for child in range(len(SEEDS))]
    return seen


def flat(value, path=""):
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: value}


def assert_equal(one, other):
    mine, theirs = flat(one), flat(other)
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key], key


@pytest.fixture(scope="module")
def three(on_ranks, tmp_path_factory):
    """What three ranks saw."""
    folder = tmp_path_factory.mktemp("distributed")
    on_ranks(__file__, 3, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(3)]


@pytest.fixture
def alone(build):
    return build("sequential", "dropout", SEEDS)


def test_every_rank_sees_what_one_process_sees(three, alone, offsets, inputs):
    expected = exercise(alone, offsets, inputs)
    for seen in three:
        assert_equal(seen["exercise"], expected)


@pytest.mark.parametrize("engine", ["vmap", "fused"])
def test_engines_that_train_children_together_agree_to_rounding(three, build, offsets, inputs, engine):
    expected = exercise(build(engine, "small-cnn", SEEDS), offsets, inputs)
    for seen in three:
        for key, value in flat(expected).items():
            torch.testing.assert_close(flat(seen[engine])[key], value, rtol=1e-4, atol=1e-5)


def test_the_state_of_all_is_on_the_first_rank_as_one_process_gives_it(three, alone, offsets, inputs):
    exercise(alone, offsets, inputs)
    assert_equal(three[0]["state"], alone.state_dict())
    assert three[1]["state"]["members"] == []


def test_one_process_resumes_from_three_and_three_from_one(three, alone, offsets):
    alone.load_state_dict(three[0]["state"])
    expected = alone.advance(4, offsets(len(SEEDS)))
    for seen in three:
        assert torch.equal(seen["resumed losses"], expected)
        assert seen["iteration"] == 9


def test_only_this_ranks_children_are_made(three):
    assert [seen["made"] for seen in three] == [(0, 2), (2, 4), (4, 5)]


def test_a_child_that_fails_on_one_rank_fails_on_all(three):
    assert [str(seen["failure"]) for seen in three] == [
        "rank 1: no more batches",
        "no more batches",
        "rank 1: no more batches",
    ]


def test_another_number_of_children_is_refused(three):
    for seen in three:
        assert "it holds 4 children, this run has 5" in str(seen["refused"])


def _caught(work):
    try:
        work()
    except InputError as error:
        return error
    return None


def _main(rank, count, meeting, folder):
    from conftest import INPUTS, build, offsets  # beside this script

    made, streams = [], []

    def make(rows):
        made.append((rows.start, rows.stop))
        return build("sequential", "dropout", SEEDS[rows], streams=streams)

    def children(make=make):
        return DistributedChildren(make, len(SEEDS), Ranks.current())

    first = children()
    seen = {"exercise": exercise(first, offsets, INPUTS), "state": first.state_dict(), "made": made[0]}
    alone = build("sequential", "dropout", SEEDS)
    exercise(alone, offsets, INPUTS)
    state = alone.state_dict()
    second = children()
    second.load_state_dict(state)
    seen["resumed losses"] = second.advance(4, offsets(len(SEEDS)))
    seen["iteration"] = second.iteration
    seen["refused"] = _caught(lambda: second.load_state_dict({**state, "members": state["members"][:4]}))
    if rank == 1:
        streams[-1].next = _fail
    seen["failure"] = _caught(lambda: second.advance(1, offsets(len(SEEDS))))
    for engine in ("vmap", "fused"):
        together = children(lambda rows, engine=engine: build(engine, "small-cnn", SEEDS[rows]))
        seen[engine] = exercise(together, offsets, INPUTS)
    torch.save(seen, folder / f"{rank}.pt")


def _fail():
    raise InputError("no more batches")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
