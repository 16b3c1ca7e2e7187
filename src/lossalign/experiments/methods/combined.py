"""Ensembles of a method's children, decisions on their outputs, and both together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log

import torch
from torch import Tensor

from lossalign.children import Weights
from lossalign.decision import Decision
from lossalign.experiments.methods.derived import AnyMetric
from lossalign.experiments.methods.spec import Judged, Split
from lossalign.metrics import error
from lossalign.metrics.ranking import log_odds

FOLDS = 4
"""Folds of the validation split for the decision of a method that trains on that split too."""
_REPEATS = 1
"""Cross-validations in the fit of a decision: as a run fits one for each child, it spends less than ``Decision``."""
_CHECKPOINTS: tuple[Weights, ...] = ("best", "averaged")
"""Weights among which a decision chooses, the first of level ones."""


def mean_probabilities(outputs: Tensor) -> Tensor:
    """log of the mean over models of softmax(outputs): [n, V, C] to [V, C].

    Example:
        >>> mean_probabilities(torch.tensor([[[0.0, 0.0]], [[0.0, 20.0]]])).exp()
        tensor([[0.2500, 0.7500]])
    """
    return outputs.log_softmax(-1).logsumexp(0) - log(len(outputs))


def mean_ranks(outputs: Tensor) -> Tensor:
    """The mean over models of each sample's rank by the log-odds of each class: [n, V, C] to [V, C]; ties share a rank.

    Example:
        >>> mean_ranks(torch.tensor([[[0.0, 1.0], [0.0, 2.0], [0.0, 2.0]]]))[:, 1]
        tensor([0.5000, 2.0000, 2.0000])
    """
    scores = log_odds(outputs).transpose(-1, -2).contiguous()
    ranked = scores.sort(-1).values
    below, upto = (torch.searchsorted(ranked, scores, right=right) for right in (False, True))
    return ((below + upto) / 2).mean(0).T


@dataclass(frozen=True)
class Children:
    """The children of a method, each by itself."""

    of: str

    def outputs(self, judged: Judged, seed: int, split: Split) -> Tensor:
        """Outputs of each child [n, V, C]."""
        return judged.outputs(self.of, seed, split)

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of each child [n]."""
        return judged.value(self.of, seed)


@dataclass(frozen=True)
class Ensemble(AnyMetric):
    """The children of a method as one model: the mean of their probabilities; for a metric of ranks, of their ranks."""

    of: str

    def outputs(self, judged: Judged, seed: int, split: Split) -> Tensor:
        """Logarithms of the mean probabilities [1, V, C]."""
        return mean_probabilities(judged.outputs(self.of, seed, split))[None]

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of that model [1]."""
        if not judged.metric.ranks:
            return judged.measure(self.outputs(judged, seed, "scored"), seed)
        ranks = mean_ranks(judged.outputs(self.of, seed, "scored"))
        return judged.measure(ranks[None], seed, one_hot=ranks.shape[-1] > 2)


@dataclass(frozen=True)
class Decided(AnyMetric):
    """A ``Decision`` for each model, fitted on the validation split and, unless that is scored, the selection split.

    Under the best weights, each model takes those of its best and its last averaged weights whose decision has the
    better metric out of fold.

    Args:
        of: the models.
        folds: for models that train on the validation split too: the methods that leave out one fold of it each. Their
            outputs on that fold stand for those of the models.
    """

    of: Children | Ensemble
    folds: tuple[str, ...] = ()

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of each model's decisions [n]."""
        chosen = _CHECKPOINTS if judged.weights == "best" else (judged.weights,)
        each = [judged.under(weights) for weights in chosen]
        fits = [judged.once((self, seed, one.weights), partial(self._fitted, one, seed)) for one in each]
        if note := fits[0][0].note:
            judged.say(f"+decision: {note}")
            return self.of.score(judged, seed)
        scored = [self.of.outputs(one, seed, "scored") for one in each]
        decided = []
        for model in range(len(scored[0])):
            errors = [float(error(judged.metric, torch.tensor(fit[model].out_of_fold))) for fit in fits]
            kept = errors.index(min(errors))
            decided.append(fits[kept][model](scored[kept][model]))
        return judged.measure(torch.stack(decided), seed)

    def _fitted(self, judged: Judged, seed: int) -> list[Decision]:
        splits: tuple[Split, ...] = ("validation", "selection") if judged.final else ("validation",)
        outputs = torch.cat([self._unseen(judged, seed, split) for split in splits], 1)
        targets = torch.cat([judged.targets(seed, split) for split in splits])
        return [Decision.fit(one, targets, judged.metric, repeats=_REPEATS) for one in outputs]

    def _unseen(self, judged: Judged, seed: int, split: Split) -> Tensor:
        """Outputs [n, V, C] on samples that the models did not train on."""
        if split != "validation" or not self.folds:
            return self.of.outputs(judged, seed, split)
        parts = torch.stack([replace(self.of, of=name).outputs(judged, seed, split) for name in self.folds])
        fold = judged.folds(seed)
        return parts[fold, :, torch.arange(len(fold), device=fold.device)].transpose(0, 1)
