"""The searches: what they count is what argmax decides, and what they find is at least where they started."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.decision import (
    CountsScore,
    Evidence,
    calibrations,
    confusions,
    frank_wolfe,
    resampled,
    rounded,
    search,
    search_offsets,
)
from lossalign.metrics import MacroF1, MeanCost, WorstClassRecall


def evidence(seed: int, classes: int = 4, samples: int = 40, fits: int = 2, sets: int = 3) -> Evidence:
    """Probabilities, labels drawn with them, and resampled sets."""
    draw = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(fits, samples, classes, generator=draw), -1)
    truth = torch.nn.functional.one_hot(torch.multinomial(p[0], 1, generator=draw).squeeze(1), classes)
    return Evidence(p, truth.float().expand(fits, -1, -1), torch.rand(sets, samples, generator=draw) + 0.5)


def direct(seen: Evidence, offsets: Tensor) -> Tensor:
    """The counts of decisions with offsets [F, C], by argmax."""
    return confusions((seen.probabilities.log() + offsets[:, None]).argmax(-1), seen.truth, seen.draws)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 3))
def test_the_counts_of_all_moves_are_those_of_argmax(seed: int, c: int) -> None:
    seen = evidence(seed)
    logs = seen.probabilities.log()
    moves = torch.linspace(-3, 3, 7).repeat(2, 1)
    found = search._moved_counts(logs, logs[..., c], c, moves, seen)
    for m in range(7):
        offsets = torch.zeros(2, 4)
        offsets[:, c] = moves[:, m]
        torch.testing.assert_close(found[:, m], direct(seen, offsets), rtol=1e-4, atol=1e-4)


@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from([MacroF1(), WorstClassRecall()]))
def test_a_search_is_never_worse_on_what_it_sees_than_its_start(seed: int, metric: MacroF1) -> None:
    seen, score = evidence(seed), CountsScore(metric, 4, 40)
    before = score(direct(seen, torch.zeros(2, 4))).mean(-1)
    offsets = search_offsets(score, seen, torch.zeros(2, 4))
    assert (score(direct(seen, offsets)).mean(-1) >= before - 1e-5).all()
    gains = frank_wolfe(score, seen, torch.eye(4).expand(2, -1, -1))
    assert (score(seen.decided(gains)).mean(-1) >= before - 1e-5).all()


def test_for_costs_frank_wolfe_is_the_bayes_decision() -> None:
    seen = evidence(0, samples=200)
    costs = torch.rand(4, 4, generator=torch.Generator().manual_seed(1)) * (1 - torch.eye(4))
    gains = frank_wolfe(
        CountsScore(MeanCost(costs), 4, 200), seen._replace(truth=seen.probabilities), torch.eye(4).expand(2, -1, -1)
    )
    bayes = (seen.probabilities @ costs).argmin(-1)
    assert ((seen.probabilities @ gains).argmax(-1) == bayes).all()


@given(st.integers(0, 1000), st.integers(4, 500))
def test_rounded_counts_keep_the_total_and_are_near(seed: int, total: int) -> None:
    counts = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(seed))
    found = rounded(counts, total)
    assert (found.sum((1, 2)) == total).all()
    assert (found - counts / counts.sum((1, 2), keepdim=True) * total).abs().max() < 1 + 1e-4


def test_few_samples_move_a_calibration_less() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.arange(4).repeat(5)
    outputs = (
        torch.randn(20, 4, generator=draw) + 2 * torch.nn.functional.one_hot(targets) + torch.tensor([3.0, 0, 0, 0])
    )
    few, many = (calibrations(outputs.repeat(n, 1), targets.repeat(n), torch.ones(1, 20 * n)) for n in (1, 50))
    assert few.bias.std() < many.bias.std()


def test_resampling_keeps_the_class_sizes() -> None:
    targets = torch.tensor([0] * 10 + [1] * 3 + [2])
    draws = resampled(targets, 20, torch.Generator().manual_seed(0))
    sizes = draws @ torch.nn.functional.one_hot(targets).float()
    torch.testing.assert_close(sizes, torch.tensor([10.0, 3, 1]).expand(20, -1))
