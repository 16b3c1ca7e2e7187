"""The options of the controller, and two presets: ``paper``, as printed, and ``default``, as recommended.

Each difference between them is one field of ``Preset``, so that it can be changed and measured alone. The text under a
field is the help of its flag.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lossalign.control.reward import Evaluation
from lossalign.control.state import StateLayout
from lossalign.core import InputError
from lossalign.core.values import Checked

_RANGES = (
    ("weight_average", 0.1, 1000.0),
    ("gamma", 0.0, 1.0),
    ("zero_bias", -1e6, 1e6),
    ("entropy_bonus", 0.0, 100.0),
    ("ratio_clip", 1e-3, 100.0),
    ("policy_learning_rate", 1e-9, 10.0),
    ("reset", 0.1, 1e9),
    ("beta_scale", 1e-3, 100.0),
    ("cooling", 0.0, 10.0),
    ("inherit_every", 0, 10**9),
    ("inherit_share", 0.0, 1.0),
    ("tie_breaker", 0.0, 1.0),
    ("prior_strength", 0.0, 100.0),
)
"""Fields that are numbers, each with the smallest and largest value that is accepted."""


RENAMED_OPTIONS = {
    "average": "weight_average",
    "returns": "horizon",
    "inherit": "inherit_every",
    "heirs": "inherit_share",
    "ties": "tie_breaker",
    "beta": "beta_scale",
    "clip": "ratio_clip",
    "batch": "replay_batch",
    "parameters": "replay_parameters",
    "updates": "policy_updates",
    "learning_rate": "policy_learning_rate",
    "history": "state_history",
    "hidden": "policy_hidden",
}
"""Names that options had in version 0.1."""


@dataclass(frozen=True, kw_only=True)
class Preset(Checked):
    """Every option of the controller."""

    loss: str
    """Name of the loss (`lossalign list losses`), or module:attribute for your own."""
    groups: tuple[str, ...]
    """Parameter groups of the loss that are moved; each loss has its own."""
    weight_average: float | None
    """The metric is measured on an exponential moving average of the weights with a time constant of this many steps;
    none: on the raw weights."""
    evaluation: Evaluation
    """When the metric is measured within a step (Eq. 4). literal: after every iteration; minibatch: the same, on a
    random part of the validation split; window: a few times at the end of the step."""
    evaluations: int
    """With evaluation=window: how many times the metric is measured in a step."""
    gamma: float
    """γ of Eq. 4: a measurement j iterations before the end of a step has weight γ^j."""
    reward: Literal["sign", "relative", "rank", "level"]
    """How a child is rewarded after a step. sign: the sign of its improvement (Eq. 5), minus a moving average;
    relative: its improvement compared with that of the other children; rank: the rank of its improvement among them;
    level: its error compared with that of the other children, however it changed."""
    horizon: int
    """T: an action is credited with the sum of the next T rewards."""
    zero_bias: float
    """Initial bias, in logits, of a fresh policy towards the action 0, which leaves a parameter as it is."""
    entropy_bonus: float
    """Weight of the policy's entropy in its objective; a larger weight means more exploration."""
    replay: int
    """Number of past steps kept in the replay memory, from which the policy learns again."""
    replay_batch: int
    """Experiences (one child at one step) drawn from the replay memory for one update of the policy."""
    policy_updates: int
    """Number of updates of the policy after each step."""
    ratio_clip: float | None
    """Importance ratios of replayed actions are clipped to 1 ± this value; none: no ratios, plain Eq. 3."""
    policy_learning_rate: float
    """Learning rate of the policy (Adam)."""
    state_history: int
    """Number of past steps whose statistics the policy observes."""
    sensitivity: bool
    """Let the policy observe, for each class, how much the metric would gain if the errors of that class vanished."""
    reset: float | None
    """A child whose error lies this many robust deviations above the median gets the initial Φ back; none: never."""
    beta_scale: float = 1.0
    """Factor on β, the distance that one action moves a parameter; each group of the loss has its own β."""
    cooling: float = 0.0
    """β is multiplied by the remaining fraction of the run to this power; 0: β is constant."""
    antithetic: bool = False
    """Draw the actions of two neighbouring children from u and 1 − u, so that they explore opposite moves."""
    inherit_every: int = 0
    """Every this many steps, the worst children copy weights and Φ of the best; 0: never."""
    inherit_share: float = 0.25
    """Fraction of the children that copy from the best, every --inherit-every steps."""
    tie_breaker: float = 0.0
    """Weight of the tie-breaker, a second error that is added to that of a metric which often plateaus, such as
    worst-recall; without effect for other metrics."""
    prior: Literal["none", "confusion-rule", "metric-gradient"] = "none"
    """A rule whose move of an offset is added to the logits of the policy's actions, so that an untrained policy acts
    like the rule, and learning finds the residual; none: the policy starts from chance."""
    prior_strength: float = 2.0
    """With --prior: what the rule's full move β adds to the logit of +β and takes from that of −β."""
    expected_moves: bool = False
    """Move each parameter by its expected action, the mean of −β, 0 and +β under the policy, instead of one that is
    drawn; only for policies that do not learn, as learning needs what was drawn."""
    policy_hidden: tuple[int, ...] = (32, 32)
    """Sizes of the policy's hidden layers."""
    replay_parameters: int = 4096
    """Most parameters kept for each child and step in the replay memory; of more, a random part is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "evaluations",
            "horizon",
            "replay",
            "replay_batch",
            "policy_updates",
            "state_history",
            "replay_parameters",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: it must be at least 1.")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name}={value}: it must lie between {low:g} and {high:g}.")
        if not self.policy_hidden or min(self.policy_hidden) < 1:
            raise InputError(
                f"policy_hidden={self.policy_hidden}: give at least one hidden layer of at least one unit."
            )

    def layout(self, statistics: int) -> StateLayout:
        """The features that the policy observes of a parameter with S ``statistics``."""
        return StateLayout(
            statistics=statistics,
            history=self.state_history,
            sensitivity=self.sensitivity,
            prior=self.prior != "none",
        )


def paper(**changes: Any) -> Preset:
    """The paper as printed: Eq. 6, raw weights, Eq. 4 at every iteration, sign reward, T = 1. It collapses.

    Args:
        changes: options that differ from it.
    """
    printed = Preset(
        loss="class-correlation",
        groups=("diagonal", "pairs"),
        weight_average=None,
        evaluation="literal",
        evaluations=1,
        gamma=0.9,
        reward="sign",
        horizon=1,
        zero_bias=0.0,
        entropy_bonus=0.0,
        replay=30,
        replay_batch=256,
        policy_updates=1,
        ratio_clip=None,
        policy_learning_rate=1e-3,
        state_history=10,
        sensitivity=False,
        reset=None,
    )
    return _changed(printed, changes)


def default(**changes: Any) -> Preset:
    """The recommended options, chosen by measurement.

    Args:
        changes: options that differ from it.

    Example:
        >>> default(horizon=1).horizon
        1
    """
    recommended = paper(
        loss="aligned",
        groups=("offsets",),
        weight_average=2.0,
        evaluation="window",
        reward="relative",
        horizon=5,
        zero_bias=0.5,
        entropy_bonus=0.05,
        policy_updates=4,
        ratio_clip=0.4,
        sensitivity=True,
        reset=5.0,
        inherit_every=10,
        tie_breaker=0.01,
    )
    return _changed(recommended, changes)


def _changed(preset: Preset, changes: dict[str, Any]) -> Preset:
    known = [field.name for field in fields(Preset)]
    unknown = [name for name in changes if name not in known]
    if unknown and unknown[0] in RENAMED_OPTIONS:
        raise InputError(f"option {unknown[0]!r} is now called {RENAMED_OPTIONS[unknown[0]]!r}.")
    if unknown:
        raise InputError(f"option {unknown[0]!r} is unknown; choose from {', '.join(known)}.")
    return replace(preset, **changes)


PRESETS = {"paper": paper, "default": default}


def preset_named(name: str, **changes: Any) -> Preset:
    """The preset called ``name``, with some options changed."""
    if name not in PRESETS:
        raise InputError(f"preset={name!r}: choose from {tuple(PRESETS)}.")
    return PRESETS[name](**changes)
