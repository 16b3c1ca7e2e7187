"""Every loss has a name, and a name makes the loss that a run needs."""

import re
import sys

import pytest
import torch

from lossalign.core import InputError
from lossalign.losses import AdaptiveLoss
from lossalign.losses.registry import LOSSES, LossSettings, find_loss, make_loss

SETTINGS = LossSettings(counts=torch.tensor([30, 20, 10]))


@pytest.mark.parametrize("name", LOSSES)
def test_a_name_makes_a_loss_with_the_groups_that_a_policy_moves(name):
    loss, entry = make_loss(name, SETTINGS), LOSSES[name]
    assert isinstance(loss, AdaptiveLoss)
    assert set(entry.groups) <= set(loss.spec.slices)
    assert len(LOSSES.summary(name)) > 10


@pytest.mark.parametrize("name", LOSSES)
def test_only_its_own_groups_are_on_if_they_are_named(name):
    groups = LOSSES[name].groups
    loss = make_loss(name, LossSettings(counts=SETTINGS.counts, groups=groups))
    assert not groups or set(loss.spec.slices) == set(groups)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("framework", ["triplet", "margin"])
def test_it_gives_a_finite_loss_of_a_batch(name, framework):
    loss = make_loss(name, LossSettings(counts=SETTINGS.counts, framework=framework))
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(12, 3, generator=draw)
    assert loss(outputs, torch.arange(12) % 3, loss.spec.initial).isfinite().all()


def test_the_random_stream_of_a_loss_has_the_name_that_published_results_were_drawn_with():
    """Renaming a class or an entry must not change what ``minibatch`` evaluation draws."""
    assert {name: LOSSES[name].stream or name for name in LOSSES} == {
        "aligned": "AlignedLoss",
        "class-correlation": "ClassCorrelationLoss",
        "log-class-correlation": "ClassCorrelationLoss",
        "distance-mixture": "DistanceMixtureLoss",
        "scale-matched": "DistanceMixtureLoss",
        "paper-mixture": "DistanceMixtureLoss",
        "light-mixture": "DistanceMixtureLoss",
        "focal-weighting": "focal-weighting",
        "sharp-focal": "FocalWeightingLoss",
        "triplet": "TripletLoss",
        "margin": "MarginLoss",
        "contrastive": "ContrastiveLoss",
        "multi-similarity": "MultiSimilarityLoss",
        "l-softmax": "LSoftmaxLoss",
        "ldam": "LDAMLoss",
        "ranking": "RankingLoss",
        "pairwise": "PairwiseLoss",
        "smooth-ap": "SmoothAPLoss",
    }


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(InputError, match=r"loss 'alined' is unknown; did you mean 'aligned'\?.*or give pml-NAME for a"):
        find_loss("alined")


class TestOwn:
    CODE = (
        "import lossalign\n"
        "instance = lossalign.AlignedLoss(3)\n"
        "class OfClasses(lossalign.AlignedLoss):\n"
        "    pass\n"
        "def without_arguments():\n"
        "    return lossalign.FocalWeightingLoss()\n"
        "class OnEmbeddings(lossalign.FocalWeightingLoss):\n"
        "    pass\n"
        "def broken(num_classes):\n"
        "    raise KeyError('weights')\n"
        "number = 5\n"
    )

    @pytest.fixture(autouse=True)
    def module(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, "my_losses", raising=False)
        (tmp_path / "my_losses.py").write_text(self.CODE)

    @pytest.mark.parametrize(
        ("name", "embeds"),
        [("instance", False), ("OfClasses", False), ("OnEmbeddings", True)],
    )
    def test_it_is_found_by_name_and_its_class_says_whether_it_is_on_embeddings(self, name, embeds):
        assert find_loss(f"my_losses:{name}").embeds is embeds
        assert isinstance(make_loss(f"my_losses:{name}", SETTINGS), AdaptiveLoss)

    def test_a_factory_may_take_no_argument(self):
        assert isinstance(make_loss("my_losses:without_arguments", SETTINGS), AdaptiveLoss)

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("broken", "loss 'my_losses:broken': making it failed: KeyError: 'weights'"),
            ("number", "loss 'my_losses:number' is a int; give a lossalign.AdaptiveLoss."),
            ("nothing", "has no 'nothing'"),
        ],
    )
    def test_its_mistakes_are_named(self, name, sentence):
        with pytest.raises(InputError, match=re.escape(sentence)):
            make_loss(f"my_losses:{name}", SETTINGS)
