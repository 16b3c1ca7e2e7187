"""Families: the methods of a run that train under one loss, and the populations in which families train together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lossalign.control import Preset
from lossalign.core import InputError
from lossalign.experiments.config import Config
from lossalign.experiments.kinds import KINDS
from lossalign.experiments.methods import MethodSpec
from lossalign.experiments.tasks import options_of


@dataclass(frozen=True, kw_only=True)
class Family:
    """Methods that train under one loss with the same options of measuring.

    Families of one ``population`` have the same network, and are trained and measured together.
    """

    loss: str
    model: str
    population: str
    preset: Preset
    """The options; its groups are those that at least one method needs."""
    methods: tuple[MethodSpec, ...]


_MEASURED = ("weight_average", "evaluation", "evaluations", "gamma")
"""Options of the preset that a whole population shares."""
_ALIASES = {"weight_average": "average"}
"""Names of those options in the names of populations and their files, where they differ."""
_REFIT = "-refit"


def families(config: Config) -> dict[str, Family]:
    """The trained methods of a run by family, in the order they train; refits train last.

    The family with the run's own network and preset has the plain name, that of its loss.
    """
    kind, own = KINDS[config.kind], config.control.options
    texts = [spec.text for spec in config.methods.specs]
    found: dict[str, Family] = {}
    folds = [fold for spec in config.methods.specs if spec.derived is not None for fold in spec.derived.folds]
    for spec in (*config.methods.specs, *dict.fromkeys(folds)):
        missing = [name for name in spec.method.after if name not in texts]
        if missing:
            raise InputError(f"method {spec.text!r} starts from {missing[0]!r}; add it to the methods.")
        preset, trained = options_of(config, spec), spec.trained
        loss = (trained.loss if trained else None) or preset.loss
        kind.check_method(config, spec, loss)
        if trained is None:
            continue
        differs = [
            f"-{_ALIASES.get(name, name)}={getattr(preset, name)}"
            for name in _MEASURED
            if getattr(preset, name) != getattr(own, name)
        ]
        suffix = "".join(differs) + (_REFIT if trained.refits else "")
        name = loss + trained.model + suffix
        before = found.get(name)
        groups = (*(before.preset.groups if before else ()), *(trained.groups or preset.groups))
        found[name] = Family(
            loss=loss,
            model=config.model.name + trained.model,
            population=config.model.name + trained.model + suffix,
            preset=replace(
                preset,
                groups=tuple(dict.fromkeys(groups)),
                sensitivity=preset.sensitivity or (before is not None and before.preset.sensitivity),
            ),
            methods=(*(before.methods if before else ()), spec),
        )
    return dict(sorted(found.items(), key=lambda item: item[0].endswith(_REFIT)))
