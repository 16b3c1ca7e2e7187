"""Derived methods choose among children or change their outputs, by held-out data alone; judged here by hand."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from lossalign.core import InputError
from lossalign.experiments.methods.derived import BayesDecision, BestOf, Guard, Offsets, costs_of
from lossalign.metrics import BalancedError, ErrorRate, MeanCost


@dataclass
class Hand:
    """Two methods of two children and one seed, whose outputs are given."""

    metric: object = field(default_factory=ErrorRate)
    final: bool = False
    errors: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    read: list = field(default_factory=list)
    weights: str = "best"
    said: list = field(default_factory=list)

    def value(self, method, seed):
        return torch.tensor(self.values[method])

    def selection_errors(self, method, seed):
        return torch.tensor(self.errors[method])

    def outputs(self, method, seed, split):
        self.read.append(split)
        return self.parts[split][0]

    def targets(self, seed, split):
        return self.parts[split][1]

    def measure(self, outputs, seed):
        return outputs

    def under(self, weights):
        return replace(self, weights=weights)

    def once(self, key, make):
        return make()

    def say(self, sentence):
        self.said.append(sentence)


def test_the_best_child_is_that_of_the_selection_split_not_that_of_the_scored_one():
    hand = Hand(errors={"ala": [0.3, 0.1]}, values={"ala": [0.0, 0.9]})
    assert float(BestOf("ala").score(hand, 0)) == pytest.approx(0.9)


@pytest.mark.parametrize(("adapting", "kept"), [([0.1, 0.2], "ala"), ([0.2, 0.2], "fixed"), ([0.0, 0.5], "fixed")])
def test_the_guard_adapts_only_where_the_mean_over_children_is_better(adapting, kept):
    hand = Hand(errors={"ala": adapting, "fixed": [0.2, 0.2]}, values={"ala": [1.0], "fixed": [2.0]})
    assert Guard("ala", "fixed").keeps(hand, 0) == kept
    assert Guard("ala", "fixed").score(hand, 0).tolist() == hand.values[kept]


def skewed(number):
    """Outputs that always say class 0, by less where class 1 is right; its labels."""
    labels = torch.arange(number) % 2
    return torch.stack([torch.ones(number), 0.5 * labels], 1).expand(2, -1, -1), labels


def parts():
    return {name: skewed(number) for name, number in (("validation", 8), ("selection", 6), ("scored", 4))}


def test_offsets_right_what_is_always_too_low_for_one_class():
    hand = Hand(metric=BalancedError(), parts=parts())
    changed = Offsets("fixed").score(hand, 0)
    assert (changed.argmax(-1) == torch.arange(4) % 2).all()


@pytest.mark.parametrize(
    ("offsets", "final", "fitted"),
    [
        (Offsets("fixed"), True, ["validation"]),
        (Offsets("fixed", and_selection=True), True, ["validation", "selection"]),
        (Offsets("fixed", and_selection=True), False, ["validation"]),
    ],
)
def test_offsets_are_fitted_on_the_selection_split_only_if_that_is_not_scored(offsets, final, fitted):
    hand = Hand(metric=BalancedError(), final=final, parts=parts())
    offsets.score(hand, 0)
    assert hand.read == [*fitted, "scored"]


def test_the_bayes_decision_takes_the_class_whose_error_costs_least():
    costs = torch.tensor([[0.0, 1.0], [100.0, 0.0]])
    labels = torch.tensor([0, 0, 0, 1] * 25)
    unsure = torch.zeros(2, 100, 2)
    hand = Hand(metric=MeanCost(costs), parts={"validation": (unsure, labels), "scored": (unsure, labels)})
    changed = BayesDecision("fixed").score(hand, 0)
    assert (changed.argmax(-1) == 1).all()
    torch.testing.assert_close(changed[0, 0], torch.tensor([-25.0, -0.75]), atol=0.5, rtol=0.02)


def test_costs_are_asked_of_the_metric_before_anything_trains():
    with pytest.raises(InputError, match=r"method 'mine' needs costs; use it with --metric mean-cost:FILE\.csv"):
        costs_of(ErrorRate(), "mine")
    with pytest.raises(InputError, match="needs costs"):
        BayesDecision("fixed").check("bayes-decision", ErrorRate())
    assert Guard("ala", "fixed").check("guarded-ala", ErrorRate()) is None
