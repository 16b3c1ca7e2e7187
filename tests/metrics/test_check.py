"""Inputs that would give a number without a meaning are refused, and what vmap lifts is not looked at."""

import pytest
import torch

from lossalign.core import InputError
from lossalign.metrics import (
    AUCPR,
    AUROC,
    BalancedError,
    ErrorRate,
    MacroF1,
    RecallAtK,
    TopKError,
    VerificationAccuracy,
    WorstClassRecall,
)

OUTPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
OF_CLASSES = [ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall(), TopKError(2), AUROC(), AUCPR()]
every = pytest.mark.parametrize("metric", OF_CLASSES, ids=lambda metric: metric.name)


@every
@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        (OUTPUTS, LABELS[:5], "targets \\(5,\\)"),
        (OUTPUTS, LABELS + 1, "labels run from 1 to 3"),
        (OUTPUTS, LABELS - 1, "labels run from -1 to 1"),
        (OUTPUTS, LABELS > 0, "type torch.bool"),
        (OUTPUTS, LABELS.float(), "type torch.float32"),
        (OUTPUTS * torch.nan, LABELS, "NaN or inf in 6 of 6 samples"),
        (OUTPUTS.index_fill(0, torch.tensor([2]), torch.inf), LABELS, "NaN or inf in 1 of 6 samples"),
        (OUTPUTS[:0], LABELS[:0], "it has no samples"),
    ],
    ids=["lengths", "above", "below", "bool", "float", "all NaN", "one inf", "empty"],
)
def test_what_has_no_meaning_is_refused(metric, outputs, targets, words):
    with pytest.raises(InputError, match=rf"metric '{metric.name}': .*{words}"):
        metric(outputs, targets)


@every
def test_what_is_lifted_gives_the_same(metric):
    lifted = torch.func.vmap(metric)(OUTPUTS[None], LABELS[None])
    assert torch.equal(lifted[0], metric(OUTPUTS, LABELS))


@pytest.mark.parametrize("metric", [AUROC("binary"), AUCPR("binary")], ids=lambda metric: metric.name)
def test_binary_labels_are_zero_and_one(metric):
    with pytest.raises(InputError, match="labels run from 0 to 2, and outputs have 2 classes"):
        metric(OUTPUTS[:, 0], LABELS)
    assert metric(OUTPUTS[:, 0], LABELS == 1).isfinite()


def test_labels_of_several_classes_are_zero_and_one():
    labels = torch.eye(3)[LABELS]
    assert AUROC()(OUTPUTS, labels).isfinite()
    with pytest.raises(InputError, match="labels run from 0 to 2"):
        AUROC()(OUTPUTS, 2 * labels)


@pytest.mark.parametrize("metric", [RecallAtK(), VerificationAccuracy()], ids=lambda metric: metric.name)
@pytest.mark.parametrize("targets", [LABELS[:5], LABELS[:0]], ids=["lengths", "none"])
def test_embeddings_need_a_label_each(metric, targets):
    with pytest.raises(InputError, match="needs embeddings"):
        metric(OUTPUTS, targets)
