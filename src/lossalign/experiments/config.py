"""One flat description of a run: what is trained, how, by which methods. It is written into the run folder."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch

from lossalign.children import Compile, Engine, Recipe
from lossalign.control import Preset, preset_named, switch
from lossalign.core import InputError

DEFAULT_GROUPS = {
    "aligned": ("offsets",),
    "class-correlation": ("diagonal", "pairs"),
    "log-class-correlation": ("diagonal", "pairs"),
    "ranking": ("ranking", "margins", "focus"),
    "distance-mixture": ("positive", "negative"),
    "scale-matched": ("positive", "negative"),
    "focal-weighting": ("focus",),
}
"""Which groups of a loss are moved unless the preset or a switch says otherwise."""

EMBEDDING_LOSSES = ("distance-mixture", "scale-matched", "focal-weighting")
"""Adaptive losses of metric learning: a network puts out embeddings, and classes are held out."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run. Recipes (``experiments.recipes``) return one; flags of the command line replace fields."""

    task: str
    """digits, digits-lt, cifar10, cifar10-lt, cifar100, cifar100-lt, table:FILE or images:FOLDER; of metric learning
    digits-retrieval, omniglot, lfw, sop."""
    source: str
    """Where the examples come from: digits, turned-digits, cifar10, cifar100, table, images, omniglot, lfw or sop."""
    data: str | None = None
    """The data folder (``data`` if not given); the table or image folder itself comes with the task."""
    ratio: float = 1.0
    """Largest over smallest training class; 1 leaves classes as they are."""
    largest: int | None = None
    """Training images of the largest class; as many as there are if not given."""
    reward_per_class: int | None = None
    """Reward-validation examples of each class; they move Φ."""
    reward_of_train: float | None = None
    """Instead: this share of each training class, as long-tailed as they are, at least 5; training keeps the rest."""
    selection_per_class: int | None = None
    """Selection-validation examples of each class; they pick the best weights."""
    test_per_class: int | None = None
    """Test examples of each class, if the source has no test set of its own."""
    validation_fraction: float | None = None
    """Instead of the three numbers: this fraction of each class for each part."""
    embedding: int | None = None
    """Metric learning: how many numbers an embedding has; then whole classes are held out. None: classification."""
    reward_classes: int | None = None
    """Metric learning: classes of the reward-validation part …"""
    selection_classes: int | None = None
    """… of the selection-validation part …"""
    test_classes: int | None = None
    """… and of the test part, if the source has no test set of its own."""
    examples_per_class: int | None = None
    """Metric learning: examples that a class held out gives to its part; all if not given."""
    image_size: int = 32
    """Side of the images of an image folder."""
    in_memory_gb: float = 4.0
    """Image sets larger than this stream from disk."""
    image_cache: str | None = None
    """Where they are kept decoded; a hidden folder inside the image folder if not given."""
    model: str
    """resnet32, wrn-16-2, densenet-100-12, small-cnn, mlp-16, … or module:factory."""
    metric: str
    """What the children are judged by: balanced-error, macro-f1, … or module:attribute."""
    batch_size: int = 128
    """Examples in a batch."""
    per_class: int | None = None
    """Examples of each class in a batch; as they come if not given."""
    crop: int = 0
    """Pixels of zero padding before a random crop."""
    flip: bool = False
    """Mirror images at random."""
    noise: float = 0.0
    """Deviation of Gaussian noise on normalised training inputs."""
    iterations: int
    """Optimiser iterations of each child."""
    every: int
    """K, iterations of a step."""
    learning_rate: float = 0.1
    """Of SGD, at the start."""
    weight_decay: float = 5e-4
    """Of SGD."""
    nesterov: bool = False
    """Nesterov's momentum."""
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    """Of the learning rate."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward passes; auto is bfloat16 on a GPU, float32 on a CPU."""
    preset: str = "default"
    """default or paper."""
    switches: tuple[str, ...] = ()
    """Fields of the preset to change, as name=value, beside those that the task or the recipe file changes."""
    loss: str | None = None
    """aligned, ranking, class-correlation or log-class-correlation; of metric learning distance-mixture,
    scale-matched or focal-weighting; the preset's if not given."""
    framework: Literal["triplet", "margin"] = "triplet"
    """Metric learning: semi-hard triplets, or negatives weighed by distance."""
    start: Literal["default", "paper"] | None = None
    """Metric learning: where Φ starts, at the best that is known (default) or at the paper's Φ_0; as the preset of that
    name if None."""
    methods: tuple[str, ...] = ("ala",)
    """Who moves Φ: NAME, NAME+val (trains on the reward split too) or NAME:switch=value,… (a preset of its own)."""
    seeds: int = 1
    """Independent policies of each method."""
    children: int = 10
    """Children that share a policy."""
    seed: int = 0
    """Of the first policy, its split and its children."""
    policy: str = "auto"
    """What the policy starts from: a file; pretrained, the one that comes with lossalign; none; or auto: pretrained on
    images cut to a long tail (--ratio), where it was measured, if it fits the loss."""
    freeze: bool = False
    """Use that policy as it is, without learning."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    engine: Engine = "auto"
    """auto, sequential, vmap or fused: how children are computed; auto is the fastest that can."""
    compile: Compile = "auto"
    """auto, on or off: whether the training step is compiled; auto on a GPU, in runs of 500 iterations or more."""

    def __post_init__(self) -> None:
        if self.children < 1:
            raise InputError(f"children={self.children}: train at least 1.")
        if self.seeds < 1:
            raise InputError(f"seeds={self.seeds}: train at least 1 policy.")
        if self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size}: it must be at least 1.")
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise InputError(f"methods={self.methods}: name each method once.")
        if (self.embedding is not None) != (self.loss in EMBEDDING_LOSSES):
            raise InputError(
                f"loss={self.loss}, embedding={self.embedding}: metric learning needs both, one of "
                f"{', '.join(EMBEDDING_LOSSES)} and the size of an embedding; classification neither."
            )
        if self.iterations < 1:
            raise InputError(f"iterations={self.iterations}: train for at least 1.")
        if not 1 <= self.every <= self.iterations:
            raise InputError(
                f"every={self.every}: a step of K iterations must fit into the run; choose K between 1 and "
                f"iterations={self.iterations}."
            )
        if self.in_memory_gb < 0:
            raise InputError(f"in_memory_gb={self.in_memory_gb}: it cannot be negative; 0 streams every image folder.")
        if self.freeze and self.policy in ("auto", "none"):
            raise InputError(
                f"freeze: policy={self.policy} names no policy to freeze; give policy=FILE or policy=pretrained."
            )

    @property
    def short_name(self) -> str:
        """The task without the folder of its data, for titles: ``table:churn.csv``."""
        kind, _, path = self.task.partition(":")
        return f"{kind}:{Path(path).name}" if path else kind

    @property
    def long_tailed_images(self) -> bool:
        """Whether training classes are cut to a long tail, of images other than the embedded digits."""
        return self.ratio > 1 and self.source in ("cifar10", "cifar100", "images")

    @property
    def steps(self) -> int:
        """Whole steps of K iterations; a remainder is not trained."""
        return self.iterations // self.every

    def controls(self, more: tuple[str, ...] = ()) -> Preset:
        """The preset with its switches, and ``more`` of them, set; another loss than the preset's brings its groups."""
        preset, switches = preset_named(self.preset), parse_switches((*self.switches, *more))
        loss = switches.get("loss") or self.loss or preset.loss
        groups = preset.groups if loss == preset.loss else DEFAULT_GROUPS.get(loss, preset.groups)
        return switch(preset, {"loss": loss, "groups": groups, **switches})

    def recipe(self, device: torch.device | str = "cpu", preset: Preset | None = None) -> Recipe:
        """How children are trained on ``device``; a preset (the run's if None) says how long weights are averaged."""
        half = torch.device(device).type == "cuda" if self.precision == "auto" else self.precision == "bfloat16"
        constant = (preset or self.controls()).average or 2.0
        return Recipe(
            iterations=self.steps * self.every,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            schedule=self.schedule,
            average=1 - 1 / max(1.0, constant * self.every),
            precision="bfloat16" if half else "float32",
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> RunConfig:
        """Back from plain data."""
        known = {field.name for field in fields(cls)}
        lists: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        return cls(**{name: value for name, value in lists.items() if name in known})

    def changed(self, changes: dict[str, Any]) -> RunConfig:
        """With some fields replaced; switches are added to those there are, and a fraction for validation also replaces
        the numbers per class."""
        known = {field.name for field in fields(self)}
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise InputError(f"{unknown[0]!r} is not a field of a run; choose from {', '.join(sorted(known))}.")
        if changes.get("reward_of_train") is not None:
            changes = {"reward_per_class": None, **changes}
        if changes.get("validation_fraction") is not None:
            changes = {"reward_per_class": None, "selection_per_class": None, "test_per_class": None, **changes}
        return replace(self, **add_switches(self.switches, self.preset, changes))


def add_switches(own: tuple[str, ...], preset: str, changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` with its switches added to ``own``, which were chosen for ``preset`` and do not outlive it; of two
    with the same name the later stays.

    Example:
        >>> add_switches(("average=4", "clip=none"), "default", {"switches": ("returns=1", "average=2")})
        {'switches': ('average=2', 'clip=none', 'returns=1')}
        >>> add_switches(("average=4", "clip=none"), "default", {"preset": "paper"})
        {'preset': 'paper', 'switches': ()}
    """
    kept = own if changes.get("preset", preset) == preset else ()
    by_name = {item.partition("=")[0]: item for item in (*kept, *changes.get("switches", ()))}
    return {**changes, "switches": tuple(by_name.values())}


def parse_switches(switches: tuple[str, ...]) -> dict[str, Any]:
    """``("returns=1", "clip=none")`` as typed fields of ``Preset``.

    Example:
        >>> parse_switches(("returns=1", "clip=none", "groups=weights,offsets"))
        {'returns': 1, 'clip': None, 'groups': ('weights', 'offsets')}
    """
    hints = typing.get_type_hints(Preset)
    parsed: dict[str, Any] = {}
    for item in switches:
        name, equals, text = item.partition("=")
        if not equals or name not in hints:
            raise InputError(f"switch {item!r}: write name=value, with a name out of {', '.join(hints)}.")
        parsed[name] = _parse(name, text, hints[name])
    return parsed


def _parse(name: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    if text.lower() == "none" and types.NoneType in kinds:
        return None
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    try:
        if get_origin(kind) is tuple:
            return tuple(get_args(kind)[0](part) for part in text.split(","))
        if get_origin(kind) is Literal:
            return {str(choice): choice for choice in get_args(kind)}[text]
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        raise InputError(f"switch {name}={text}: {text!r} is not a value of {name} ({hint}).") from error
