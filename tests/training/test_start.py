"""One model follows the metric by default: from logit adjustment where the metric prefers it, and decides for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import lossalign as la
from lossalign.control import RuleController
from lossalign.losses import AlignedLoss
from lossalign.metrics import BalancedError, ErrorRate, FunctionMetric, Metric
from lossalign.rivals import fixed
from lossalign.training.start import Start, log_shares, prefers_adjusted
from lossalign.training.validation import halves

SHARES = torch.tensor([0.8, 0.15, 0.05])


def long_tailed(seed: int, samples: int, overlap: float = 1.5, shares: Tensor = SHARES) -> tuple[Tensor, Tensor]:
    """Inputs [V, 2] of three overlapping classes of these shares, and labels."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(shares, samples, replacement=True, generator=draw)
    targets[:12] = torch.arange(12) % 3
    angle = 2.0 * torch.pi * targets / 3
    centres = torch.stack([angle.cos(), angle.sin()], 1)
    return centres + overlap * torch.randn(samples, 2, generator=draw) / 2, targets


def mean_recall(outputs: Tensor, targets: Tensor) -> float:
    right = outputs.argmax(-1) == targets
    return sum(float(right[targets == c].float().mean()) for c in range(3)) / 3


def iterate(
    aligner: la.Aligner, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, iteration: int
) -> None:
    """One iteration of the loop of the README, on a batch that its number draws."""
    at = torch.randint(600, (64,), generator=torch.Generator().manual_seed(iteration))
    loss = aligner(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    aligner.step(model)


def trained(metric: Any, seed: int = 0, iterations: int = 200, **options: Any) -> tuple[la.Aligner, nn.Module]:
    """A linear model on the long tail, with a validation set as long-tailed."""
    (x, y), held_out = long_tailed(seed, 600), long_tailed(seed + 100, 400)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = nn.Linear(2, 3)
    aligner = la.Aligner(la.AlignedLoss(3), metric, [held_out], iterations, every=20, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for iteration in range(iterations):
        iterate(aligner, model, optimizer, x, y, iteration)
    return aligner, model


def offsets_for(counts: Tensor) -> Tensor:
    return log_shares(counts).clamp(-3, 3)


class TestStart:
    def test_balanced_error_begins_at_logit_adjustment_and_plain_error_does_not(self) -> None:
        balanced, plain = (trained(metric, iterations=40)[0] for metric in (BalancedError(), ErrorRate()))
        first = balanced.history.phi[1]
        assert (first[:-1] > first[1:]).all()
        assert first[0] - first[2] > 1.5
        assert plain.history.phi[1].abs().max() < 0.5

    def test_counted_labels_give_what_given_counts_give(self) -> None:
        _, y = long_tailed(0, 600)
        seen = torch.cat([y[torch.randint(600, (64,), generator=torch.Generator().manual_seed(i))] for i in range(20)])
        counted, told = (
            trained(BalancedError(), iterations=40, class_counts=counts)[0].history.phi[1]
            for counts in (None, torch.bincount(seen))
        )
        torch.testing.assert_close(counted, told)
        torch.testing.assert_close(counted, offsets_for(torch.bincount(seen)))

    def test_balanced_counts_begin_at_zero(self) -> None:
        start = Start(AlignedLoss(3), [10, 10, 10])
        outputs, targets = torch.randn(30, 3), torch.arange(30) % 3
        assert start.phi(AlignedLoss(3).spec, BalancedError(), outputs, targets) is None

    def test_offsets_stay_in_their_range(self) -> None:
        outputs, targets = torch.tensor([[9.0, 0.0, 0.0]] * 30), torch.arange(30) % 3
        phi = Start(AlignedLoss(3), [10**6, 10, 1]).phi(AlignedLoss(3).spec, BalancedError(), outputs + 0.1, targets)
        assert phi is None or phi.abs().max() <= 3

    def test_what_does_not_matter_to_a_metric_is_not_preferred(self) -> None:
        always = FunctionMetric(lambda outputs, targets: 0.5, higher_is_better=True, name="always")
        assert not prefers_adjusted(always, torch.randn(60, 3), torch.arange(60) % 3, torch.tensor([2.0, 0.0, -2.0]))

    @pytest.mark.parametrize(
        "metric", [BalancedError(), FunctionMetric(mean_recall, higher_is_better=True, name="mine")]
    )
    def test_any_metric_can_prefer_it(self, metric: Metric) -> None:
        x, y = long_tailed(0, 400)
        outputs = x @ torch.tensor([[1.0, -0.5, -0.5], [0.0, 0.87, -0.87]]) + SHARES.log()
        assert prefers_adjusted(metric, outputs, y, log_shares(1000 * SHARES))
        assert not prefers_adjusted(metric, outputs, y, -log_shares(1000 * SHARES))

    @pytest.mark.parametrize("counts", [[1, 2], [1, 2, -1], [0, 0, 0], "abc", [1.0, float("nan"), 2.0]])
    def test_counts_that_are_none_are_refused(self, counts: Any) -> None:
        with pytest.raises(la.InputError, match=r"class_counts: .*give"):
            la.Aligner(la.AlignedLoss(3), BalancedError(), [long_tailed(0, 30)], 20, class_counts=counts)

    def test_a_rule_that_does_not_follow_the_metric_stays_where_it_is(self) -> None:
        aligner, _ = trained(BalancedError(), controller=lambda spec, children, generator: fixed(spec, children))
        assert not aligner.history.phi.any()

    def test_counts_without_a_rule_are_refused(self) -> None:
        with pytest.raises(la.InputError, match=r"class_counts: .* no rule moves offsets here"):
            la.Aligner(
                la.AlignedLoss(3), BalancedError(), [long_tailed(0, 30)], 20, class_counts=[3, 2, 1], controller="fresh"
            )


class TestDefault:
    def test_the_default_is_the_rule_that_follows_the_metric(self) -> None:
        aligner, _ = trained(BalancedError(), iterations=20)
        assert isinstance(aligner._driver.controller, RuleController)
        assert aligner._driver.controller.wants == {"gradient"}

    def test_it_is_better_for_its_metric_than_cross_entropy(self) -> None:
        x, y = long_tailed(7, 3000, shares=torch.ones(3))
        errors = []
        for controller in ("auto", lambda spec, children, generator: fixed(spec, children)):
            each = [trained(BalancedError(), seed, 400, controller=controller)[1] for seed in range(3)]
            errors.append(sum(float(BalancedError()(model(x).detach(), y)) for model in each) / 3)
        assert errors[0] < errors[1]

    def test_plain_error_is_not_harmed(self) -> None:
        x, y = long_tailed(7, 3000)
        errors = []
        for controller in ("auto", lambda spec, children, generator: fixed(spec, children)):
            for seed in range(3):
                aligner, model = trained(ErrorRate(), seed, 400, controller=controller)
                model.load_state_dict(aligner.best_state_dict())
                errors.append(float(ErrorRate()(model(x).detach(), y)))
        assert sum(errors[:3]) / 3 < sum(errors[3:]) / 3 + 0.005

    @pytest.mark.parametrize("metric", [BalancedError(), ErrorRate()], ids=lambda metric: metric.name)
    def test_it_resumes_bit_for_bit_before_and_after_the_first_move(self, metric: Metric) -> None:
        for stop in (13, 45):
            whole, _ = trained(metric, iterations=80)
            (x, y), held_out = long_tailed(0, 600), long_tailed(100, 400)
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                model = nn.Linear(2, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
            aligner = la.Aligner(la.AlignedLoss(3), metric, [held_out], 80, every=20)
            for iteration in range(80):
                if iteration == stop:
                    state = aligner.state_dict()
                    aligner = la.Aligner(la.AlignedLoss(3), metric, [held_out], 80, every=20)
                    aligner.load_state_dict(state)
                iterate(aligner, model, optimizer, x, y, iteration)
            assert torch.equal(aligner.history.phi, whole.history.phi)


class TestHalves:
    @given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
    def test_they_share_out_every_class_evenly(self, labels: list[int]) -> None:
        targets = torch.tensor(labels)
        found = halves(targets)
        sizes = targets.bincount()
        if sizes[sizes > 0].min() < 4:
            assert found is None
            return
        assert found is not None
        assert torch.cat(found).sort().values.tolist() == list(range(len(labels)))
        one, other = (targets[half].bincount(minlength=4) for half in found)
        assert (one - other).abs().max() <= 1

    def test_one_half_moves_phi_and_the_other_picks_the_weights(self) -> None:
        aligner, model = trained(BalancedError(), iterations=40)
        x, y = long_tailed(100, 400)
        found = halves(y)
        assert found is not None
        model.load_state_dict(aligner.best_state_dict())
        scores = [float(BalancedError()(model(x[half]).detach(), y[half])) for half in found]
        assert aligner.best_metric == pytest.approx(scores[1])
        assert aligner.best_metric != pytest.approx(scores[0])

    def test_all_samples_do_both_if_asked(self) -> None:
        aligner, model = trained(BalancedError(), iterations=40, split_validation=False)
        x, y = long_tailed(100, 400)
        model.load_state_dict(aligner.best_state_dict())
        assert aligner.best_metric == pytest.approx(float(BalancedError()(model(x).detach(), y)))


class TestDecision:
    def test_it_decides_with_the_best_weights_and_leaves_the_model_alone(self) -> None:
        aligner, model = trained(BalancedError())
        before = [weight.clone() for weight in model.parameters()]
        decision = aligner.decision()
        assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
        x, y = long_tailed(100, 400)
        model.load_state_dict(aligner.best_state_dict())
        expected = la.Decision.fit(model(x).detach(), y, BalancedError())
        assert decision.chosen == expected.chosen
        torch.testing.assert_close(decision(model(x).detach()), expected(model(x).detach()))

    def test_a_given_model_is_decided_with_as_it_is(self) -> None:
        aligner, model = trained(BalancedError(), iterations=40)
        with torch.no_grad():
            model.weight.zero_()
        assert aligner.decision(model).labels(torch.zeros(1, 3)).shape == (1,)

    def test_before_anything_is_measured_it_says_so(self) -> None:
        aligner = la.Aligner(la.AlignedLoss(3), BalancedError(), [long_tailed(0, 30)], 20)
        with pytest.raises(la.InputError, match="decision: there are no best weights yet"):
            aligner.decision()
