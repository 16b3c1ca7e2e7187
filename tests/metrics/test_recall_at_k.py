"""Retrieval metrics agree with loops over neighbours that are sorted one query at a time, ties and all."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lossalign.core import InputError
from lossalign.metrics import MAPAtR, RecallAtK, RPrecision, map_at_r, metric_named, r_precision, recall_at_k

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "recall": partial(recall_at_k, ks=(1, 2, 5)),
    "map": map_at_r,
    "r-precision": r_precision,
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Embeddings on a small grid, so that many distances tie and many points coincide; some classes of one sample."""
    samples, size = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    numbers = st.lists(st.integers(-2, 2), min_size=size, max_size=size)
    points = draw(st.lists(numbers, min_size=samples, max_size=samples))
    labels = draw(st.lists(st.integers(0, 4), min_size=samples, max_size=samples))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(labels)


def spread(seed: int, samples: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Clusters that overlap."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (samples,), generator=g)
    return torch.randn(classes, size, generator=g)[labels] + torch.randn(samples, size, generator=g), labels


def hits_of(embeddings: Tensor, labels: Tensor) -> list[list[bool]]:
    """For each query with a positive: which neighbours are positives, nearest first, a tie's negatives before them."""
    x, y = embeddings.double().numpy(), labels.numpy()
    found = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        others.sort(key=lambda j: (((x[i] - x[j]) ** 2).sum(), y[j] == y[i]))
        found.append([bool(y[j] == y[i]) for j in others])
    return [hits for hits in found if any(hits)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def average_precision(hits: list[bool]) -> float:
    r = sum(hits)
    return sum(hits[i] * sum(hits[: i + 1]) / (i + 1) for i in range(r)) / r


@given(crowded(), st.integers(1, 30))
def test_equals_sorting_the_neighbours_of_each_query(case: tuple[Tensor, Tensor], chunk: int) -> None:
    hits = hits_of(*case)
    recall = recall_at_k(*case, ks=(1, 2, 5, 100), chunk=chunk)
    assert recall.tolist() == pytest.approx([mean([any(h[:k]) for h in hits]) for k in (1, 2, 5, 100)], nan_ok=True)
    expected = mean([average_precision(h) for h in hits])
    assert float(map_at_r(*case, chunk=chunk)) == pytest.approx(expected, nan_ok=True)
    expected = mean([mean(h[: sum(h)]) for h in hits])
    assert float(r_precision(*case, chunk=chunk)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("size", [2, 64])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_recall_equals_nearest_neighbours_of_scikit_learn(size: int, offset: float) -> None:
    embeddings, labels = spread(0, 700, size, 20)
    order = NearestNeighbors(n_neighbors=11).fit(embeddings.numpy()).kneighbors(return_distance=False)
    right = labels.numpy()[order] == labels.numpy()[:, None]
    expected = [right[:, :k].any(1).mean() for k in (1, 3, 10)]
    assert recall_at_k(embeddings + offset, labels, ks=(1, 3, 10)).tolist() == pytest.approx(expected)


@every_function
@pytest.mark.parametrize("size", [1, 7, 64, 513, 2048])
@pytest.mark.parametrize("samples", [12, 64, 301])
def test_embeddings_collapsed_to_a_point_score_0(function: Callable[..., Tensor], size: int, samples: int) -> None:
    point = torch.randn(size, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(samples) % 2
    for collapsed in (point, 1e3 * point, 0 * point):
        assert not function(collapsed.repeat(samples, 1), labels).any()


@pytest.mark.parametrize("size", [7, 128, 513])
def test_a_negative_that_coincides_with_the_nearest_positive_is_ahead_of_it(size: int) -> None:
    g = torch.Generator().manual_seed(0)
    here, there = torch.randn(2, 40, size, generator=g)
    here[:, 0] += 100 * torch.arange(40)
    near = here + 0.1 * there
    embeddings, labels = torch.cat([here, near, near]), torch.arange(120) % 40
    labels[80:] += 1000  # a class of one's own for each copy
    recall = recall_at_k(embeddings, labels, ks=(1, 2))[:2]
    assert recall.tolist() == [0, 1]


@every_function
@given(crowded(), st.randoms(use_true_random=False))
def test_invariant_to_rotation_shift_scale_and_order(function, case: tuple[Tensor, Tensor], random) -> None:
    embeddings, labels = case
    size, order = embeddings.shape[-1], list(range(len(labels)))
    random.shuffle(order)
    g = torch.Generator().manual_seed(random.randrange(1000))
    rotation = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64)).Q
    moved = (embeddings.double() @ rotation).float()
    for other, same in ((moved, labels), (7 * embeddings + 30, labels), (embeddings[order], labels[order])):
        torch.testing.assert_close(function(other, same), function(embeddings, labels), equal_nan=True)


@given(crowded())
def test_recall_grows_with_k_and_map_is_below_r_precision(case: tuple[Tensor, Tensor]) -> None:
    recall = recall_at_k(*case, ks=range(1, 30))
    assume(not recall.isnan().any())
    assert (recall.diff() >= 0).all()
    assert recall[-1] == 1
    assert 0 <= map_at_r(*case) <= r_precision(*case) + 1e-6 <= 1 + 2e-6


def test_classes_that_lie_apart_score_1() -> None:
    labels = torch.arange(60) % 6
    embeddings = 100.0 * labels[:, None] + torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    for function in FUNCTIONS.values():
        assert (function(embeddings, labels) == 1).all()


@every_function
def test_queries_without_a_positive_are_left_out(function: Callable[..., Tensor]) -> None:
    embeddings = torch.tensor([[0.0], [1.0], [50.0]])
    assert (function(embeddings, torch.tensor([0, 0, 1])) == 1).all()
    assert function(embeddings, torch.tensor([0, 1, 2])).isnan().all()
    assert function(embeddings[:1], torch.tensor([0])).isnan().all()


@every_function
def test_nan_is_no_hit(function: Callable[..., Tensor]) -> None:
    assert not function(torch.full((20, 3), math.nan), torch.arange(20) % 2).any()


@every_function
def test_works_in_float32_whatever_the_embeddings_and_autocast_are(function: Callable[..., Tensor]) -> None:
    embeddings, labels = spread(1, 300, 16, 10)
    rough = embeddings.bfloat16()
    expected = function(rough.float(), labels)
    assert torch.equal(function(rough, labels), expected)
    assert expected.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = function(embeddings, labels)
    assert torch.equal(under_autocast, function(embeddings, labels))


@every_function
def test_vmap_over_children_equals_a_loop(function: Callable[..., Tensor]) -> None:
    g = torch.Generator().manual_seed(2)
    embeddings = torch.randn(3, 50, 4, generator=g).round(decimals=1)
    labels = torch.randint(0, 6, (3, 50), generator=g)
    some = partial(function, chunk=16)
    loop = torch.stack([some(e, y) for e, y in zip(embeddings, labels, strict=True)])
    torch.testing.assert_close(torch.func.vmap(some)(embeddings, labels), loop)


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that was made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            self.elements = max(self.elements, one.numel() if isinstance(one, Tensor) else 0)
        return made


@every_function
def test_no_tensor_is_larger_than_a_chunk_of_rows(function: Callable[..., Tensor]) -> None:
    embeddings, labels = spread(3, 400, 2, 10)
    with Largest() as largest:
        function(embeddings, labels, chunk=16)
    assert largest.elements == 16 * 400


def test_metrics_are_the_functions_and_recall_is_the_mean_over_k() -> None:
    embeddings, labels = spread(4, 100, 3, 10)
    metric = RecallAtK(ks=(1, 10))
    assert metric(embeddings, labels) == recall_at_k(embeddings, labels, (1, 10)).mean()
    assert MAPAtR()(embeddings, labels) == map_at_r(embeddings, labels)
    assert RPrecision()(embeddings, labels) == r_precision(embeddings, labels)
    for each in (metric, MAPAtR(), RPrecision()):
        assert each.higher_is_better
        assert each.percent
        with pytest.raises(InputError, match=r"needs embeddings \[V, D\]"):
            each(embeddings[:, 0], labels)


@pytest.mark.parametrize("ks", [(1,), (1, 10, 100)])
def test_a_name_carries_its_ks(ks: tuple[int, ...]) -> None:
    metric = metric_named(f"recall@{','.join(map(str, ks))}", num_classes=16)
    assert isinstance(metric, RecallAtK)
    assert metric.ks == ks
    assert metric.name == RecallAtK(ks).name == f"recall@{','.join(map(str, ks))}"


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("recall@", "recall@1,10,100"), ("recall@one", "recall@1,10,100"), ("recall@0", "each of at least 1")],
)
def test_a_name_with_wrong_ks_says_how_to_write_it(name: str, way_out: str) -> None:
    with pytest.raises(InputError, match=way_out):
        metric_named(name)
    with pytest.raises(InputError, match="name one k or more"):
        RecallAtK(ks=())
