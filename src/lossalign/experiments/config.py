"""The config of a run: plain data in sections, written into the run folder as ``config.json``.

Every field has a key: its flag, its name in a recipe file, and its keyword of ``lossalign.fit``. The key is the field's
name unless ``metadata`` gives another. The text under a field is the help of its flag.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from lossalign.children import Compile, Engine, Optimisation
from lossalign.control import Preset, preset_named
from lossalign.core import InputError
from lossalign.core.values import Checked
from lossalign.experiments.methods import DEFAULT_METHODS, MethodSpec


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """The data set."""

    source: str
    """Name of the data source, set by the task."""
    folder: str | None = field(default=None, metadata={"key": "data"})
    """Folder that holds the data sets; none: ./data. Tasks such as table:FILE name their own file."""
    image_size: int = 32
    """Side, in pixels, that images of an image folder are resized to."""
    in_memory_gb: float = 4.0
    """Image folders larger than this many GB, decoded, are streamed from disk."""
    image_cache: str | None = None
    """Folder for the decoded images of streamed image folders; none: a hidden folder inside the image folder."""


@dataclass(frozen=True, kw_only=True)
class SplitConfig(Checked):
    """The four splits of the examples: train; validation (gives metric, statistics and reward, so it moves the loss
    parameters Φ); selection (picks the best weights); test (scored once, at the end). For retrieval and
    verification, all splits hold different classes."""

    ratio: float = 1.0
    """Long tail: cut the training classes so that the largest is this many times the smallest; 1: not cut."""
    largest: int | None = None
    """Number of training examples of the largest class; none: as many as there are."""
    validation_per_class: int | None = None
    """Number of validation examples of each class."""
    validation_of_train: float | None = None
    """Take this fraction of each training class for validation, at least 5 examples, instead of
    --validation-per-class; the validation split is then as long-tailed as the train split."""
    selection_per_class: int | None = None
    """Number of selection examples of each class."""
    test_per_class: int | None = None
    """Number of test examples of each class, if the data set has no test set of its own."""
    held_out_fraction: float | None = None
    """Take this fraction of each class for each of the validation, selection and test splits, instead of numbers per
    class."""
    validation_classes: int | None = None
    """Metric learning: number of classes in the validation split."""
    selection_classes: int | None = None
    """Metric learning: number of classes in the selection split."""
    test_classes: int | None = None
    """Metric learning: number of classes in the test split, if the data set has no test set of its own."""
    examples_per_class: int | None = None
    """Metric learning: number of examples of each class in the validation, selection and test splits; none: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.ratio < float("inf"):
            raise InputError(f"ratio={self.ratio}: give largest over smallest class, 1 (not cut) or more.")
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise InputError(f"{name}={value}: it must be at least 1.")
        for name in ("validation_of_train", "held_out_fraction"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise InputError(f"{name}={share}: give a fraction between 0 and 1, e.g. 0.2.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """The network."""

    name: str = field(metadata={"key": "model"})
    """Name of the network, e.g. resnet32 or mlp-16 (`lossalign list models`), or module:factory for your own."""
    embedding: int | None = None
    """Metric learning: number of dimensions of an embedding; none: classification."""


@dataclass(frozen=True, kw_only=True)
class OptimisationConfig(Checked):
    """How every child is trained: SGD with momentum, the same for all methods."""

    iterations: int
    """Number of optimiser iterations of each child."""
    batch_size: int = 128
    """Number of examples in a batch."""
    per_class: int | None = None
    """Number of examples of each class in a batch; none: batches are drawn whatever the classes."""
    crop: int = 0
    """Pad training images by this many pixels and crop them at random to their size; 0: no crop."""
    flip: bool = False
    """Mirror training images left to right at random."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise on normalised training inputs."""
    learning_rate: float = 0.1
    """Initial learning rate of SGD."""
    weight_decay: float = 5e-4
    """Weight decay of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    """Learning-rate schedule."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of forward passes; auto: bfloat16 on a GPU, float32 on a CPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise InputError(f"iterations={self.iterations}: train for at least 1.")
        if self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size}: it must be at least 1.")
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(f"learning_rate={self.learning_rate}: it must be positive.")
        for name in ("weight_decay", "crop", "noise"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name}={getattr(self, name)}: it cannot be negative; 0 turns it off.")


@dataclass(frozen=True, kw_only=True)
class ControlConfig(Checked):
    """How the loss parameters Φ are moved: every K iterations (one step) a small network, the policy, moves each
    parameter by −β, 0 or +β; its reward is the change of the metric on the validation split. A preset sets all options
    from loss on; each can be changed alone."""

    preset: str = "default"
    """Preset of the options: default (recommended) or paper (as printed in the paper)."""
    every: int
    """K: number of iterations in a step; Φ moves after each step."""
    policy: str = "auto"
    """Initial policy: a file; pretrained: the one that comes with lossalign; none: a fresh one; auto: pretrained for
    long-tailed images, if it fits the loss, otherwise a fresh one."""
    freeze: bool = False
    """Use the initial policy without learning."""
    framework: Literal["triplet", "margin"] = "triplet"
    """Metric learning: choice of negatives. triplet: semi-hard ones; margin: all, weighted by distance."""
    start: Literal["default", "paper"] = "default"
    """Metric learning: initial Φ. default: the best known values; paper: the paper's Φ_0."""
    options: Preset
    """The options of the preset, after all changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        preset_named(self.preset)
        if self.freeze and self.policy in ("auto", "none"):
            raise InputError(
                f"freeze: policy={self.policy} is not a policy to freeze; give policy=FILE or policy=pretrained."
            )


@dataclass(frozen=True, kw_only=True)
class MethodsConfig(Checked):
    """The methods, and their children and seeds. A child is one network; all children of a method and seed share a
    policy. A seed is one independent replicate with its own split, initial weights and policy."""

    specs: tuple[MethodSpec, ...] = field(default=DEFAULT_METHODS, metadata={"key": "methods"})
    """Methods to run (`lossalign list methods`), each as NAME, NAME+val (trains on the validation split too),
    NAME+survival (with ala's inheritance), NAME+decision (followed by a decision for the metric), ensemble-NAME
    (its children predict together) or NAME:option=value,… (a method with options of its own)."""
    seeds: int = 1
    """Number of seeds."""
    children: int = 10
    """Number of children: networks that share one policy."""
    seed: int = 0
    """The first seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.children < 1:
            raise InputError(f"children={self.children}: train at least 1.")
        if self.seeds < 1:
            raise InputError(f"seeds={self.seeds}: train at least 1 seed.")
        texts = tuple(spec.text for spec in self.specs)
        if not texts or len(set(texts)) != len(texts):
            raise InputError(f"methods={texts}: name each method once.")

    @property
    def all_seeds(self) -> range:
        """The seeds of the run."""
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Checked):
    """Where and how the run is computed; a resumed run may change this."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device: cpu, cuda, or auto: a GPU if there is one."""
    engine: Engine = "auto"
    """How the children are computed. sequential: one after another; vmap, fused: all at once; auto: the fastest that
    can compute the model."""
    compile: Compile = "auto"
    """Whether training iterations are compiled; auto: on a GPU, in runs of 500 iterations or more; whole: as one graph
    instead of by the network's repeated blocks, which takes longer to compile."""
    rank_timeout: float = 1800.0
    """Seconds that a rank of a distributed run waits for another before it stops with an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.rank_timeout <= 10**7:
            raise InputError(f"rank_timeout={self.rank_timeout}: give a number of seconds from 1 to 10,000,000.")


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """A whole run. ``experiments.tasks.configure`` makes one from a task and changes."""

    task: str
    """Name of the task, or table:FILE, images:FOLDER."""
    kind: str
    """classification, retrieval or verification."""
    metric: str
    """Name of the metric (`lossalign list metrics`), or module:attribute for your own."""
    data: DataConfig
    split: SplitConfig
    model: ModelConfig
    optimisation: OptimisationConfig
    control: ControlConfig
    methods: MethodsConfig
    compute: ComputeConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        every, iterations = self.control.every, self.optimisation.iterations
        if not 1 <= every <= iterations:
            raise InputError(
                f"every={every}: a step of K iterations must fit into the run; choose K between 1 and "
                f"iterations={iterations}."
            )
        if self.data.in_memory_gb < 0:
            raise InputError(
                f"in_memory_gb={self.data.in_memory_gb}: it cannot be negative; 0 streams every image folder."
            )

    @property
    def short_name(self) -> str:
        """The task without the folder of its data, for titles: ``table:churn.csv``."""
        prefix, _, path = self.task.partition(":")
        return f"{prefix}:{Path(path).name}" if path else prefix

    @property
    def long_tailed_images(self) -> bool:
        """Whether training classes are cut to a long tail, and examples are images other than the package's digits."""
        return self.split.ratio > 1 and self.data.source in ("cifar10", "cifar100", "images")

    @property
    def steps(self) -> int:
        """Number of whole steps of K iterations; a remainder is not trained."""
        return self.optimisation.iterations // self.control.every

    def optimisation_on(self, device: torch.device | str, preset: Preset) -> Optimisation:
        """How children are trained on ``device``; ``preset`` gives the time constant of the weight average."""
        chosen = self.optimisation
        half = torch.device(device).type == "cuda" if chosen.precision == "auto" else chosen.precision == "bfloat16"
        return Optimisation(
            iterations=self.steps * self.control.every,
            learning_rate=chosen.learning_rate,
            weight_decay=chosen.weight_decay,
            nesterov=chosen.nesterov,
            schedule=chosen.schedule,
            average_decay=1 - 1 / max(1.0, (preset.weight_average or 2.0) * self.control.every),
            precision="bfloat16" if half else "float32",
        )
