"""A wrapped model is measured and kept as the model inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda model: torch.compile(model, backend="eager"),  # type: ignore[return-value]
    "parallel": DataParallel,
    "compiled parallel": lambda model: torch.compile(DataParallel(model), backend="eager"),  # type: ignore[return-value]
    "parallel compiled": lambda model: DataParallel(torch.compile(model, backend="eager")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_best_weights_have_the_names_of_the_plain_model(wrapper: str, problem: Any, assert_equal: Any) -> None:
    best = []
    for wrap in (WRAPPERS[wrapper], lambda model: model):
        torch.manual_seed(0)
        aligner = problem.aligner(total_steps=12)
        problem.train(aligner, 12, model=wrap(problem.network()))
        best.append(aligner.best_state_dict())
    problem.network().load_state_dict(best[0], strict=True)
    assert_equal(*best)


def test_a_model_may_be_wrapped_on_the_way(problem: Any) -> None:
    aligner, model = problem.aligner(), problem.network()
    problem.train(aligner, 4, model=model)
    problem.train(aligner, 5, start=4, model=DataParallel(model))
    assert len(aligner.history) == 3


def test_the_modes_of_a_wrapped_model_are_put_back(problem: Any) -> None:
    model = problem.network()
    model[1].eval()
    wrapped = DataParallel(model)
    problem.aligner(every=1).step(wrapped)
    assert [module.training for module in wrapped.modules()] == [True, True, True, False, True, True, True]
