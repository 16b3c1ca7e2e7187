"""A result names its baseline, its learner and their rivals by role, and keeps the right child."""

import json

import numpy as np
import pytest
import torch

from lossalign.evaluation import Scores, best_child, score, summarise
from lossalign.evaluation.result import best_child_of, guard_keeps


def summarised(experiment, final=False):
    rewards = {name: np.zeros((0, population.children.count)) for name, population in experiment.populations.items()}
    return summarise(experiment, score(experiment, final=final), rewards, final=final)


class TestRoles:
    def test_the_baseline_the_learner_and_the_rivals_are_told_apart_wherever_they_stand(self, one_step):
        result = summarised(one_step("ala", "logit-adjustment", "fixed", "random-walk", "best-of-ala", "best-of-fixed"))
        assert (result.baseline, result.learner) == ("fixed", "ala")
        assert result.rivals == ("logit-adjustment", "random-walk", "best-of-fixed")
        assert result.roles["best-of-ala"] == "derived"
        assert result.rows["fixed"].difference is None
        assert result.against_learner["ala"].difference is None

    def test_without_a_baseline_the_first_method_is_compared_with(self, one_step):
        result = summarised(one_step("random-walk", "logit-adjustment"))
        assert (result.baseline, result.learner) == ("random-walk", None)
        assert result.against_learner == {}
        assert result.best_rival is None

    def test_a_learner_with_options_of_its_own_is_not_the_learner_of_the_run(self, one_step):
        result = summarised(one_step("fixed", "ala:horizon=1"))
        assert result.learner is None
        assert result.rivals == ()

    @pytest.mark.parametrize(("higher", "best"), [(False, "logit-adjustment"), (True, "random-walk")])
    def test_the_best_rival_has_the_best_mean(self, one_step, monkeypatch, higher, best):
        experiment = one_step("fixed", "logit-adjustment", "random-walk", "ala")
        monkeypatch.setattr(type(experiment.metric), "higher_is_better", higher)
        values = {"fixed": 0.0, "logit-adjustment": 0.1, "random-walk": 0.2, "ala": 0.15}
        values = {name: np.array([value]) for name, value in values.items()}
        scores = Scores(best=values, last=values, train={}, collapsed={}, pairs={})
        assert summarise(experiment, scores, {"aligned": np.zeros((0, 8))}, final=False).best_rival == best

    def test_what_follows_a_learner_is_no_rival(self, one_step):
        derived = ("ala+decision", "ensemble-ala", "ensemble-ala+decision", "fixed+decision", "ensemble-fixed")
        result = summarised(one_step("fixed", "ala", *derived))
        assert result.rivals == ("fixed+decision", "ensemble-fixed")


class TestTables:
    def test_the_values_behind_the_tables_are_kept_seed_by_seed(self, one_step):
        result = summarised(one_step("fixed", "ala", seeds=3))
        for kept, rows in (("best", result.rows), ("last", result.last)):
            assert {name: len(values) for name, values in result.seeds[kept].items()} == {"fixed": 3, "ala": 3}
            for name, row in rows.items():
                assert row.mean == pytest.approx(np.mean(result.seeds[kept][name]))
                assert row.seeds == 3
        assert result.children == {"fixed": 6, "ala": 6}

    def test_it_says_what_was_scored_and_which_way_is_better(self, one_step):
        experiment = one_step("fixed", metric="macro-f1")
        assert [summarised(experiment, final).split for final in (False, True)] == ["selection", "test"]
        result = summarised(experiment)
        assert (result.metric, result.higher_is_better, result.percent) == ("macro-f1", True, True)

    def test_it_says_how_many_networks_predict_together(self, one_step):
        methods = (
            "fixed",
            "fixed:children=3",
            "fixed+decision",
            "ensemble-fixed",
            "ensemble-fixed+decision:children=3",
        )
        assert summarised(one_step(*methods)).networks == dict(zip(methods, (1, 1, 1, 2, 3), strict=True))

    def test_it_is_plain_data(self, one_step):
        result = summarised(one_step("fixed", "ala"))
        plain = json.loads(json.dumps(result.to_json()))
        assert plain["rows"]["ala"]["mean"] == result.rows["ala"].mean
        assert plain["seeds"] == result.seeds

    def test_children_that_failed_are_counted(self, one_step):
        experiment = one_step("fixed", "ala", seeds=2)
        assert summarised(experiment).failed == {}
        experiment.populations["mlp-16"].failed[experiment.arm("ala", 1).rows] = True
        assert summarised(experiment).failed == {"ala": 2}

    def test_every_trained_method_has_a_cost_if_anything_was_trained(self, one_step):
        experiment = one_step("fixed", "ala", "best-of-ala")
        assert set(summarised(experiment).cost) == {"fixed", "ala"}
        experiment.populations["mlp-16"].clock.seconds.clear()
        assert summarised(experiment).cost == {}

    def test_a_random_walk_too_short_to_tell_is_no_answer(self, one_step):
        assert summarised(one_step("random-walk")).learnable is None


