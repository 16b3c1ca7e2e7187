"""The worst children copy the best, as many as the share says, and nobody else copies anybody."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import choose_parents, generator


@given(n=st.integers(1, 30), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_worst_copy_from_the_best_that_copy_nobody(n, share, seed):
    errors = torch.randperm(n, generator=generator(seed)).float()
    parents = choose_parents(errors, share, generator(seed, "parents"))
    copying = parents != torch.arange(n)
    number = min(n - 1, round(share * n))
    assert int(copying.sum()) == number
    worst, best = errors.argsort()[n - number :], errors.argsort()[: max(1, min(number, n - number))]
    assert set(copying.nonzero().flatten().tolist()) == set(worst.tolist())
    assert set(parents[copying].tolist()) <= set(best.tolist())
    assert not copying[parents].any()


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_share_of_nobody_changes_nothing(share):
    assert choose_parents(torch.tensor([0.3, 0.1, 0.2]), share, generator(0)).tolist() == [0, 1, 2]


def test_the_parents_are_drawn_from_the_generator_alone():
    errors = torch.arange(20.0)
    drawn = [choose_parents(errors, 0.4, generator(seed)).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
