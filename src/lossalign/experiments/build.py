"""Build a run from its config: populations, data and controllers, ready to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from lossalign.children import Children, Member, Stream, make_children
from lossalign.children.distributed import DistributedChildren
from lossalign.core import OBJECT, Controller, InputError, Ranks, generator, import_plug
from lossalign.data import (
    BatchStream,
    Examples,
    MappedImages,
    Pairs,
    Splits,
    StreamedBatches,
    Transform,
    fit_transform,
    normalise,
)
from lossalign.data.registry import Loaded, SourceSettings, load_source
from lossalign.experiments.config import Config
from lossalign.experiments.families import Family, families
from lossalign.experiments.kinds import KINDS, Kind
from lossalign.experiments.methods import MethodSpec, Setting
from lossalign.experiments.tasks import options_of
from lossalign.losses import AdaptiveLoss
from lossalign.losses.registry import LossSettings, find_loss, make_loss
from lossalign.metrics import Metric, metric_named
from lossalign.models import build_model
from lossalign.rivals import Schedule
from lossalign.training import LabelledSet, Population

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One method with one seed, and its children: consecutive rows of a population."""

    spec: MethodSpec
    seed: int
    population: str
    start: int
    children: int

    @property
    def method(self) -> str:
        """The text of the method."""
        return self.spec.text

    @property
    def rows(self) -> slice:
        """Rows of its children in the population."""
        return slice(self.start, self.start + self.children)


@dataclass(frozen=True, kw_only=True)
class SeedData:
    """One seed's split; validation and selection sets normalised and on the device."""

    splits: Splits
    transform: Transform
    validation: LabelledSet
    selection: LabelledSet

    @property
    def train(self) -> Examples:
        """The train split."""
        return self.splits.train

    @property
    def test(self) -> Examples:
        """The test split."""
        return self.splits.test

    def trained_on(self, *, and_validation: bool) -> Examples:
        """The examples that the children of a method train on."""
        return self.splits.train_and_validation if and_validation else self.splits.train


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A run, ready to train."""

    config: Config
    kind: Kind
    metric: Metric
    device: torch.device
    counts: Tensor
    """Training examples of each class with the first seed [C]."""
    data: dict[int, SeedData]
    losses: dict[str, AdaptiveLoss]
    populations: dict[str, Population]
    families: dict[str, Family]
    arms: list[Arm]
    pairs: Pairs | None
    """Pairs of the test set to verify."""

    @property
    def device_name(self) -> str:
        """The name of the device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return next(iter(self.data.values())).train.class_names

    def arms_of(self, population: str) -> list[Arm]:
        """The arms of a population, in the order of their rows."""
        return [arm for arm in self.arms if arm.population == population]

    def arm(self, method: str, seed: int) -> Arm:
        """The arm of a method and a seed."""
        return next(arm for arm in self.arms if (arm.method, arm.seed) == (method, seed))

    def controller(self, arm: Arm) -> Controller:
        """The controller that moves the Φ of an arm."""
        return self.populations[arm.population].controllers[self.arms_of(arm.population).index(arm)]

    def untrained(self, arm: Arm, child: int) -> nn.Module:
        """The network of a child as it was before training."""
        builder = Builder(self.config, self.kind, self.metric, self.data, self.device)
        return builder.network(self.families[arm.population].model, self.data[arm.seed].train, arm.seed, child)


def pick_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={name!r}: choose from auto, cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device='cuda': torch sees no GPU here; use --device cpu.")
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu"))


def labelled(part: Examples, transform: Transform, device: torch.device) -> LabelledSet:
    """A normalised split, for evaluation."""
    whole = part.load()
    return LabelledSet(normalise(whole.inputs.to(device), transform), whole.targets.to(device))


