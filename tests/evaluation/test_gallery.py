"""What is shown of a run of metric learning is what its children do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.evaluation.gallery import (
    BINS,
    choose_queries,
    choose_samples,
    gallery,
    nearest,
    pair_histograms,
    shown_children,
    thumbnails,
)
from lossalign.experiments import Experiment
from lossalign.metrics import recall_at_k


def drawn(samples: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 5, generator=draw), torch.randint(classes, (samples,), generator=draw)


def test_neighbours_are_those_of_a_plain_search() -> None:
    embeddings, labels = drawn(600, 9)
    found = nearest(embeddings, labels, k=8)
    for sample in range(0, 600, 37):
        distances = (embeddings - embeddings[sample]).square().sum(1)
        distances[sample] = torch.inf
        assert found[sample].tolist() == distances.argsort()[:8].tolist()


def test_embeddings_collapsed_to_a_point_find_nothing() -> None:
    labels = torch.arange(4).repeat_interleave(10)
    found = nearest(torch.ones(40, 3), labels, k=8)
    assert (labels[found] != labels[:, None]).all()


@given(samples=st.integers(2, 400), classes=st.integers(1, 20), seed=st.integers(0, 9))
def test_histograms_count_every_pair_once(samples: int, classes: int, seed: int) -> None:
    embeddings, labels = drawn(samples, classes, seed)
    positive, negative = pair_histograms(embeddings, labels).sum(1).tolist()
    same = sum(int(count) * (int(count) - 1) // 2 for count in torch.bincount(labels))
    assert positive == same
    assert positive + negative == samples * (samples - 1) // 2


def test_histograms_are_of_directions() -> None:
    embeddings, labels = drawn(300, 3)
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    i, j = torch.triu_indices(300, 300, 1)
    distances = (unit[i] - unit[j]).norm(dim=1).numpy()
    expected, _ = np.histogram(distances[(labels[i] == labels[j]).numpy()], BINS, (0, 2))
    assert np.abs(pair_histograms(embeddings * 7, labels)[0].numpy() - expected).sum() <= 2  # at the edges of bins


@pytest.mark.parametrize(
    ("classes", "each", "shown"), [(12, 20, 240), (10, 1300, 2000), (660, 20, 1650), (12000, 2, 2000), (3000, 1, 1500)]
)
def test_samples_are_few_and_keep_company(classes: int, each: int, shown: int) -> None:
    labels = torch.arange(classes * each) % classes
    chosen = choose_samples(labels)
    assert len(chosen.unique()) == len(chosen) == shown
    counts = torch.bincount(labels[chosen])
    assert counts[counts > 0].min() >= min(each, 10)
    assert int(labels[chosen].max()) > 0.9 * classes - 1


@given(samples=st.integers(1, 80), classes=st.integers(1, 20), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_queries_are_spread_and_hold_two_failures(samples: int, classes: int, share: float, seed: int) -> None:
    _, labels = drawn(samples, classes, seed)
    wrong = torch.rand(samples, generator=torch.Generator().manual_seed(seed)) < share
    company = torch.bincount(labels)[labels] > 1
    chosen = choose_queries(labels, wrong)
    assert len(chosen.unique()) == len(chosen) == min(8, int(company.sum()))
    assert company[chosen].all()
    assert int(wrong[chosen].sum()) >= min(2, int((wrong & company).sum()))
    assert int(wrong.sum()) >= 2 or len(labels[chosen].unique()) == min(8, len(labels[company].unique()))


def test_large_photographs_are_shrunk_and_small_ones_left_as_they_are() -> None:
    draw = torch.Generator().manual_seed(0)
    large = torch.randint(256, (2, 3, 100, 200), dtype=torch.uint8, generator=draw)
    assert thumbnails(large).shape == (2, 48, 96, 3)
    small = large[:, :, :8, :8]
    assert (thumbnails(small) == small.permute(0, 2, 3, 1).numpy()).all()


@pytest.mark.parametrize("final", [False, True])
def test_what_is_saved_is_what_the_best_children_see(retrieving: Experiment, final: bool) -> None:
    best = next(arm for arm in retrieving.arms if (arm.method, arm.seed) == ("ala", 0))
    shown = shown_children(retrieving, best)
    assert [(one.arm.method, one.arm.seed) for one in shown] == [("fixed", 0), ("ala", 0)]
    arrays = gallery(retrieving, shown, final=final)
    data = retrieving.data[0]
    part = data.splits.test if final else data.splits.selection
    inputs = (part.load().inputs - data.transform.mean) / data.transform.std
    embeddings = retrieving.populations[best.population].children.outputs([inputs] * 8, "best")
    images = (part.load().inputs * 255).round().byte().permute(0, 2, 3, 1).numpy()
    for method, one in enumerate(shown):
        own = embeddings[one.arm.start + one.child]
        assert arrays["scores"][method] == pytest.approx(recall_at_k(own, part.targets, (1,)).item())
        for query, neighbours in zip(arrays["queries"], arrays["neighbours"][method], strict=True):
            sample = int((images == arrays["images"][query]).all((1, 2, 3)).nonzero()[0][0])
            expected = (own - own[sample]).norm(dim=1).argsort()[1:9]
            assert (images[expected] == arrays["images"][neighbours]).all()
    assert arrays["before"].sum() == arrays["after"][0].sum() == len(part) * (len(part) - 1) // 2
    assert (arrays["before"] != arrays["after"][1]).any()
    names, right = arrays["names"], arrays["right"]
    assert len(arrays["queries"]) == 8
    assert ((names[arrays["neighbours"]] == names[arrays["queries"]][None, :, None]) == right).all()
    assert (arrays["neighbours"] != arrays["queries"][None, :, None]).all()
    assert (~right[:, :, 0]).any(0).sum() >= 2
    assert (arrays["images"].dtype, arrays["images"].shape[1:]) == (np.uint8, (8, 8, 1))


def test_without_ala_the_best_method_is_shown(retrieving: Experiment) -> None:
    fixed = [arm for arm in retrieving.arms if arm.method == "fixed"]
    alone = Experiment(**{**vars(retrieving), "arms": fixed})
    assert [one.arm.method for one in shown_children(alone, fixed[0])] == ["fixed"]
