"""Build a run from its config: populations, data and controllers, ready to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

import torch
from torch import Tensor, nn

from lossalign.children import Children, LossFunction, Member, Stream, make_children
from lossalign.children.distributed import DistributedChildren
from lossalign.control import LearningController, Policy
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
from lossalign.experiments.methods import FOLDS, MethodSpec, Setting
from lossalign.experiments.tasks import options_of
from lossalign.losses import AdaptiveLoss, Narrowed
from lossalign.losses.registry import LossSettings, find_loss, make_loss
from lossalign.metrics import Metric, metric_named
from lossalign.models import build_model
from lossalign.rivals import Schedule
from lossalign.training import LabelledSet, Owner, Part, Population

Say = Callable[[str], None]
RESTORES = 3
"""How often a child that diverges is restored; none of a comparison is, as that would be part of a method."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One method with one seed, and its children: consecutive rows of a population.

    Args:
        spec: the method.
        seed: the seed.
        population: where its children train.
        family: the part of the population whose loss they train under.
        start: row of its first child.
        before: rows of the population before those of the family.
        children: how many.
    """

    spec: MethodSpec
    seed: int
    population: str
    family: str
    start: int
    before: int
    children: int

    @property
    def method(self) -> str:
        """The text of the method."""
        return self.spec.text

    @property
    def rows(self) -> slice:
        """Rows of its children in the population."""
        return slice(self.start, self.start + self.children)

    @property
    def family_rows(self) -> slice:
        """Rows of its children in the family."""
        return slice(self.start - self.before, self.start - self.before + self.children)


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

    @cached_property
    def folds(self) -> Tensor:
        """The fold of every sample of the validation split [V]; each class is spread evenly over the folds."""
        targets = self.validation.targets
        places = torch.arange(len(targets), device=targets.device) % FOLDS
        return torch.empty_like(targets).scatter(0, targets.argsort(stable=True), places)

    def trained_on(self, *, and_validation: bool, without: int | None = None) -> Examples:
        """The examples that the children of a method train on: without one fold of the validation split if asked."""
        if not and_validation:
            return self.splits.train
        both = self.splits.train_and_validation
        if without is None:
            return both
        kept = (self.folds != without).nonzero().squeeze(1).cpu() + len(self.train)
        return both.subset(torch.cat([torch.arange(len(self.train)), kept]))


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

    def data_digests(self) -> dict[str, dict[str, dict[str, str]]]:
        """Digests of inputs and labels, by seed and split."""
        parts = ("train", "validation", "selection", "test")
        return {
            str(seed): {part: getattr(data.splits, part).digests for part in parts} for seed, data in self.data.items()
        }

    def arms_of(self, population: str) -> list[Arm]:
        """The arms of a population, in the order of their rows."""
        return [arm for arm in self.arms if arm.population == population]

    def arm(self, method: str, seed: int) -> Arm:
        """The arm of a method and a seed."""
        return next(arm for arm in self.arms if (arm.method, arm.seed) == (method, seed))

    def controller(self, arm: Arm) -> Controller:
        """The controller that moves the Φ of an arm, and perhaps of the same method's arms with other seeds."""
        return self.populations[arm.population].owner_of(arm.start).controller

    def phi(self, arm: Arm) -> Tensor:
        """Φ of an arm's children [n, P]."""
        part = self.populations[arm.population].parts[arm.family]
        return part.phi(torch.device("cpu"))[arm.family_rows]

    def policy(self, arm: Arm) -> Policy | None:
        """The policy that moves the Φ of an arm, if there is one."""
        owner = self.populations[arm.population].owner_of(arm.start)
        if not isinstance(owner.controller, LearningController):
            return None
        return owner.controller.policies[owner.rows.tolist().index(arm.start) // arm.children]

    def untrained(self, arm: Arm, child: int) -> nn.Module:
        """The network of a child as it was before training."""
        builder = Builder(self.config, self.kind, self.metric, self.data, self.device)
        return builder.network(self.families[arm.family].model, self.data[arm.seed].train, arm.seed, child)


def pick_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one."""
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
    losses = {name: builder.loss(family).to(device) for name, family in planned.items()}
    populations: dict[str, Population] = {}
    arms: list[Arm] = []
    for population, names in _together(planned, losses).items():
        own = builder.arms(population, {name: planned[name] for name in names})
        learned = partial(_learned, arms, populations, losses)
        populations[population] = builder.population({name: planned[name] for name in names}, losses, own, learned)
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


def _together(planned: dict[str, Family], losses: dict[str, AdaptiveLoss]) -> dict[str, list[str]]:
    """The families of each population. One whose loss is not vectorised trains alone: it would slow down the others."""
    found: dict[str, list[str]] = {}
    for name, family in planned.items():
        alone = f"{family.population}-{name}"
        found.setdefault(family.population if losses[name].vectorised else alone, []).append(name)
    return found


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
    phi, kept = populations[arm.population].history_of(arm.family)
    stride = int(kept[1] - kept[0]) if len(kept) > 1 else 1
    mean = phi[:, arm.family_rows].mean(1).repeat_interleave(stride, 0)
    return {name: mean[:, where] for name, where in losses[arm.family].spec.slices.items()}


@dataclass(frozen=True)
class Row:
    """One child of a population. Rows that are equal are paired: the same initial weights and batches.

    Args:
        seed: its seed.
        child: its index among the children of its arm.
        and_validation: whether it trains on the validation split too.
        without: the fold of the validation split that it leaves out.
    """

    seed: int
    child: int
    and_validation: bool
    without: int | None

    def examples(self, data: SeedData) -> Examples:
        """The examples that it trains on."""
        return data.trained_on(and_validation=self.and_validation, without=self.without)


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

    def arms(self, population: str, together: dict[str, Family]) -> list[Arm]:
        """The arms of a population: family by family, seed by seed."""
        arms: list[Arm] = []
        for name, family in together.items():
            before = arms[-1].rows.stop if arms else 0
            for seed, spec in product(self.data, family.methods):
                arm = Arm(
                    spec=spec,
                    seed=seed,
                    population=population,
                    family=name,
                    start=arms[-1].rows.stop if arms else 0,
                    before=before,
                    children=spec.children or self.config.methods.children,
                )
                arms.append(arm)
        return arms

    def population(
        self,
        together: dict[str, Family],
        losses: dict[str, AdaptiveLoss],
        arms: list[Arm],
        learned: Callable[[int, str], Schedule],
    ) -> Population:
        """The children of the families that train together, and their controllers."""
        config, first = self.config, next(iter(together.values()))
        rows = [
            Row(arm.seed, child, arm.spec.and_validation, arm.spec.without)
            for arm in arms
            for child in range(arm.children)
        ]
        widest = max(losses[name].spec.size for name in together)
        fitted = {name: loss if loss.spec.size == widest else Narrowed(loss) for name, loss in losses.items()}
        return Population(
            self._children(first, [fitted[arm.family] for arm in arms for _ in range(arm.children)], rows),
            {name: self._part(losses[name], [arm for arm in arms if arm.family == name], learned) for name in together},
            metric=self.metric,
            validation=[self.data[row.seed].validation for row in rows],
            selection=[self.data[row.seed].selection for row in rows],
            preset=replace(first.preset, sensitivity=any(family.preset.sensitivity for family in together.values())),
            every=config.control.every,
            steps=config.steps,
            generator=generator(config.methods.seed, "minibatch", find_loss(first.loss).stream or first.loss),
            tolerant=True,
            restores=RESTORES if len(config.methods.specs) == 1 else 0,
        )

    def _part(self, loss: AdaptiveLoss, arms: list[Arm], learned: Callable[[int, str], Schedule]) -> Part:
        """The controllers of a family: one for all seeds of a method, if it is learning, else one for each."""
        owners: list[Owner] = []
        for spec in dict.fromkeys(arm.spec for arm in arms):
            own = [arm for arm in arms if arm.spec == spec]
            assert spec.trained is not None
            made = [spec.trained.controller(self._setting(arm, loss, learned)) for arm in own]
            rows = [torch.arange(arm.start, arm.rows.stop) for arm in own]
            learning = [one for one in made if isinstance(one, LearningController)]
            if len(learning) == len(made) > 1:
                made, rows = [LearningController.stacked(learning, self.device)], [torch.cat(rows)]
            owners += [Owner(one, some, spec.trained.watches) for one, some in zip(made, rows, strict=True)]
        return Part(loss, tuple(owners))

    def _setting(self, arm: Arm, loss: AdaptiveLoss, learned: Callable[[int, str], Schedule]) -> Setting:
        config, spec, data = self.config, arm.spec, self.data[arm.seed]
        return Setting(
            task=config.short_name,
            method=spec.text,
            preset=options_of(config, spec),
            loss=loss,
            metric=self.metric,
            counts=data.trained_on(and_validation=spec.and_validation, without=spec.without).counts,
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

    def _children(self, family: Family, losses: Sequence[LossFunction], rows: list[Row]) -> Children:
        """One child for each of ``rows``, under its loss, spread over the ranks if there are several."""
        compute = self.config.compute

        streams = {row: self._stream(row) for row in rows}

        def make(mine: slice) -> Children:
            return make_children(
                [self._member(family.model, row, streams[row]) for row in rows[mine]],
                losses[mine],
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
        examples = row.examples(self.data[row.seed])
        purpose = ("layers", "and reward") if row.and_validation else ("layers",)
        layers = generator(row.seed, "child", row.child, *purpose).initial_seed()
        return Member(self.network(model, examples, row.seed, row.child), layers, stream)

    def _stream(self, row: Row) -> Callable[[], Stream]:
        """A function that makes the batch stream of a row."""
        data, chosen = self.data[row.seed], self.config.optimisation
        examples = row.examples(data)

        def stream() -> Stream:
            batches = generator(row.seed, "child", row.child, "batches")
            size, per_class = chosen.batch_size, chosen.per_class
            if isinstance(examples, MappedImages):
                return StreamedBatches(examples, size, data.transform, batches, self.device, per_class=per_class)
            return BatchStream(examples.load(), size, data.transform, batches, self.device, per_class=per_class)

        return stream
