"""Two presets; each difference is one switch."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from lossalign.control import PRESETS, RENAMED_OPTIONS, Preset, default, paper, preset_named
from lossalign.core import InputError

DIFFERENCES = {
    "loss": ("class-correlation", "aligned"),
    "groups": (("diagonal", "pairs"), ("offsets",)),
    "weight_average": (None, 2.0),
    "evaluation": ("literal", "window"),
    "reward": ("sign", "relative"),
    "horizon": (1, 5),
    "zero_bias": (0.0, 0.5),
    "entropy_bonus": (0.0, 0.05),
    "policy_updates": (1, 4),
    "ratio_clip": (None, 0.4),
    "sensitivity": (False, True),
    "reset": (None, 5.0),
    "inherit_every": (0, 10),
    "tie_breaker": (0.0, 0.01),
}
SHARED = {
    "evaluations": 1,
    "gamma": 0.9,
    "replay": 30,
    "replay_batch": 256,
    "policy_learning_rate": 1e-3,
    "state_history": 10,
    "beta_scale": 1.0,
    "cooling": 0.0,
    "antithetic": False,
    "inherit_share": 0.25,
    "prior": "none",
    "prior_strength": 2.0,
    "expected_moves": False,
    "policy_hidden": (32, 32),
    "replay_parameters": 4096,
}


def test_paper_and_default_differ_in_these_options_alone() -> None:
    printed, measured = asdict(paper()), asdict(default())
    assert {name: (printed[name], measured[name]) for name in printed if printed[name] != measured[name]} == DIFFERENCES
    assert {name: printed[name] for name in printed if printed[name] == measured[name]} == SHARED


def test_changing_every_difference_turns_one_preset_into_the_other() -> None:
    assert paper(**{name: after for name, (_, after) in DIFFERENCES.items()}) == default()


@pytest.mark.parametrize("name", [field.name for field in fields(Preset)])
def test_one_option_changes_one_field(name: str) -> None:
    changed = default(**{name: getattr(paper(), name)})
    assert {f for f in asdict(changed) if getattr(changed, f) != getattr(default(), f)} <= {name}


def test_presets_go_by_name() -> None:
    assert {name: preset_named(name) for name in PRESETS} == {"paper": paper(), "default": default()}
    with pytest.raises(InputError, match=r"preset='best': choose from \('paper', 'default'\)"):
        preset_named("best")


@pytest.mark.parametrize(("old", "new"), RENAMED_OPTIONS.items())
def test_an_old_name_of_an_option_is_answered_with_todays(old: str, new: str) -> None:
    assert new in asdict(default())
    with pytest.raises(InputError, match=f"option '{old}' is now called '{new}'"):
        default(**{old: 1})


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match=r"option 'horizont' is unknown; choose from loss, groups, .*horizon"):
        default(horizont=1, horizon=5)


@pytest.mark.parametrize(
    "name", ["evaluations", "horizon", "replay", "replay_batch", "policy_updates", "state_history", "replay_parameters"]
)
def test_counts_start_at_one(name: str) -> None:
    assert getattr(default(**{name: 1}), name) == 1
    with pytest.raises(InputError, match=f"{name}=0: it must be at least 1"):
        default(**{name: 0})
