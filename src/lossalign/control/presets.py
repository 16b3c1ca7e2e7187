"""Two ways to run the method, as two functions: as printed, and as measurement says it works.

Each difference between them is one field of ``Preset``, so that it can be switched and measured alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lossalign.control.reward import Evaluation
from lossalign.control.state import StateLayout
from lossalign.core import InputError

_RANGES = (
    ("average", 0.1, 1000.0),
    ("gamma", 0.0, 1.0),
    ("zero_bias", -1e6, 1e6),
    ("entropy_bonus", 0.0, 100.0),
    ("clip", 1e-3, 100.0),
    ("learning_rate", 1e-9, 10.0),
    ("reset", 0.1, 1e9),
    ("beta", 1e-3, 100.0),
    ("cooling", 0.0, 10.0),
    ("inherit", 0, 10**9),
    ("heirs", 0.0, 1.0),
    ("ties", 0.0, 1.0),
)
"""Fields that are real numbers, and between which values they make sense."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Every switch of the controller."""

    loss: str
    """Name of the classification loss: ``aligned`` or ``class-correlation``."""
    groups: tuple[str, ...]
    """Groups of loss parameters that the policy moves."""
    average: float | None
    """M is measured on an exponential moving average of the weights with a time constant of this many steps of K
    iterations; None: on the raw weights."""
    evaluation: Evaluation
    """When M is measured within a step (Eq. 4)."""
    evaluations: int
    """How many points a ``window`` has."""
    gamma: float
    """γ of Eq. 4."""
    reward: Literal["sign", "relative", "rank", "level"]
    """``sign``: Eq. 5 with a moving-average baseline; ``relative``: improvement against the other children; ``rank``:
    its rank among them; ``level``: M itself, not its change, against theirs."""
    returns: int
    """T: an action is paid by the sum of the next T rewards."""
    zero_bias: float
    """How much likelier, in logits, the action 0 is at the start."""
    entropy_bonus: float
    """Weight of the policy's entropy in its objective."""
    replay: int
    """Steps kept in the replay memory, of all children."""
    batch: int
    """Child-steps drawn from it for one update of the policy."""
    updates: int
    """Updates of the policy in a step."""
    clip: float | None
    """Clipping of each parameter's importance ratio; None: no ratio, plain Eq. 3."""
    learning_rate: float
    """Adam's, for the policy."""
    history: int
    """Past steps whose statistics the state holds."""
    sensitivity: bool
    """Whether the state holds the metric's sensitivity."""
    reset: float | None
    """A child this many robust deviations behind the others gets Φ_0 back; None: never."""
    beta: float = 1.0
    """β, as a multiple of the step that each group of the loss names."""
    cooling: float = 0.0
    """β shrinks with what is left of the run, to this power; 0: it stays."""
    antithetic: bool = False
    """Whether every second child draws the opposite of its neighbour's luck."""
    inherit: int = 0
    """After so many steps, again and again, the worst children go on with weights and Φ of the best; 0: never."""
    heirs: float = 0.25
    """The share of children that inherit."""
    ties: float = 0.0
    """How much of the finer error counts beside a metric that often stands still, such as the worst class's recall."""
    hidden: tuple[int, ...] = (32, 32)
    """Hidden layers of the policy."""
    parameters: int = 4096
    """Parameters kept per child and step in the replay memory, at most."""

    def __post_init__(self) -> None:
        for name in ("evaluations", "returns", "replay", "batch", "updates", "history", "parameters"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: it must be at least 1.")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name}={value}: it must lie between {low:g} and {high:g}.")
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden={self.hidden}: give at least one hidden layer of at least one unit.")

    def layout(self, statistics: int) -> StateLayout:
        """What the policy sees of a parameter with so many statistics."""
        return StateLayout(statistics=statistics, history=self.history, sensitivity=self.sensitivity)


def paper() -> Preset:
    """The paper as printed: Eq. 6, raw weights, Eq. 4 at every iteration, sign reward, T = 1. It collapses."""
    return Preset(
        loss="class-correlation",
        groups=("diagonal", "pairs"),
        average=None,
        evaluation="literal",
        evaluations=1,
        gamma=0.9,
        reward="sign",
        returns=1,
        zero_bias=0.0,
        entropy_bonus=0.0,
        replay=30,
        batch=256,
        updates=1,
        clip=None,
        learning_rate=1e-3,
        history=10,
        sensitivity=False,
        reset=None,
    )


def default() -> Preset:
    """What measurement recommends."""
    return replace(
        paper(),
        loss="aligned",
        groups=("offsets",),
        average=2.0,
        evaluation="window",
        reward="relative",
        returns=5,
        zero_bias=0.5,
        entropy_bonus=0.05,
        updates=4,
        clip=0.4,
        sensitivity=True,
        reset=5.0,
        inherit=10,
        ties=0.01,
    )


PRESETS = {"paper": paper, "default": default}


def preset_named(name: str) -> Preset:
    """The preset called ``name``."""
    if name not in PRESETS:
        raise InputError(f"preset={name!r}: choose from {tuple(PRESETS)}.")
    return PRESETS[name]()


def switch(preset: Preset, changes: dict[str, Any]) -> Preset:
    """``preset`` with some fields changed.

    Example:
        >>> switch(default(), {"returns": 1}).returns
        1
    """
    known = [field.name for field in fields(Preset)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise InputError(f"switch {unknown[0]!r} is unknown; choose from {', '.join(known)}.")
    return replace(preset, **changes)