def build(config: Config, say: Say = lambda sentence: None) -> Experiment:
    """Build everything that a run needs for training; ``say`` is called with a progress message before slow work."""
    kind, device = KINDS[config.kind], pick_device(config.compute.device)
    planned = families(config)
    loaded = _load(config)
    metric = metric_named(config.metric, kind.outputs(config, loaded.examples.num_classes))
    for spec in config.methods.specs:
        if spec.derived is not None:
            spec.derived.derivation.check(spec.text, metric)
    data = {
        seed: _seed_data(config, kind.split(config, loaded.examples, loaded.test, seed), device)
        for seed in config.methods.all_seeds
    }
    builder = Builder(config, kind, metric, data, device, say)
    losses: dict[str, AdaptiveLoss] = {}
    populations: dict[str, Population] = {}
    arms: list[Arm] = []
    for name, family in planned.items():
        losses[name] = builder.loss(family).to(device)
        own = builder.arms(name, family)
        learned = partial(_learned, arms, populations, losses)
        populations[name] = builder.population(family, losses[name], own, learned)
        arms += own
    return Experiment(
        config=config,
        kind=kind,
        metric=metric,
        device=device,
        counts=builder.counts,
        data=data,
        losses=losses,
        populations=populations,
        families=planned,
        arms=arms,
        pairs=loaded.pairs,
    )


def _load(config: Config) -> Loaded:
    data = config.data
    if data.source == OBJECT:
        return Loaded(examples=import_plug("data", config.task))
    settings = SourceSettings(
        folder=data.folder, image_size=data.image_size, in_memory_gb=data.in_memory_gb, image_cache=data.image_cache
    )
    return load_source(data.source, settings)


def _seed_data(config: Config, splits: Splits, device: torch.device) -> SeedData:
    chosen = config.optimisation
    transform = fit_transform(splits.train, crop=chosen.crop, flip=chosen.flip, noise=chosen.noise)
    return SeedData(
        splits=splits,
        transform=transform,
        validation=labelled(splits.validation, transform, device),
        selection=labelled(splits.selection, transform, device),
    )


def _learned(
    arms: list[Arm], populations: dict[str, Population], losses: dict[str, AdaptiveLoss], seed: int, method: str
) -> Schedule:
    """Φ at every step of a method, as the mean over its children, by group [steps, size]."""
    arm = next(arm for arm in arms if (arm.method, arm.seed) == (method, seed))
    phi, kept = populations[arm.population].history
    stride = int(kept[1] - kept[0]) if len(kept) > 1 else 1
    mean = phi[:, arm.rows].mean(1).repeat_interleave(stride, 0)
    return {name: mean[:, where] for name, where in losses[arm.population].spec.slices.items()}


@dataclass(frozen=True)
class Row:
    """One child of a population. Rows that are equal are paired: the same initial weights and batches.

    Args:
        seed: its seed.
        child: its index among the children of its arm.
        and_validation: whether it trains on the validation split too.
    """

    seed: int
    child: int
    and_validation: bool


