"""A built run has every child in its place, and its children depend on nothing but their own seed and number."""

import re
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.children import CompiledChildren
from lossalign.core import InputError
from lossalign.data import Dataset, MappedImages
from lossalign.evaluation import score
from lossalign.experiments import METHODS, build, configure
from lossalign.experiments.build import pick_device

SMALL = {"iterations": 60, "children": 3, "seeds": 2}


def built(task="digits-lt", **changes):
    return build(configure(task, {**SMALL, **changes}))


def weights_of(experiment, arm, child):
    return experiment.populations[arm.population].children.child_state(arm.start + child, "raw")


def equal(one, other):
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


class TestArms:
    METHODS = ("fixed", "ldam-drw", "logit-adjustment:children=1", "ala")

    def test_arms_fill_their_population_row_by_row(self):
        experiment = built(methods=self.METHODS)
        assert len(experiment.arms) == 8
        for name, population in experiment.populations.items():
            rows = [row for arm in experiment.arms_of(name) for row in range(arm.rows.start, arm.rows.stop)]
            assert rows == list(range(population.children.count))

    def test_each_arm_has_a_controller_for_its_children(self):
        experiment = built(methods=self.METHODS)
        for arm in experiment.arms:
            assert len(experiment.phi(arm)) == arm.children == (1 if "children=1" in arm.method else 3)

    def test_an_arm_is_found_by_its_method_and_seed(self):
        experiment = built(methods=self.METHODS)
        for arm in experiment.arms:
            assert experiment.arm(arm.method, arm.seed) is arm

    def test_a_method_may_bring_its_own_number_of_children(self):
        experiment = built(methods=("random-phi", "fixed"), iterations=10)
        assert [arm.children for arm in experiment.arms] == [METHODS["random-phi"].children, 3] * 2


