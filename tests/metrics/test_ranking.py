"""Areas under the curves agree with scikit-learn and torchmetrics, ties and extreme logits included."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    multiclass_auroc,
    multiclass_average_precision,
)

from lossalign.core import InputError
from lossalign.metrics import AUCPR, AUROC, auroc, average_precision


@st.composite
def ranked(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Scores, often tied, of which at least one is positive and one negative."""
    samples = draw(st.integers(2, 40))
    scores = draw(st.lists(st.integers(-3, 3) | st.floats(-1e4, 1e4, width=32), min_size=samples, max_size=samples))
    positives = draw(st.lists(st.booleans(), min_size=samples - 2, max_size=samples - 2))
    return torch.tensor(scores, dtype=torch.float32), torch.tensor([True, False, *positives])


@given(ranked())
def test_areas_equal_scikit_learn(case: tuple[Tensor, Tensor]) -> None:
    scores, positives = case
    expected = average_precision_score(positives.numpy(), scores.numpy())
    assert float(average_precision(scores, positives)) == pytest.approx(expected, abs=1e-6)
    assert float(auroc(scores, positives)) == pytest.approx(roc_auc_score(positives.numpy(), scores.numpy()), abs=1e-6)


@given(ranked())
def test_auroc_is_the_share_of_pairs_won(case: tuple[Tensor, Tensor]) -> None:
    scores, positives = case
    above, below = scores[positives], scores[~positives]
    won = sum((a > b) + 0.5 * (a == b) for a in above.tolist() for b in below.tolist())
    assert float(auroc(scores, positives)) == pytest.approx(won / (len(above) * len(below)), abs=1e-6)


@given(ranked(), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(case: tuple[Tensor, Tensor], random: Random) -> None:
    scores, positives = case
    order = list(range(len(scores)))
    random.shuffle(order)
    for area in (average_precision, auroc):
        torch.testing.assert_close(area(scores[order], positives[order]), area(scores, positives))


def plain_log_odds(outputs: Tensor) -> np.ndarray:
    """z_c − log Σ_{j≠c} exp z_j in float64, one entry at a time; rounded, so that what ties exactly ties here too."""
    rows = outputs.double().tolist()
    found = np.zeros(outputs.shape)
    for v, row in enumerate(rows):
        for c, score in enumerate(row):
            others = [z for j, z in enumerate(row) if j != c]
            top = max(others)
            found[v, c] = score - top - math.log(math.fsum(math.exp(z - top) for z in others))
    return np.round(found, 4)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_macro_equals_sklearn_on_log_odds_that_tie_or_saturate(scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    outputs = (torch.randn(300, 5, generator=g) * scale).round()
    targets = torch.randint(0, 5, (300,), generator=g)
    scores, positives = plain_log_odds(outputs), [(targets == c).numpy() for c in range(5)]
    each = [average_precision_score(positives[c], scores[:, c]) for c in range(5)]
    assert float(AUCPR()(outputs, targets)) == pytest.approx(np.mean(each), abs=1e-5)
    each = [roc_auc_score(positives[c], scores[:, c]) for c in range(5)]
    assert float(AUROC()(outputs, targets)) == pytest.approx(np.mean(each), abs=1e-5)


def test_macro_equals_torchmetrics_on_softmax_that_does_not_saturate() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(300, 5, generator=g), torch.randint(0, 5, (300,), generator=g)
    probabilities = outputs.softmax(-1)
    torch.testing.assert_close(AUCPR()(outputs, targets), multiclass_average_precision(probabilities, targets, 5))
    torch.testing.assert_close(AUROC()(outputs, targets), multiclass_auroc(probabilities, targets, 5))


def test_macro_and_binary_agree_on_two_classes_with_large_logits() -> None:
    outputs = torch.tensor([[0.0, 60.0], [0.0, 50.0], [0.0, 40.0], [40.0, 0.0]])
    targets = torch.tensor([1, 1, 0, 0])
    assert float(AUROC()(outputs, targets)) == float(AUROC("binary")(outputs, targets)) == 1


def test_classes_without_samples_are_left_out_of_macro() -> None:
    g = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(50, 4, generator=g), torch.randint(0, 3, (50,), generator=g)
    probabilities = outputs.softmax(-1)
    each = [average_precision_score((targets == c).numpy(), probabilities[:, c].numpy()) for c in range(3)]
    assert float(AUCPR()(outputs, targets)) == pytest.approx(sum(each) / 3, abs=1e-6)
    each = [roc_auc_score((targets == c).numpy(), probabilities[:, c].numpy()) for c in range(3)]
    assert float(AUROC()(outputs, targets)) == pytest.approx(sum(each) / 3, abs=1e-6)


@pytest.mark.parametrize("shape", ["[V]", "[V, 1]", "[V, 2]"])
def test_binary_scores_the_positive_class(shape: str) -> None:
    g = torch.Generator().manual_seed(2)
    logit, targets = torch.randn(200, generator=g).round(decimals=1), torch.randint(0, 2, (200,), generator=g)
    outputs = {"[V]": logit, "[V, 1]": logit[:, None], "[V, 2]": torch.stack([-logit, logit], -1)}[shape]
    torch.testing.assert_close(AUCPR("binary")(outputs, targets), binary_average_precision(logit.sigmoid(), targets))
    torch.testing.assert_close(AUROC("binary")(outputs, targets), binary_auroc(logit.sigmoid(), targets))


def test_two_logits_still_rank_where_their_softmax_saturates() -> None:
    outputs, targets = torch.tensor([[0.0, 500.0], [0.0, 400.0], [0.0, 300.0]]), torch.tensor([1, 1, 0])
    assert AUROC("binary")(outputs, targets) == 1


def test_one_negative_among_very_many_is_still_counted_exactly() -> None:
    scores = torch.arange(200_000.0)
    positives = scores != 50_000
    assert float(auroc(scores, positives)) == pytest.approx(149_999 / 199_999, abs=1e-6)


def test_without_positives_there_is_no_area() -> None:
    scores, none = torch.rand(4, generator=torch.Generator().manual_seed(0)), torch.zeros(4, dtype=torch.bool)
    assert math.isnan(average_precision(scores, none))
    assert math.isnan(auroc(scores, none))
    assert math.isnan(auroc(scores, ~none))
    assert average_precision(scores, ~none) == 1


def test_leading_axes_and_vmap_equal_a_loop() -> None:
    g = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 4, 20, generator=g).round(decimals=1)
    positives = torch.rand(3, 4, 20, generator=g) < 0.4
    for area in (average_precision, auroc):
        loop = torch.stack([area(scores[i, j], positives[i, j]) for i in range(3) for j in range(4)]).view(3, 4)
        torch.testing.assert_close(area(scores, positives), loop)
        torch.testing.assert_close(torch.func.vmap(area)(scores, positives), loop)


def test_shapes_that_do_not_fit_the_average_are_refused() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(InputError, match="choose average='macro'"):
        AUCPR("binary")(torch.zeros(2, 3), labels)
    with pytest.raises(InputError, match="choose average='binary'"):
        AUROC("macro")(torch.zeros(2), labels)
    with pytest.raises(InputError, match="average='micro'"):
        AUROC("micro")  # type: ignore[arg-type]
