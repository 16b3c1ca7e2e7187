"""Each method does what its name says: which Φ it trains under, and on which data it may look."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.control import Policy
from lossalign.core import InputError
from lossalign.experiments import METHODS, build, configure, parse_method
from lossalign.experiments.methods import DerivedMethod, TrainedMethod
from lossalign.experiments.methods.names import COMPARED_CLASSES, COMPARED_EMBEDDINGS
from lossalign.losses import AlignedLoss
from lossalign.rivals import rescaled

SMALL = {"iterations": 100, "children": 2, "seeds": 1}


def built(*methods, **changes):
    return build(configure("digits-lt", {**SMALL, "methods": methods, **changes}))


def stepped(experiment, steps):
    (population,) = experiment.populations.values()
    for _ in range(steps):
        population.step()
    return experiment


def phi_of(method, step):
    """Φ of the groups weights and offsets under which a step trained, of the first child."""
    experiment = stepped(built(method, "logit-adjustment", "inverse-frequency"), step)
    phi = experiment.populations["mlp-16"].history[0][step - 1][0]
    return {name: phi[where] for name, where in experiment.losses["aligned"].spec.slices.items()}


class TestWritten:
    @pytest.mark.parametrize(
        ("text", "role"),
        [
            ("fixed", "baseline"),
            ("cross-entropy", "rival"),
            ("ala:horizon=1", "learner"),
            ("random-walk", "rival"),
            ("logit-adjustment+val", "rival"),
            ("refit-ala", "rival"),
            ("fixed+survival", "rival"),
            ("logit-adjustment+survival+val", "rival"),
            ("logit-adjustment+val+survival:children=3", "rival"),
            ("pml-circle", "rival"),
            ("best-of-fixed", "derived"),
            ("guarded-ala", "derived"),
            ("fixed+decision", "derived"),
            ("ensemble-logit-adjustment", "derived"),
            ("ensemble-ala+decision:horizon=1", "derived"),
        ],
    )
    def test_its_role_is_that_of_its_method(self, text, role):
        spec = parse_method(text)
        assert (spec.text, spec.role) == (text, role)

    @pytest.mark.parametrize("name", METHODS)
    def test_a_plain_name_has_no_options(self, name):
        spec = parse_method(name)
        assert spec.plain
        assert spec.options == ()
        assert (spec.trained is None) != (spec.derived is None)

    def test_options_are_typed(self):
        spec = parse_method("ala:groups=weights,offsets,horizon=1,ratio_clip=none,children=3,policy=none")
        assert spec.options == (("groups", ("weights", "offsets")), ("horizon", 1), ("ratio_clip", None))
        assert (spec.children, spec.policy, spec.freeze, spec.plain) == (3, "none", None, False)

    @pytest.mark.parametrize(
        ("written", "sentence"),
        [
            ("nobody", "method 'nobody' is unknown"),
            ("fixd", "did you mean 'fixed'?"),
            ("ala+val", "reads the validation split"),
            ("proportional-rule+val", "reads the validation split"),
            ("best-of-fixed+val", "is not trained"),
            ("best-of-fixed:horizon=1", "takes no options"),
            ("best-of-fixed:children=2", "takes no options"),
            ("confusion-rule+survival+val", "confusion-rule reads the validation split"),
            ("ala+survival", "ala inherits by itself"),
            ("random-walk+survival", "leave out +survival"),
            ("survival+survival", "survival inherits by itself"),
            ("fixed+survival+survival", "+survival is given twice"),
            ("best-of-fixed+survival", "trains no children of its own"),
            ("best-of-fixed+decision", "best-of-fixed trains no children of its own; leave out +decision"),
            ("ensemble-guarded-ala", "guarded-ala trains no children of its own; leave out ensemble-"),
            ("ensemble-ensemble-fixed", "ensemble-fixed trains no children of its own"),
            ("fixed+decision+decision", "+decision is given twice"),
            ("refit-ala+decision", "no labels are left to decide by"),
            ("ala+val+decision", "ala reads the validation split"),
            ("ala+decision:nothing=1", "option 'nothing' is unknown"),
            ("ensemble-nobody", "method 'nobody' is unknown"),
            ("ala:nothing=1", "option 'nothing' is unknown; choose from policy, freeze, children, loss"),
            ("ala:returns=1", "option 'returns' is now called 'horizon'"),
            ("ala:average=4", "option 'average' is now called 'weight_average'"),
            ("ala:learning_rate=1", "option 'learning_rate' is now called 'policy_learning_rate'"),
            ("ala:horizon=many", "method 'ala:horizon=many': horizon=many: give a whole number."),
            ("ala:freeze=1", "freeze=1: give true or false."),
            ("ala:children=two", "'ala:children=two': children=two: give a whole number"),
            ("ala:children=0", "'ala:children=0': children=0: train at least 1."),
            ("ala:children=-1", "'ala:children=-1': children=-1: train at least 1."),
            ("nowhere:factory", "there is no module 'nowhere'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, written, sentence):
        with pytest.raises(InputError, match=re.escape(sentence)):
            parse_method(written)

    @pytest.mark.parametrize("written", ["guarded-ala", "refit-ala", "post-hoc-ala", "best-of-random"])
    def test_what_starts_from_another_method_needs_it_in_the_run(self, written):
        with pytest.raises(InputError, match="add it to the methods"):
            built("fixed", written)


@pytest.mark.parametrize(
    ("written", "base"),
    [
        ("fixed+decision", "fixed"),
        ("ensemble-fixed", "fixed"),
        ("ensemble-logit-adjustment+survival+decision", "logit-adjustment+survival"),
        ("logit-adjustment+decision+survival", "logit-adjustment+survival"),
        ("ensemble-ala+decision:groups=weights,offsets,horizon=1", "ala:groups=weights,offsets,horizon=1"),
        ("fixed+val+decision", "fixed+val"),
        ("ensemble-fixed+val", "fixed+val"),
        ("ensemble-refit-ala", "refit-ala"),
    ],
)
def test_decisions_and_ensembles_are_of_a_method_that_is_in_the_run(written, base):
    spec = parse_method(written)
    assert spec.method.after == (base,)
    assert spec.derived.ensemble is written.startswith("ensemble-")
    assert spec.decides is ("+decision" in written)
    with pytest.raises(InputError, match=re.escape(f"'{written}' starts from '{base}'; add it to the methods")):
        built("random-walk", written)


def test_a_decision_on_all_labels_trains_folds_too():
    experiment = built("fixed+val", "fixed+val+decision", "ensemble-fixed+val+decision", "fixed", "fixed+decision")
    folds = [f"fixed+val without fold {fold} of 4" for fold in (1, 2, 3, 4)]
    assert [arm.method for arm in experiment.arms] == ["fixed+val", "fixed", *folds]
    assert [arm.spec.without for arm in experiment.arms] == [None, None, 0, 1, 2, 3]


def test_every_method_trains_or_starts_from_one_that_does():
    for name in METHODS:
        method = METHODS[name]
        assert isinstance(method, DerivedMethod) == (method.role == "derived")
        refits = isinstance(method, TrainedMethod) and method.refits
        assert bool(method.after) == (isinstance(method, DerivedMethod) or refits)
        assert all(isinstance(METHODS[other], TrainedMethod) for other in method.after)


@pytest.mark.parametrize("compared", [COMPARED_CLASSES, COMPARED_EMBEDDINGS])
def test_a_comparison_has_a_baseline_and_a_learner_and_is_complete(compared):
    specs = [parse_method(name) for name in compared]
    assert (specs[0].role, specs[-1].role) == ("baseline", "learner")
    assert all(other in compared for spec in specs for other in spec.method.after)


@pytest.mark.parametrize(("step", "on"), [(1, False), (8, False), (9, True), (10, True)])
def test_deferred_reweighting_starts_at_four_fifths(step, on):
    assert bool((phi_of("deferred-reweighting", step)["weights"] != 0).any()) is on


def test_designed_losses_follow_the_class_counts():
    phi = phi_of("fixed", 1)
    assert not phi["weights"].any()
    assert not phi["offsets"].any()
    experiment = built("inverse-frequency", "logit-adjustment")
    log_counts = experiment.counts.float().log()
    centred = log_counts - log_counts.mean()
    weights, offsets = (experiment.phi(arm)[0] for arm in experiment.arms)
    slices = experiment.losses["aligned"].spec.slices
    torch.testing.assert_close(weights[slices["weights"]], -centred)
    torch.testing.assert_close(offsets[slices["offsets"]], centred)


def test_class_weights_are_normalised_by_the_training_frequencies():
    loss = built("inverse-frequency").losses["aligned"]
    assert isinstance(loss, AlignedLoss)
    assert loss.frequencies[0] / loss.frequencies[9] == pytest.approx(20)


@pytest.mark.parametrize("loss", ["class-correlation", "log-class-correlation", "aligned"])
@pytest.mark.parametrize("preset", ["paper", "default"])
def test_any_loss_runs_under_any_preset(loss, preset):
    experiment = built("fixed", "ala", loss=loss, preset=preset)
    assert list(experiment.losses) == [loss]
    stepped(experiment, 1)


def test_options_give_a_method_a_preset_of_its_own():
    methods = ("fixed", "ala", "ala:horizon=1", "ala:groups=weights,offsets")
    experiment = stepped(built(*methods), 4)
    assert list(experiment.populations) == ["mlp-16"]
    assert {arm.method for arm in experiment.arms} == set(methods)
    weights = experiment.losses["aligned"].spec.slices["weights"]
    moved = {arm.method: bool(experiment.phi(arm)[:, weights].any()) for arm in experiment.arms}
    assert moved == {"fixed": False, "ala": False, "ala:horizon=1": False, "ala:groups=weights,offsets": True}


def test_and_val_trains_on_the_validation_split_too_and_leaves_the_others_alone():
    among, alone = stepped(built("fixed", "fixed+val", "logit-adjustment+val"), 1), stepped(built("fixed"), 1)
    children, single = among.populations["mlp-16"].children, alone.populations["mlp-16"].children
    arms = {arm.method: arm for arm in among.arms}
    plain, more = (children.child_state(arms[name].start, "raw") for name in ("fixed", "fixed+val"))
    assert any(not torch.equal(plain[name], more[name]) for name in plain)
    for name, tensor in single.child_state(0, "raw").items():
        torch.testing.assert_close(plain[name], tensor)
    counts = among.data[0].splits.train_and_validation.counts.float().log()
    offsets = among.losses["aligned"].spec.slices["offsets"]
    shifted = among.phi(arms["logit-adjustment+val"])[0][offsets]
    torch.testing.assert_close(shifted, counts - counts.mean())


def test_a_refit_trains_last_on_both_splits_under_what_ala_learned():
    experiment = built("refit-ala", "fixed", "ala")
    assert list(experiment.populations) == ["mlp-16", "mlp-16-refit"]
    first, second = experiment.populations.values()
    for _ in range(first.steps):
        first.step()
    for _ in range(3):
        second.step()
    learned = first.history[0][:, experiment.arm("ala", 0).rows].mean(1)
    data = experiment.data[0]
    expected = rescaled({"offsets": learned}, data.train.counts, data.splits.train_and_validation.counts)["offsets"]
    torch.testing.assert_close(second.history[0][:3, 0], expected[:3])
    assert second.history[0][2].any()


@pytest.mark.parametrize(("method", "inherits"), [("evolution", True), ("random-walk", False)])
def test_evolution_inherits_and_a_random_walk_does_not_and_neither_learns(method, inherits):
    experiment = built(method, inherit_every=2, children=4)
    controller, seen = experiment.controller(experiment.arms[0]), []
    before = {name: tensor.clone() for name, tensor in controller.policy.state_dict().items()}
    for _ in range(4):
        stepped(experiment, 1)
        seen.append(controller.parents is not None and controller.parents.tolist() != [0, 1, 2, 3])
    assert any(seen) is inherits
    assert all(torch.equal(tensor, before[name]) for name, tensor in controller.policy.state_dict().items())


@pytest.mark.parametrize("method", ["confusion-rule", "metric-gradient"])
@pytest.mark.parametrize("metric", ["balanced-error", "worst-recall"])
def test_rules_that_follow_the_metric_lower_the_offsets_of_rare_classes(method, metric):
    experiment = stepped(built(method, "fixed", metric=metric, sensitivity=False), 6)
    rule, fixed = (experiment.controller(arm).phi for arm in experiment.arms)
    assert rule.any()
    assert not fixed.any()
    counts = experiment.counts.float().log()
    assert torch.corrcoef(torch.stack([rule.mean(0), counts]))[0, 1] > 0.5


def inheritances(experiment, steps):
    """At which steps the children of each arm inherit."""
    due = {arm.method: [] for arm in experiment.arms}
    for step in range(1, steps + 1):
        stepped(experiment, 1)
        for arm in experiment.arms:
            parents = experiment.controller(arm).parents
            if parents is not None and parents.tolist() != list(range(len(parents))):
                due[arm.method].append(step)
    return due


def test_survival_gives_a_rule_the_inheritance_of_ala():
    methods = ("ala", "confusion-rule+survival", "fixed+survival", "survival", "confusion-rule:inherit_every=2")
    experiment = built(*methods, inherit_every=2, children=4)
    due = inheritances(experiment, 5)
    assert [due[method] for method in methods] == [[2, 4]] * 4 + [[]]


def test_survival_has_options_of_its_own():
    often = "logit-adjustment+survival:inherit_every=1,inherit_share=0.5"
    experiment = built("fixed", often, children=4)
    assert inheritances(experiment, 3)[often] == [1, 2, 3]
    parents = experiment.controller(experiment.arm(often, 0)).parents
    assert len((parents != torch.arange(4)).nonzero()) == 2


def test_survival_and_validation_combine():
    experiment = built("fixed", "logit-adjustment+survival+val", "logit-adjustment+val", children=4)
    stepped(experiment, 1)
    _, both, more = (experiment.controller(arm).phi for arm in experiment.arms)
    assert torch.equal(both, more)
    assert experiment.arms[1].spec.and_validation


def test_without_inheritance_in_the_preset_survival_takes_the_default():
    experiment = built("fixed+survival", "ala", inherit_every=0, children=4)
    assert inheritances(experiment, 10) == {"fixed+survival": [10], "ala": []}


@pytest.mark.parametrize("prior", ["confusion-rule", "metric-gradient"])
def test_a_prior_is_an_option_of_policies(prior):
    methods = (
        f"evolution:prior={prior}",
        f"ala:prior={prior}",
        "evolution",
        f"evolution:prior={prior},expected_moves=true",
    )
    experiment = stepped(built(*methods, children=4), 6)
    counts = experiment.counts.float().log()
    counts = counts - counts.mean()
    follows = {arm.method: float((experiment.controller(arm).phi @ counts).mean()) for arm in experiment.arms}
    assert all(follows[method] > follows["evolution"] for method in methods if method != "evolution")


def test_a_policy_that_learns_has_no_expected_moves():
    with pytest.raises(InputError, match="learns from the actions that it draws"):
        built("fixed", "ala:expected_moves=true")
    assert built("fixed", "ala:expected_moves=true,freeze=true").arms


def test_a_method_may_start_from_a_policy_of_its_own(tmp_path):
    learned = stepped(built("ala", children=4), 10)
    file = learned.policy(learned.arms[0]).save(tmp_path / "policy.safetensors")
    experiment = built("ala", f"ala:policy={file}", f"ala:policy={file},freeze=true")
    fresh, warm, frozen = (experiment.policy(arm) for arm in experiment.arms)
    given = Policy.load(file).state_dict()
    for policy, same in ((fresh, False), (warm, True), (frozen, True)):
        state = policy.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in given.items()) is same
    stepped(experiment, 8)
    same = [all(torch.equal(p.state_dict()[n], t) for n, t in given.items()) for p in (fresh, warm, frozen)]
    assert same == [False, False, True]


@pytest.fixture
def photos(tmp_path):
    """Three classes of twenty images."""
    for name, shade in (("a", 40), ("b", 120), ("c", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (8, 8), (shade, i, 0)).save(tmp_path / "photos" / name / f"{i}.png")
    return f"images:{tmp_path / 'photos'}"


@pytest.mark.parametrize(
    ("changes", "pretrained"),
    [
        ({}, False),
        ({"ratio": 2.0}, True),
        ({"ratio": 2.0, "policy": "none"}, False),
        ({"policy": "pretrained"}, True),
        ({"ratio": 2.0, "sensitivity": False}, False),
        ({"ratio": 2.0, "groups": "weights"}, False),
        ({"ratio": 2.0, "preset": "paper"}, False),
    ],
)
def test_long_tailed_images_start_from_the_policy_that_comes_with_lossalign(photos, changes, pretrained):
    small = {**SMALL, "image_size": 8, "model": "mlp-4", "device": "cpu", "iterations": 10, "every": 10}
    experiment = build(configure(photos, {**small, **changes}))
    mine, given = experiment.policy(experiment.arms[0]).state_dict(), Policy.pretrained().state_dict()
    same = all(mine[name].shape == tensor.shape and torch.equal(mine[name], tensor) for name, tensor in given.items())
    assert same is pretrained


def test_digits_start_from_nothing_as_the_policy_was_learned_on_them():
    first, second = (built("ala", policy=name) for name in ("auto", "none"))
    mine, other = (each.policy(each.arms[0]).state_dict() for each in (first, second))
    assert all(torch.equal(mine[name], tensor) for name, tensor in other.items())


def test_a_pretrained_policy_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="it was learned on states with"):
        built("ala", policy="pretrained", loss="ranking", metric="aucpr")


def test_rivals_that_know_the_costs_need_a_metric_of_costs(tmp_path):
    np.savetxt(tmp_path / "costs.csv", 1 - np.eye(10), delimiter=",")
    for method in ("cost-weighted", "bayes-decision"):
        assert built("fixed", method, metric=f"mean-cost:{tmp_path / 'costs.csv'}").arms
        with pytest.raises(InputError, match="needs costs"):
            built("fixed", method)


class TestOwnController:
    CODE = (
        "from lossalign.rivals import fixed\n"
        "def still(spec, children, generator):\n"
        "    return fixed(spec, children)\n"
        "def lonely(spec, children, generator):\n"
        "    return fixed(spec, 1)\n"
        "def broken(spec, children, generator):\n"
        "    return 1 / 0\n"
        "def half(spec, children, generator):\n"
        "    made = fixed(spec, children)\n"
        "    return type('Half', (), {'phi': made.phi, 'parents': None, 'step': made.move})()\n"
        "def far(spec, children, generator):\n"
        "    made = fixed(spec, children)\n"
        "    made.load_state_dict({**made.state_dict(), 'phi': made.phi + 1e3})\n"
        "    return made\n"
    )

    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "my_controllers.py").write_text(self.CODE)
        monkeypatch.syspath_prepend(tmp_path)
        return "my_controllers"

    def test_it_is_a_rival_like_any_other(self, module):
        experiment = stepped(built("fixed", f"{module}:still"), 2)
        fixed, own = (experiment.phi(arm) for arm in experiment.arms)
        torch.testing.assert_close(own, fixed)
        assert parse_method(f"{module}:still").role == "rival"

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("broken", "calling it with (spec, children, generator) failed: ZeroDivisionError"),
            ("lonely", "its phi has shape (1, "),
            ("half", "a Half has no move, state_dict, load_state_dict; step is now called move"),
            ("far", "phi: parameter '0' is 1000, outside its range"),
            ("nothing", "has no 'nothing'"),
        ],
    )
    def test_its_mistakes_are_named(self, module, name, sentence):
        with pytest.raises(InputError, match=re.escape(sentence)):
            built("fixed", f"{module}:{name}")
