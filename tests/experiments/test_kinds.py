"""A kind of task owns its split, its defaults, and what it refuses."""

from itertools import combinations

import pytest
import torch

from lossalign.core import InputError
from lossalign.data import Pairs, long_tailed_counts
from lossalign.experiments import TASKS, build, configure, parse_method
from lossalign.experiments.kinds import KINDS
from lossalign.metrics import all_pairs, balanced_threshold

SMALL = {"iterations": 20, "every": 10, "children": 1, "methods": ("fixed",), "device": "cpu"}


@pytest.mark.parametrize("task", TASKS)
def test_the_kind_of_a_task_fits_its_loss(task):
    config = configure(task)
    assert config.kind == TASKS[task].kind
    assert KINDS[config.kind].embeds == (config.model.embedding is not None)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_compares_methods_that_exist(name):
    assert all(parse_method(method) for method in KINDS[name].compared)


def test_the_network_of_a_classifier_has_an_output_for_each_class_and_of_an_embedding_its_dimensions():
    assert KINDS["classification"].outputs(configure("digits"), 10) == 10
    assert KINDS["retrieval"].outputs(configure("digits-retrieval", {"embedding": 5}), 80) == 5


class TestSplit:
    def test_every_class_is_in_every_part_and_no_example_in_two(self):
        data = build(configure("digits-lt", {**SMALL, "seeds": 2})).data[0]
        parts = [data.train, data.splits.validation, data.splits.selection, data.test]
        assert [len(part) for part in parts] == [long_tailed_counts(60, 10, 20).sum(), 220, 220, 300]
        assert all((part.counts > 0).all() for part in parts)
        for a, b in combinations([part.load().inputs for part in parts], 2):
            assert not (a[:, None] == b[None]).flatten(2).all(-1).any()

    def test_a_share_held_out_replaces_the_numbers_per_class(self):
        data = build(configure("digits", {**SMALL, "largest": None, "held_out_fraction": 0.1})).data[0]
        assert len(data.validation.targets) == pytest.approx(180, abs=5)
        assert len(data.train) > 1200

    def test_a_share_of_the_training_classes_is_as_long_tailed_as_they_are(self):
        changes = {**SMALL, "largest": 100, "ratio": 10.0, "validation_of_train": 0.25}
        counts = build(configure("digits-lt", changes)).data[0].validation.targets.bincount()
        assert counts[0] > 2 * counts[9]
        assert counts.min() >= 5

    def test_metric_learning_holds_whole_classes_out(self):
        for data in build(configure("digits-retrieval", {**SMALL, "seeds": 2})).data.values():
            parts = [data.train.targets, data.validation.targets, data.selection.targets, data.test.targets]
            classes = [set(part.tolist()) for part in parts]
            assert [len(some) for some in classes] == [44, 12, 12, 12]
            assert len(set.union(*classes)) == 80
            assert len(data.validation.targets) == 240


class Faces:
    """Networks that are judged on pairs, for a test: two of them, on six samples."""

    def __init__(self, final, pairs):
        draw = torch.Generator().manual_seed(0)
        self.final, self.pairs = final, pairs
        self.labels = torch.tensor([0, 0, 0, 1, 1, 1])
        self.scored, self.own = (torch.randn(2, 6, 3, generator=draw) for _ in range(2))

    def measured(self):
        return torch.tensor([0.25, 0.75])

    def embedded(self):
        return [(self.scored[child], self.own[child], self.labels) for child in range(2)]


class TestVerification:
    PAIRS = Pairs(
        first=torch.tensor([0, 3, 0]),
        second=torch.tensor([1, 4, 3]),
        same=torch.tensor([True, True, False]),
        folds=torch.zeros(3, dtype=torch.int64),
    )

    def test_the_test_split_is_judged_pair_by_pair_at_a_distance_of_the_selection_split(self):
        networks = Faces(final=True, pairs=self.PAIRS)
        judged = KINDS["verification"].judge(networks)
        assert judged.shape == (2, 3)
        for child, (scored, own, labels) in enumerate(networks.embedded()):
            threshold = balanced_threshold(*all_pairs(own, labels))
            alike = [(scored[a] - scored[b]).norm() <= threshold for a, b in ((0, 1), (3, 4), (0, 3))]
            assert judged[child].tolist() == [alike[0], alike[1], not alike[2]]

    @pytest.mark.parametrize(("final", "pairs"), [(False, PAIRS), (True, None)])
    def test_elsewhere_the_metric_counts(self, final, pairs):
        assert KINDS["verification"].judge(Faces(final, pairs)).tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("digits-retrieval", {"methods": ("logit-adjustment",)}, "'logit-adjustment' is for classification"),
        ("digits-retrieval", {"methods": ("fixed", "post-hoc-offsets")}, "'post-hoc-offsets' is for classification"),
        ("digits-retrieval", {"methods": ("fixed", "fixed+decision")}, r"'fixed\+decision' is for classification"),
        ("digits-retrieval", {"methods": ("fixed", "ensemble-fixed")}, "'ensemble-fixed' is for classification"),
        ("digits-lt", {"methods": ("triplet",)}, "'triplet' is for metric learning, and digits-lt is classification"),
        ("digits-lt", {"methods": ("pml-circle",)}, "'pml-circle' is for metric learning, and digits-lt is"),
        ("digits-retrieval", {"methods": ("quadruplet",)}, "'quadruplet' is unknown; .* or give pml-NAME for a loss"),
        ("digits-retrieval", {"methods": ("pml-quadruplet",)}, "(has no such loss|run pip install)"),
        ("digits-lt", {"loss": "distance-mixture"}, "metric learning needs both"),
        ("digits-lt", {"embedding": 8}, "metric learning needs both"),
        ("digits-retrieval", {"loss": "aligned"}, "metric learning needs both"),
        ("digits-retrieval", {"validation_classes": 1}, "at least 2"),
        ("digits-retrieval", {"per_class": 7}, "batch_size"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(task, changes, message):
    with pytest.raises(InputError, match=message):
        build(configure(task, changes))


def test_a_split_of_no_size_is_named():
    config = configure("digits-lt", {"selection_per_class": "none", "children": 1})
    with pytest.raises(InputError, match="selection_per_class: the data have no selection split"):
        build(config)