class TestTogether:
    def test_methods_of_several_losses_train_together_as_they_do_alone(self):
        methods = ("fixed", "pairwise", "random-matrix", "ala")
        together = built(methods=methods, iterations=30)
        (population,) = together.populations.values()
        for _ in range(population.steps):
            population.step()
        for method in methods:
            alone = built(methods=(method,), iterations=30)
            (single,) = alone.populations.values()
            for _ in range(single.steps):
                single.step()
            for mine, other in zip([arm for arm in together.arms if arm.method == method], alone.arms, strict=True):
                assert torch.equal(together.phi(mine), alone.phi(other)), method
                assert torch.equal(population.best_errors[mine.rows], single.best_errors[other.rows]), method
                assert equal(weights_of(together, mine, 0), weights_of(alone, other, 0)), method

    def test_one_controller_holds_the_policies_of_all_seeds(self):
        experiment = built(methods=("fixed", "ala", "evolution"), seeds=3)
        learned = {arm.seed: experiment.controller(arm) for arm in experiment.arms if arm.method == "ala"}
        assert learned[0] is learned[1] is learned[2]
        policies = [experiment.policy(experiment.arm("ala", seed)) for seed in range(3)]
        assert len({id(policy) for policy in policies}) == 3
        assert [policy.about.provenance["seed"] for policy in policies] == [0, 1, 2]
        assert experiment.policy(experiment.arm("fixed", 0)) is None

    def test_a_loss_that_cannot_be_lifted_trains_in_a_population_of_its_own(self, tmp_path, monkeypatch):
        (tmp_path / "slow_loss.py").write_text(
            "import lossalign\nclass Slow(lossalign.AlignedLoss):\n    vectorised = False\nloss = Slow(10)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        experiment = built(loss="slow_loss:loss", methods=("fixed", "cross-entropy"))
        assert {arm.method: arm.population for arm in experiment.arms} == {
            "fixed": "mlp-16-slow_loss:loss",
            "cross-entropy": "mlp-16",
        }
        engines = {name: each.children.engine.split(",")[0] for name, each in experiment.populations.items()}
        assert engines == {"mlp-16-slow_loss:loss": "sequential", "mlp-16": "fused"}

    def test_a_comparison_of_several_losses_has_one_iteration_to_compile(self):
        methods = (
            "fixed",
            "pairwise",
            "smooth-ap",
            "random-matrix",
            "focal",
            "label-smoothing",
            "ala",
            "cross-entropy",
        )
        experiment = built(methods=methods, compile="on", seeds=1, iterations=10)
        assert [population.children.count for population in experiment.populations.values()] == [24]
        assert all(isinstance(each.children, CompiledChildren) for each in experiment.populations.values())


class TestPairing:
    def test_equal_children_of_two_methods_begin_with_equal_weights_and_others_do_not(self):
        experiment = built(methods=("fixed", "ala", "fixed+val"))
        fixed, ala, both = (experiment.arm(method, 0) for method in ("fixed", "ala", "fixed+val"))
        other = experiment.arm("fixed", 1)
        began = weights_of(experiment, fixed, 0)
        assert equal(weights_of(experiment, ala, 0), began)
        assert equal(weights_of(experiment, both, 0), began)
        assert not equal(weights_of(experiment, fixed, 1), began)
        assert not equal(weights_of(experiment, other, 0), began)

    def test_a_method_does_not_depend_on_its_company(self):
        settings = {"iterations": 20, "engine": "sequential"}
        alone = built(methods=("ala",), **settings)
        among = built(methods=("fixed", "logit-adjustment", "ala"), **settings)
        for experiment in (alone, among):
            for _ in range(2):
                experiment.populations["mlp-16"].step()
        np.testing.assert_array_equal(score(alone, final=False).best["ala"], score(among, final=False).best["ala"])

    def test_every_seed_has_a_split_of_its_own(self):
        experiment = built()
        assert not torch.equal(experiment.data[0].test.inputs, experiment.data[1].test.inputs)
        assert torch.equal(experiment.data[1].test.inputs, built(seeds=1, seed=1).data[1].test.inputs)

    @pytest.mark.parametrize("task", ["digits-lt", "digits-retrieval"])
    def test_the_untrained_network_is_where_the_child_began(self, task):
        experiment = built(task, methods=("fixed", "ala"))
        for arm in experiment.arms:
            began = weights_of(experiment, arm, 1)
            assert equal(experiment.untrained(arm, 1).state_dict(), began)

    def test_batches_of_metric_learning_hold_as_many_of_each_class(self):
        experiment = built("digits-retrieval")
        _, targets = next(iter(next(iter(experiment.populations.values())).children._feed.batches(1)))
        assert all(sorted(torch.bincount(row)[torch.bincount(row) > 0].tolist()) == [4] * 16 for row in targets)


class TestLoss:
    @pytest.mark.parametrize(("changes", "initial"), [({}, 2.0), ({"start": "paper"}, 1.0), ({"preset": "paper"}, 1.0)])
    def test_phi_starts_where_it_is_best_or_where_the_paper_does(self, changes, initial):
        experiment = built("digits-retrieval", loss="focal-weighting", **changes)
        assert float(experiment.losses["focal-weighting"].spec.initial.exp()[0]) == pytest.approx(initial)

    def test_the_papers_preset_starts_where_the_paper_does(self):
        ours, theirs = (built("digits-retrieval", preset=name) for name in ("default", "paper"))
        assert [each.losses["distance-mixture"].spec.initial[0] for each in (ours, theirs)] == [0.25, 1.0]

    def test_a_loss_for_more_classes_than_the_data_have_is_refused(self, tmp_path, monkeypatch):
        (tmp_path / "my_loss.py").write_text("import lossalign\nloss = lossalign.AlignedLoss(11)\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(InputError, match=re.escape("parameters for class 10, but the data have 10 classes")):
            built(loss="my_loss:loss")


@pytest.mark.parametrize(
    ("name", "gpu", "picked"), [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu")]
)
def test_auto_is_a_gpu_if_there_is_one(monkeypatch, name, gpu, picked):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert pick_device(name).type == picked


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="torch sees no GPU here"):
        pick_device("cuda")


def test_an_image_folder_beyond_the_limit_is_streamed(tmp_path):
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(20):
            pixels = random.integers(40, 160, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i}.png")
    small = {"image_size": 8, "model": "mlp-8", "batch_size": 8, "iterations": 20, "every": 5, "device": "cpu"}
    task = f"images:{tmp_path / 'pets'}"
    assert isinstance(built(task, **small).data[0].train, Dataset)
    streaming = {**small, "in_memory_gb": 0.0, "image_cache": str(tmp_path / "cache")}
    assert isinstance(built(task, **streaming).data[0].train, MappedImages)


def test_folds_cut_the_validation_split_class_by_class_and_a_child_leaves_out_one():
    experiment = built(methods=("fixed+val", "fixed+val+decision"), seeds=1)
    data, targets = experiment.data[0], experiment.data[0].splits.validation.targets
    assert torch.stack([targets[data.folds == fold].bincount() for fold in range(4)]).unique().tolist() == [5, 6]
    whole = data.trained_on(and_validation=True).load().inputs
    held = data.splits.validation.load().inputs
    for fold in range(4):
        part = data.trained_on(and_validation=True, without=fold).load()
        assert len(part) == len(data.train) + int((data.folds != fold).sum())
        assert torch.equal(part.inputs, torch.cat([whole[: len(data.train)], held[data.folds != fold]]))
    counts = [row.counts for row in (data.train, data.trained_on(and_validation=True, without=0))]
    assert ((counts[1] - counts[0]) == targets[data.folds != 0].bincount()).all()


def test_a_child_that_leaves_out_a_fold_is_paired_with_the_whole_one():
    experiment = built(methods=("fixed+val", "fixed+val+decision"), seeds=1)
    whole, *folds = experiment.arms
    start = weights_of(experiment, whole, 1)
    assert all(equal(weights_of(experiment, fold, 1), start) for fold in folds)
    next(iter(experiment.populations.values())).step()
    trained = [weights_of(experiment, arm, 1) for arm in experiment.arms]
    assert not any(equal(one, other) for one, other in combinations(trained, 2))