@dataclass(frozen=True)
class Builder:
    """Makes the parts of a run."""

    config: Config
    kind: Kind
    metric: Metric
    data: dict[int, SeedData]
    device: torch.device
    say: Say = lambda sentence: None

    @property
    def counts(self) -> Tensor:
        """Training examples of each class with the first seed [C]."""
        return self.data[self.config.methods.seed].train.counts

    def loss(self, family: Family) -> AdaptiveLoss:
        """The loss of a family."""
        control = self.config.control
        settings = LossSettings(
            counts=self.counts, groups=family.preset.groups, framework=control.framework, start=control.start
        )
        loss = make_loss(family.loss, settings)
        highest = int(loss.spec.classes.max())
        if highest >= len(self.counts):
            raise InputError(
                f"loss {family.loss!r}: it has parameters for class {highest}, but the data have {len(self.counts)} "
                f"classes; make it with num_classes={len(self.counts)}."
            )
        return loss

    def arms(self, name: str, family: Family) -> list[Arm]:
        """The arms of a family, seed by seed."""
        arms: list[Arm] = []
        for seed, spec in product(self.data, family.methods):
            children = spec.children or self.config.methods.children
            start = arms[-1].rows.stop if arms else 0
            arms.append(Arm(spec=spec, seed=seed, population=name, start=start, children=children))
        return arms

    def population(
        self, family: Family, loss: AdaptiveLoss, arms: list[Arm], learned: Callable[[int, str], Schedule]
    ) -> Population:
        """The children of a family and their controllers."""
        rows, controllers = list[Row](), []
        for arm in arms:
            rows += [Row(arm.seed, child, arm.spec.and_validation) for child in range(arm.children)]
            assert arm.spec.trained is not None
            controllers.append(arm.spec.trained.controller(self._setting(arm, loss, learned)))
        config = self.config
        return Population(
            self._children(family, loss, rows),
            controllers,
            loss=loss,
            metric=self.metric,
            validation=[self.data[row.seed].validation for row in rows],
            selection=[self.data[row.seed].selection for row in rows],
            preset=family.preset,
            every=config.control.every,
            steps=config.steps,
            generator=generator(config.methods.seed, "minibatch", find_loss(family.loss).stream or family.loss),
            tolerant=len(config.methods.specs) > 1,
        )

    def _setting(self, arm: Arm, loss: AdaptiveLoss, learned: Callable[[int, str], Schedule]) -> Setting:
        config, spec, data = self.config, arm.spec, self.data[arm.seed]
        return Setting(
            task=config.short_name,
            method=spec.text,
            preset=options_of(config, spec),
            loss=loss,
            metric=self.metric,
            counts=data.trained_on(and_validation=spec.and_validation).counts,
            counts_before=data.train.counts,
            seed=arm.seed,
            device=self.device,
            steps=config.steps,
            children=arm.children,
            policy=spec.policy or config.control.policy,
            pretrained=config.long_tailed_images,
            freeze=config.control.freeze if spec.freeze is None else spec.freeze,
            learned=partial(learned, arm.seed),
        )

    def _children(self, family: Family, loss: AdaptiveLoss, rows: list[Row]) -> Children:
        """One child for each of ``rows``, spread over the ranks if there are several."""
        compute = self.config.compute

        streams = {row: self._stream(row) for row in rows}

        def make(mine: slice) -> Children:
            return make_children(
                [self._member(family.model, row, streams[row]) for row in rows[mine]],
                loss,
                self.config.optimisation_on(self.device, family.preset),
                engine=compute.engine,
                compile=compute.compile,
                device=self.device,
                say=self.say,
            )

        ranks = Ranks.current()
        return make(slice(None)) if ranks.count == 1 else DistributedChildren(make, len(rows), ranks)

    def network(self, model: str, examples: Examples, seed: int, child: int) -> nn.Module:
        """The network of a child before training."""
        return build_model(
            model,
            input_shape=examples.input_shape,
            num_classes=self.kind.outputs(self.config, examples.num_classes),
            generator=generator(seed, "child", child, "weights"),
        )

    def _member(self, model: str, row: Row, stream: Callable[[], Stream]) -> Member:
        examples = self.data[row.seed].trained_on(and_validation=row.and_validation)
        purpose = ("layers", "and reward") if row.and_validation else ("layers",)
        layers = generator(row.seed, "child", row.child, *purpose).initial_seed()
        return Member(self.network(model, examples, row.seed, row.child), layers, stream)

    def _stream(self, row: Row) -> Callable[[], Stream]:
        """A function that makes the batch stream of a row."""
        data, chosen = self.data[row.seed], self.config.optimisation
        examples = data.trained_on(and_validation=row.and_validation)

        def stream() -> Stream:
            batches = generator(row.seed, "child", row.child, "batches")
            size, per_class = chosen.batch_size, chosen.per_class
            if isinstance(examples, MappedImages):
                return StreamedBatches(examples, size, data.transform, batches, self.device, per_class=per_class)
            return BatchStream(examples.load(), size, data.transform, batches, self.device, per_class=per_class)

        return stream
