"""Ensembles average what children say; decisions are fitted on what models did not train on and is not scored."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from lossalign.experiments.methods import combined
from lossalign.experiments.methods.combined import Children, Decided, Ensemble, mean_probabilities, mean_ranks
from lossalign.metrics import AUCPR, AUROC, BalancedError, MacroF1, error, score_children


def outputs_of(seed, children=3, samples=60, classes=4):
    """Outputs of children that know the labels a little; the labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    known = 1.5 * torch.nn.functional.one_hot(labels, classes) + torch.linspace(2, 0, classes)
    return known + torch.randn(children, samples, classes, generator=draw), labels


@dataclass
class Run:
    """A method ``fixed`` of three children, with outputs by (method, split, weights), and what is read of it."""

    metric: object = field(default_factory=BalancedError)
    final: bool = True
    weights: str = "best"
    parts: dict = field(default_factory=dict)
    read: list = field(default_factory=list)
    made: dict = field(default_factory=dict)
    said: list = field(default_factory=list)
    fold: object = None

    def outputs(self, method, seed, split):
        self.read.append((method, split, self.weights))
        return self.parts[method, split, self.weights][0]

    def targets(self, seed, split):
        return self.parts["fixed", split, "best"][1]

    def value(self, method, seed):
        return self.measure(self.outputs(method, seed, "scored"), seed)

    def measure(self, outputs, seed, *, one_hot=False):
        targets = self.targets(seed, "scored")
        targets = torch.nn.functional.one_hot(targets) if one_hot else targets
        return score_children(self.metric, outputs, targets.expand(len(outputs), *targets.shape))

    def under(self, weights):
        return replace(self, weights=weights)

    def once(self, key, make):
        return self.made.setdefault(key, None) or self.made.setdefault((key, "made"), make())

    def say(self, sentence):
        self.said.append(sentence)

    def folds(self, seed):
        return self.fold


def run(children=3, **changes):
    splits = ("validation", "selection", "scored")
    seeds = {
        (split, weights): 10 * i + j for i, split in enumerate(splits) for j, weights in enumerate(("best", "averaged"))
    }
    parts = {("fixed", split, w): outputs_of(seed, children) for (split, w), seed in seeds.items()}
    return Run(parts=parts, **changes)


@pytest.mark.parametrize("metric", [BalancedError(), MacroF1(), AUCPR(), AUROC()], ids=lambda metric: metric.name)
def test_an_ensemble_of_one_child_is_that_child(metric):
    judged = run(children=1, metric=metric)
    torch.testing.assert_close(Ensemble("fixed").score(judged, 0), Children("fixed").score(judged, 0))
    decided = [Decided(models("fixed")).score(judged, 0) for models in (Ensemble, Children)]
    torch.testing.assert_close(*decided, atol=0.02, rtol=0)


@pytest.mark.parametrize("metric", [BalancedError(), AUCPR()], ids=lambda metric: metric.name)
def test_an_ensemble_is_one_model_that_knows_more_than_its_children(metric):
    judged = run(children=8, metric=metric)
    (together,), alone = Ensemble("fixed").score(judged, 0), Children("fixed").score(judged, 0)
    assert error(metric, together) < error(metric, alone).min()


def test_probabilities_are_averaged_and_not_logits():
    outputs = torch.tensor([[[0.0, 3.0]], [[0.0, 3.0]], [[50.0, 0.0]]])
    expected = outputs.softmax(-1).mean(0)
    torch.testing.assert_close(mean_probabilities(outputs).exp(), expected)
    assert expected[0].argmax() == 1 != outputs.mean(0)[0].argmax()


def test_ranks_forget_how_sure_a_child_is():
    outputs, labels = outputs_of(0, classes=2)
    louder = outputs * torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    torch.testing.assert_close(mean_ranks(louder), mean_ranks(outputs))
    assert AUROC("binary")(mean_ranks(outputs[:1]), labels) == AUROC("binary")(outputs[0], labels)


@pytest.mark.parametrize(("final", "fitted"), [(True, ["validation", "selection"]), (False, ["validation"])])
def test_a_decision_reads_what_is_not_scored_under_both_weights(final, fitted):
    judged = run(final=final)
    Decided(Children("fixed")).score(judged, 0)
    expected = [(split, weights) for weights in ("best", "averaged") for split in fitted]
    assert [(split, weights) for _, split, weights in judged.read if split != "scored"] == expected
    last = run(final=final, weights="averaged")
    Decided(Children("fixed")).score(last, 0)
    assert {weights for _, _, weights in last.read} == {"averaged"}


@pytest.mark.parametrize("models", [Children("fixed"), Ensemble("fixed")])
def test_scored_labels_change_no_decision(models, monkeypatch):
    seen = []
    for poisoned in (False, True):
        judged = run()
        if poisoned:
            for key, (outputs, labels) in judged.parts.items():
                judged.parts[key] = (outputs, labels.roll(1)) if key[1] == "scored" else (outputs, labels)
        monkeypatch.setattr(Run, "measure", lambda self, outputs, seed: seen.append(outputs) or outputs)
        Decided(models).score(judged, 0)
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)


def test_the_weights_with_the_better_decision_are_scored():
    judged = run()
    for split in ("validation", "selection"):
        outputs, labels = judged.parts["fixed", split, "best"]
        judged.parts["fixed", split, "best"] = (torch.randn_like(outputs), labels)
    outputs, labels = judged.parts["fixed", "scored", "best"]
    judged.parts["fixed", "scored", "best"] = (torch.randn_like(outputs), labels)
    found = Decided(Children("fixed")).score(judged, 0)
    torch.testing.assert_close(found, Decided(Children("fixed")).score(judged.under("averaged"), 0))
    assert (found < 0.5).all()


def test_a_metric_of_ranks_is_left_alone_and_that_is_said():
    for models in (Children("fixed"), Ensemble("fixed")):
        judged = run(metric=AUCPR())
        torch.testing.assert_close(Decided(models).score(judged, 0), models.score(judged, 0))
        assert judged.said == [
            "+decision: metric 'aucpr' depends on the scores and not on the decisions alone; outputs are left alone."
        ]


@pytest.mark.parametrize("models", [Children("fixed"), Ensemble("fixed")])
def test_what_was_trained_on_is_judged_by_the_fold_that_left_it_out(models, monkeypatch):
    judged = run(fold=torch.arange(60) % 2)
    for name in ("odd", "even"):
        judged.parts[name, "validation", "averaged"] = outputs_of(70 + len(name))
    fitted = []
    monkeypatch.setattr(combined.Decision, "fit", lambda outputs, *rest, **more: fitted.append(outputs))
    decided = Decided(models, ("even", "odd"))
    decided._fitted(judged.under("averaged"), 0)
    even, odd = (models.__class__(name).outputs(judged.under("averaged"), 0, "validation") for name in ("even", "odd"))
    selection = models.outputs(judged.under("averaged"), 0, "selection")
    for at, outputs in enumerate(fitted):
        assert torch.equal(outputs[:60:2], even[at, ::2])
        assert torch.equal(outputs[1:60:2], odd[at, 1::2])
        assert torch.equal(outputs[60:], selection[at])
    assert len(fitted) == len(selection)
    assert ("fixed", "validation", "averaged") not in judged.read
