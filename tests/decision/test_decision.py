"""``Decision``: it serves the metric, out of fold, and leaves alone what it cannot serve."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.classification import MulticlassCohenKappa, MultilabelF1Score

import lossalign as la
from lossalign.decision import (
    Candidate,
    CountsScore,
    Decision,
    expected_costs,
    fit_offsets,
    make_folds,
    out_of_fold,
)
from lossalign.metrics import (
    AUROC,
    BalancedError,
    ClassTotals,
    ErrorRate,
    FunctionMetric,
    MacroF1,
    MeanCost,
    Metric,
    TopKError,
    TotalsMetric,
    WorstClassRecall,
    score_children,
)


class GMean(TotalsMetric):
    """Geometric mean of the recalls, clamped: it plateaus where a class is lost."""

    name = "g-mean"
    higher_is_better = True

    def from_totals(self, totals: ClassTotals) -> Tensor:
        return (totals.correct / totals.truths).clamp_min(0.01).log().nanmean(-1).exp()


def long_tailed(seed: int, classes: int, each: int, sharpness: float = 2.0, tilt: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits [V, C] of a model that prefers the first classes, and balanced labels [V]."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(classes).repeat_interleave(each)
    noise = torch.randn(len(targets), classes, generator=draw)
    signal = sharpness * torch.nn.functional.one_hot(targets, classes)
    return signal + noise - tilt * torch.arange(classes) / classes, targets


COSTS = torch.tensor([[0.0, 1, 7], [2, 0, 1], [9, 3, 0]])


def gain(metric: Metric, decision: Decision, seed: int = 99, classes: int = 5) -> float:
    """How much better a decision is than none on fresh samples."""
    outputs, targets = long_tailed(seed, classes, 400)
    change = float(metric(decision(outputs), targets) - metric(outputs, targets))
    return change if metric.higher_is_better else -change


@pytest.mark.parametrize("metric", [BalancedError(), MacroF1(), GMean(), WorstClassRecall()], ids=lambda m: m.name)
def test_it_serves_the_metric_on_fresh_samples(metric: Metric) -> None:
    decision = Decision.fit(*long_tailed(0, 5, 60), metric)
    assert decision.chosen != "none"
    assert gain(metric, decision) > 0.02


def test_any_metric_may_be_a_black_box() -> None:
    calls = []

    def kappa(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        return MulticlassCohenKappa(5)(outputs, targets)

    decision = Decision.fit(*long_tailed(0, 5, 40), kappa, higher_is_better=True)
    assert gain(FunctionMetric(kappa, higher_is_better=True), decision) > 0.02
    assert len(calls) <= 32 * (5**2 + 2) + 272 * 5 + 320
    assert Decision.fit(*long_tailed(0, 3, 20), MulticlassCohenKappa(3)).metric == "MulticlassCohenKappa"
    assert Decision.fit(*long_tailed(0, 3, 20), "macro-f1").metric == "macro-f1"


def test_costs_give_the_bayes_decision_on_calibrated_probabilities() -> None:
    outputs, targets = long_tailed(1, 3, 50)
    decision = la.Decision.fit(outputs, targets, MeanCost(COSTS))
    bayes = expected_costs(decision.probabilities(outputs).log(), COSTS).argmin(-1)
    assert decision.chosen == "costs"
    torch.testing.assert_close(decision.labels(outputs), bayes)
    torch.testing.assert_close(decision.gains, -COSTS)


def test_costs_that_are_not_said_are_elicited() -> None:
    outputs, targets = long_tailed(1, 3, 150)
    found = Decision.fit(outputs, targets, FunctionMetric(MeanCost(COSTS), higher_is_better=False))
    said = Decision.fit(outputs, targets, MeanCost(COSTS))
    fresh, labels = long_tailed(2, 3, 500)
    cost = [float(MeanCost(COSTS)(each(fresh), labels)) for each in (found, said)]
    assert cost[0] < cost[1] + 0.05
    assert cost[0] < float(MeanCost(COSTS)(fresh, labels)) - 0.1


def test_the_kept_decision_is_chosen_out_of_fold() -> None:
    """Random outputs of many classes: the search wins by far on the samples it saw, and nothing out of fold."""
    metric, kept = MacroF1(), []
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        outputs, targets = torch.randn(80, 20, generator=draw), torch.arange(20).repeat(4)

        def wrong(scores: Tensor, labels: Tensor) -> Tensor:
            return -score_children(metric, scores, labels.expand(len(scores), -1))

        overfit = metric(outputs + fit_offsets(outputs, targets, wrong), targets) - metric(outputs, targets)
        assert overfit > 0.05
        decision = Decision.fit(outputs, targets, metric)
        assert max(row.gain for row in decision.rows) < 0.03
        kept.append(decision.chosen)
    assert kept.count("none") >= 5


def test_only_the_fit_that_did_not_see_a_sample_judges_it() -> None:
    """Fits that are perfect on what they saw, and always wrong on what they did not: no label of 8 a class agrees.

    What is left are the four samples of every class that their probabilities stand for.
    """
    targets = torch.tensor([0, 1, 2]).repeat(8)
    folds = make_folds(targets, 4, 2, torch.Generator().manual_seed(0))
    memory = torch.where(folds.seen > 0, targets, (targets + 1) % 3)
    probabilities = torch.nn.functional.one_hot(memory, 3).float()
    candidate = Candidate("memory", 1.0, torch.eye(3).expand(len(folds.seen), -1, -1))
    score = CountsScore(FunctionMetric(ErrorRate(), higher_is_better=False), 3, 24)
    draw = torch.Generator().manual_seed(0)
    found = out_of_fold(score, [candidate, candidate], probabilities, targets, folds, torch.ones(1, 24), draw)
    torch.testing.assert_close(found, torch.full((2, 2, 1), -8 / 12))


@pytest.mark.parametrize("metric", [MacroF1(), MeanCost(torch.rand(4, 4) * (1 - torch.eye(4)))], ids=["f1", "costs"])
def test_the_score_out_of_fold_is_that_of_what_was_kept(metric: Metric) -> None:
    decision = Decision.fit(*long_tailed(0, 4, 20), metric, repeats=1)
    kept = [row for row in decision.rows if (row.name, row.shrinkage) == (decision.chosen, decision.shrinkage)]
    assert [row.score for row in kept] == [decision.out_of_fold]
    assert decision.rows[0].name == "none"
    assert Decision.fit(*long_tailed(0, 4, 20), AUROC()).out_of_fold is None


def test_four_samples_a_class_do_no_harm() -> None:
    """A model that needs no decision: over many fits the mean loss is below the noise."""
    fresh, labels = long_tailed(7, 5, 400, tilt=0.0)
    losses = []
    for seed in range(12):
        decision = Decision.fit(*long_tailed(seed, 5, 4, tilt=0.0), MacroF1())
        losses.append(float(MacroF1()(fresh, labels) - MacroF1()(decision(fresh), labels)))
    assert sum(losses) / len(losses) < 0.015


@pytest.mark.parametrize("metric", [AUROC(), TopKError(2), la.metrics.AUCPR()], ids=lambda m: m.name)
def test_a_metric_that_is_not_of_decisions_is_left_alone(metric: Metric) -> None:
    outputs, targets = long_tailed(0, 4, 20)
    decision = Decision.fit(outputs, targets, metric)
    assert decision.chosen == "none"
    assert "left alone" in decision.note
    assert "left alone" in decision.show()
    assert decision(outputs) is outputs


def test_embeddings_are_left_alone() -> None:
    outputs, targets = torch.randn(20, 8), torch.arange(10).repeat(2)
    decision = Decision.fit(outputs, targets, "recall@1")
    assert decision.chosen == "none"
    assert decision(outputs) is outputs


@settings(max_examples=10)
@given(st.permutations(range(4)), st.integers(0, 100))
def test_permuted_classes_are_permuted_decisions(order: list[int], seed: int) -> None:
    outputs, targets = long_tailed(seed, 4, 12)
    inverse = torch.tensor(order).argsort()
    decision, permuted = (
        Decision.fit(outputs, targets, MacroF1()),
        Decision.fit(outputs[:, order], inverse[targets], MacroF1()),
    )
    same = torch.tensor(order)[permuted.labels(outputs[:, order])] == decision.labels(outputs)
    assert same.float().mean() > 0.9


@settings(max_examples=10)
@given(st.floats(-50, 50), st.integers(0, 100))
def test_a_constant_on_the_logits_changes_nothing(constant: float, seed: int) -> None:
    outputs, targets = long_tailed(seed, 4, 12)
    decision, shifted = (Decision.fit(z, targets, MacroF1()) for z in (outputs, outputs + constant))
    assert (decision.labels(outputs) == shifted.labels(outputs + constant)).float().mean() > 0.95


def test_duplicated_samples_decide_alike() -> None:
    outputs, targets = long_tailed(0, 4, 60)
    once, twice = (
        Decision.fit(outputs, targets, BalancedError()),
        Decision.fit(outputs.repeat(2, 1), targets.repeat(2), BalancedError()),
    )
    assert (once.labels(outputs) == twice.labels(outputs)).float().mean() > 0.95


def test_a_fit_leaves_the_global_generator_alone_and_repeats() -> None:
    outputs, targets = long_tailed(0, 4, 10)
    before = torch.get_rng_state()
    decision, again = (Decision.fit(outputs, targets, MacroF1()) for _ in range(2))
    torch.testing.assert_close(torch.get_rng_state(), before)
    torch.testing.assert_close(decision(outputs), again(outputs), rtol=0, atol=0)


def test_children_are_decided_at_once() -> None:
    outputs, targets = long_tailed(0, 4, 20)
    decision = Decision.fit(outputs, targets, BalancedError())
    several = torch.stack([outputs, 2 * outputs])
    assert decision(several).shape == several.shape
    torch.testing.assert_close(decision(several)[0], decision(outputs))
    assert decision.labels(several).shape == (2, 80)
    torch.testing.assert_close(decision.probabilities(several).sum(-1), torch.ones(2, 80))


def test_the_best_decision_for_plain_error_is_the_most_probable_class() -> None:
    outputs, targets = long_tailed(0, 4, 200)
    decision = Decision.fit(outputs, targets, ErrorRate())
    fresh, labels = long_tailed(5, 4, 500)
    assert ErrorRate()(decision(fresh), labels) <= ErrorRate()(decision.probabilities(fresh), labels) + 0.01


def f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """F1 of class 1 of binary outputs."""
    decided = outputs > 0
    return 2 * (decided & (targets > 0)).sum() / (decided.sum() + targets.sum()).clamp_min(1)


@pytest.mark.parametrize("column", [False, True], ids=["[V]", "[V, 1]"])
def test_binary_outputs_get_a_threshold(column: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    targets = (torch.rand(800, generator=draw) < 0.1).long()
    outputs = 2.5 * targets + torch.randn(800, generator=draw) - 3.0
    shape = (-1, 1) if column else (-1,)
    outputs, targets = outputs.view(shape), targets.view(shape)
    decision = Decision.fit(outputs[:400], targets[:400], f1, higher_is_better=True)
    assert decision(outputs).shape == outputs.shape
    assert f1(decision(outputs[400:]), targets[400:]) > f1(outputs[400:], targets[400:]) + 0.1
    assert decision.thresholds is not None
    assert -3 < float(decision.thresholds) < 0
    torch.testing.assert_close(decision.labels(outputs), (outputs > decision.thresholds).long())
    assert abs(float(decision.probabilities(outputs).mean()) - 0.1) < 0.04


def test_several_labels_get_a_threshold_each() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = (torch.rand(600, 3, generator=draw) < torch.tensor([0.5, 0.2, 0.1])).long()
    outputs = 2.5 * targets + torch.randn(600, 3, generator=draw) - torch.tensor([1.0, 3.0, 4.0])
    metric = MultilabelF1Score(3)
    decision = Decision.fit(outputs[:300], targets[:300], metric)
    value = [float(metric(o, targets[300:])) for o in (outputs[300:], decision(outputs[300:]))]
    assert value[1] > value[0] + 0.1
    assert decision.thresholds is not None
    assert decision.thresholds.shape == (3,)
    assert decision.gains is None
    torch.testing.assert_close(decision.labels(outputs), (outputs > decision.thresholds).long())


def test_show_marks_the_candidate_that_was_kept() -> None:
    decision = Decision.fit(*long_tailed(0, 4, 20), BalancedError())
    (marked,) = [line for line in decision.show().splitlines() if line.startswith(">")]
    assert decision.chosen in marked
    assert "4 classes" in repr(decision)