class TestKept:
    GUARDED = ("ala", "fixed", "guarded-ala")

    @pytest.mark.parametrize(
        ("preferred", "methods", "kept"),
        [
            ("ala", ("fixed", "ala"), "ala"),
            ("ala", ("ala", "refit-ala"), "refit-ala"),
            ("ala", (*GUARDED, "refit-ala"), "refit-ala"),
            ("fixed", (*GUARDED, "refit-ala"), "fixed"),
            ("fixed", ("ala", "fixed"), "ala"),
            ("fixed", ("fixed", "logit-adjustment"), "fixed"),
        ],
    )
    def test_whose_weights_a_run_leaves(self, one_step, preferring, preferred, methods, kept):
        experiment = one_step(*methods, iterations=10)
        errors = {(arm.method, arm.seed): 0.1 if arm.method == preferred else 0.2 for arm in experiment.arms}
        assert best_child(preferring(experiment, errors)).arm.method == kept

    def test_it_is_the_child_that_the_selection_split_prefers_over_all_seeds(self, one_step, preferring):
        experiment = one_step("fixed", "ala", seeds=2)
        errors = {("fixed", 0): [0.0, 0.0], ("fixed", 1): [0.0, 0.0], ("ala", 0): [0.2, 0.3], ("ala", 1): [0.4, 0.1]}
        chosen = best_child(preferring(experiment, errors))
        assert (chosen.arm.method, chosen.arm.seed, chosen.child) == ("ala", 1, 1)
        children = experiment.populations["mlp-16"].children
        expected = children.child_state(chosen.arm.start + 1, "best")
        assert all(torch.equal(chosen.weights[name], tensor) for name, tensor in expected.items())

    def test_a_child_that_leaves_out_a_fold_is_not_kept(self, one_step, preferring):
        experiment = one_step("fixed+val", "fixed+val+decision", iterations=10)
        errors = {(arm.method, 0): 0.1 if arm.spec.without is not None else 0.2 for arm in experiment.arms}
        assert best_child(preferring(experiment, errors)).arm.method == "fixed+val"

    def test_the_best_child_of_an_arm_is_its_own(self, one_step, preferring):
        experiment = one_step("fixed", "ala")
        preferring(experiment, {("fixed", 0): [0.0, 0.1], ("ala", 0): [0.3, 0.2]})
        assert [best_child_of(experiment, arm).child for arm in experiment.arms] == [0, 1]

    def test_the_guard_says_what_it_keeps_by_seed(self, one_step, preferring):
        experiment = one_step(*self.GUARDED, seeds=2)
        preferring(experiment, {("ala", 0): 0.5, ("fixed", 0): 0.6, ("ala", 1): 0.5, ("fixed", 1): 0.4})
        assert guard_keeps(experiment) == summarised(experiment).kept == {0: "ala", 1: "fixed"}
        assert guard_keeps(one_step("fixed", "ala")) == {}
