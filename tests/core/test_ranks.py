"""Ranks: who owns which rows, what travels, and how one rank's mistake reaches the others."""

import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError, NonFiniteError, RankError, Ranks, fingerprint
from lossalign.core.ranks import shard


@given(st.integers(1, 50), st.integers(1, 50))
def test_shards_cover_all_rows_once_and_differ_by_one_at_most(count, more):
    parts = [shard(count + more, rank, count) for rank in range(count)]
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(count + more))
    sizes = {part.stop - part.start for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_more_ranks_than_children_names_the_way_out():
    with pytest.raises(InputError, match=r"4 ranks for 3 children.*at most 3 processes, or train more --children"):
        Ranks(0, 4).shards(3)


def test_alone_nothing_is_sent_and_errors_stay_as_they_are():
    alone = Ranks.current()
    assert alone == Ranks(0, 1)
    assert alone.exchange(lambda: 7) == [7]
    assert alone.gather(torch.ones(2)).tolist() == [1, 1]
    assert alone.on_first(lambda: "x") == "x"
    with pytest.raises(ZeroDivisionError):
        alone.guarded(lambda: 1 / 0)


def test_a_fingerprint_tells_one_bit_and_the_sign_of_zero():
    assert fingerprint([torch.zeros(3)]) != fingerprint([-torch.zeros(3)])
    assert fingerprint([torch.ones(2, 2).T]) == fingerprint([torch.ones(2, 2)])


@pytest.fixture(scope="module")
def told(on_ranks, tmp_path_factory):
    """What three ranks found."""
    folder = tmp_path_factory.mktemp("told")
    on_ranks(__file__, 3, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(3)]


def test_tensors_of_every_type_and_of_uneven_length_are_gathered_in_rank_order(told):
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        expected = torch.tensor([[0, 0], [1, 1], [1, 1], [2, 2], [2, 2], [2, 2]]).to(dtype)
        for one in told:
            assert torch.equal(one["gathered"][dtype], expected)


def test_values_come_from_all_ranks_from_one_and_to_the_first(told):
    for rank, one in enumerate(told):
        assert one["exchanged"] == [0, 10, 20]
        assert one["of the last"] == "rank 2"
        assert one["collected"] == ([0, 1, 1, 2, 2, 2] if rank == 0 else [])


def test_an_error_of_ours_on_one_rank_is_raised_on_all_and_names_it(told):
    own, *others = told[1]["ours"], told[0]["ours"], told[2]["ours"]
    assert isinstance(own, NonFiniteError)
    assert str(own) == "it diverged"
    for error in others:
        assert isinstance(error, NonFiniteError)
        assert str(error) == "rank 1: it diverged"
        assert error.child == 5


def test_an_error_of_somebody_elses_travels_in_words(told):
    assert isinstance(told[1]["theirs"], KeyError)
    for rank in (0, 2):
        assert isinstance(told[rank]["theirs"], RankError)
        assert str(told[rank]["theirs"]) == "rank 1: KeyError: 'unknown'"


def test_what_fails_on_the_first_rank_fails_on_all(told):
    assert [str(one["first"]) for one in told] == ["no folder", "rank 0: no folder", "rank 0: no folder"]


def test_a_rank_that_leaves_is_noticed(told):
    for rank in (0, 1):
        assert isinstance(told[rank]["left"], RankError)
        assert str(told[rank]["left"]).startswith("rank 2 has exited or does not answer; resume")
        assert "--resume" in str(told[rank]["left"])


def test_a_rank_that_does_not_answer_is_named_in_time(on_ranks, tmp_path):
    on_ranks(__file__, 2, tmp_path, "stopped")
    error, seconds = torch.load(tmp_path / "0.pt", weights_only=False)
    assert isinstance(error, RankError)
    assert str(error).startswith("rank 1 has exited or does not answer; resume")
    assert seconds < 10


def _caught(work):
    try:
        work()
    except Exception as error:
        return error
    return None


def _fail(error):
    raise error


def _main(rank, count, meeting, folder):
    ranks, found = Ranks.current(), {}
    found["gathered"] = {
        dtype: ranks.gather(torch.full((rank + 1, 2), rank).to(dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64)
    }
    found["exchanged"] = ranks.exchange(lambda: rank * 10)
    found["of the last"] = ranks.on(2, lambda: f"rank {rank}")
    found["collected"] = ranks.collect([rank] * (rank + 1))
    diverged = NonFiniteError("it diverged", child=5)
    found["ours"] = _caught(lambda: ranks.guarded(lambda: _fail(diverged) if rank == 1 else None))
    found["theirs"] = _caught(lambda: ranks.exchange(lambda: _fail(KeyError("unknown")) if rank == 1 else None))
    found["first"] = _caught(lambda: ranks.on_first(lambda: _fail(InputError("no folder"))))
    if rank < 2:
        found["left"] = _caught(lambda: ranks.exchange(lambda: None))
    torch.save(found, folder / f"{rank}.pt")


def _wait_for_a_stopped_rank(rank, folder):
    ranks, began = Ranks.current(), time.monotonic()
    ranks.wait_at_most(2)
    ranks.exchange(lambda: None)
    if rank == 1:
        time.sleep(6)
        return
    torch.save((_caught(lambda: ranks.exchange(lambda: None)), time.monotonic() - began), folder / "0.pt")


if __name__ == "__main__" and sys.argv[5:]:
    _wait_for_a_stopped_rank(int(sys.argv[1]), Path(sys.argv[4]))
elif __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
