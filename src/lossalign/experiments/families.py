"""Which methods of a run train side by side in one population."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lossalign.control import Preset
from lossalign.core import InputError
from lossalign.experiments.config import RunConfig
from lossalign.experiments.methods import embeds, entry


@dataclass(frozen=True, kw_only=True)
class Family:
    """Methods that train side by side in one population: under one loss, as one network, measured the same way."""

    loss: str
    model: str
    preset: Preset
    """How it is measured."""
    methods: tuple[str, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that at least one of the methods needs."""
        return self.preset.groups


def _check_kind(config: RunConfig, written: str, loss: str) -> None:
    """Refuse a method of classification in metric learning, and the other way round."""
    embedded = config.embedding is not None
    of_classes = entry(written).method.derived in ("offsets", "offsets-of-reward")
    if embeds(loss) != embedded or (embedded and of_classes):
        here, there = ("metric learning", "classification") if embedded else ("classification", "metric learning")
        raise InputError(f"method {written!r} is for {there}, and {config.short_name} is {here}; leave it out.")


_MEASURED = ("average", "evaluation", "evaluations", "gamma")
"""Switches of the preset that a whole population shares."""


def families(config: RunConfig) -> dict[str, Family]:
    """The trained methods of a run by population, in the order they train; what is refitted trains last.

    The run's own loss, network and preset give the plain name.
    """
    own, found = config.controls(), dict[str, Family]()
    for written in config.methods:
        one = entry(written)
        missing = [name for name in one.method.after if name not in config.methods]
        if missing:
            raise InputError(f"method {written!r} starts from {missing[0]!r}; add it to the methods.")
        preset = config.controls(one.switches)
        loss = one.method.loss or preset.loss
        _check_kind(config, written, loss)
        if one.method.controller is None:
            continue
        groups = one.method.groups or preset.groups
        differs = [
            f"-{name}={getattr(preset, name)}" for name in _MEASURED if getattr(preset, name) != getattr(own, name)
        ]
        name = loss + one.method.model + "".join(differs) + ("-refit" if one.method.refits else "")
        before = found.get(name)
        found[name] = Family(
            loss=loss,
            model=config.model + one.method.model,
            preset=replace(
                preset,
                groups=tuple(dict.fromkeys((*(before.groups if before else ()), *groups))),
                sensitivity=preset.sensitivity or (before is not None and before.preset.sensitivity),
            ),
            methods=(*(before.methods if before else ()), written),
        )
    return dict(sorted(found.items(), key=lambda item: item[0].endswith("-refit")))
