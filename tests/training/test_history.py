"""A record of each move, and a history that does not grow without bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lossalign as la
from lossalign.training.history import MoveLog


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(-1) == targets).float().mean())


def test_a_step_returns_what_it_led_to(problem: Any) -> None:
    preset = la.default(sensitivity=False)
    options: dict[str, Any] = {"metric": accuracy, "higher_is_better": True, "preset": preset}
    aligner, model = (
        problem.aligner(every=4, loss=la.AlignedLoss(3, groups=("weights", "offsets")), **options),
        problem.network(),
    )
    optimizer, moves, under = torch.optim.SGD(model.parameters(), lr=0.1), [], []
    for x, y in problem.batches(0, 20):
        phi = aligner.phi
        aligner(model(x), y).backward()
        optimizer.step()
        move = aligner.step(model)
        if move is not None:
            moves.append(move)
            under.append(phi)
    assert [(move.step, move.iteration) for move in moves] == [(1, 4), (2, 8), (3, 12), (4, 16), (5, 20)]
    assert all(0 < move.metric <= 1 for move in moves), "in the metric's own direction"
    assert max(move.metric for move in moves) == aligner.best_metric
    assert [move.reward is None for move in moves] == [True, False, False, False, False]
    for move, phi in zip(moves, under, strict=True):
        assert list(move.phi) == ["weights", "offsets"]
        assert torch.equal(torch.cat(list(move.phi.values())), phi)
    history = aligner.history
    assert history.iterations.tolist() == [4, 8, 12, 16, 20]
    assert history.metric.tolist() == [move.metric for move in moves]
    assert torch.equal(history.phi, torch.stack(under))
    assert history.reward[1:].tolist() == [move.reward for move in moves[1:]]
    assert history.reward[0].isnan()


def test_a_record_can_not_be_changed(problem: Any) -> None:
    aligner = problem.aligner(every=1)
    move = aligner.step(problem.network())
    with pytest.raises(AttributeError):
        move.step = 3


def filled(moves: int, limit: int) -> MoveLog:
    log = MoveLog(parameters=2, limit=limit)
    for step in range(moves):
        log.add(iteration=step, metric=float(step), phi=torch.full((2,), float(step)), reward=None if not step else 0.5)
    return log


@given(st.integers(0, 300), st.integers(2, 20))
def test_at_most_so_many_moves_are_kept_evenly_spaced_from_the_first(moves: int, limit: int) -> None:
    history = filled(moves, limit).history
    assert min(moves, (limit + 1) // 2) <= len(history) <= limit
    assert history.phi.shape == (len(history), 2)
    assert torch.equal(history.iterations, history.phi[:, 0].long())
    assert torch.equal(history.metric, history.phi[:, 0])
    assert len(history.iterations.diff().unique()) <= 1
    assert history.iterations[:1].tolist() in ([], [0])


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_history_resumes(before: int, after: int) -> None:
    whole = filled(before + after, limit=8)
    resumed = MoveLog(parameters=2, limit=8)
    resumed.load_state_dict(filled(before, limit=8).state_dict())
    for step in range(before, before + after):
        resumed.add(
            iteration=step, metric=float(step), phi=torch.full((2,), float(step)), reward=None if not step else 0.5
        )
    for name, expected in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], expected, equal_nan=True)


def test_many_parameters_keep_fewer_moves() -> None:
    log = MoveLog(parameters=5_000_000)
    for step in range(9):
        log.add(iteration=step, metric=0.0, phi=torch.zeros(1).expand(5_000_000), reward=None)
    assert log.history.iterations.tolist() == [0, 4, 8]


def test_a_long_run_of_an_aligner_is_bounded(
    problem: Any, monkeypatch: pytest.MonkeyPatch, copied: Callable[[Any], Any]
) -> None:
    aligner = problem.aligner(every=1, total_steps=30)
    aligner._log = MoveLog(3, limit=8)
    problem.train(aligner, 30)
    assert aligner.history.iterations.tolist() == [1, 5, 9, 13, 17, 21, 25, 29]
    assert len(copied(aligner.state_dict())["_extra_state"]["history"]["phi"]) == 8
