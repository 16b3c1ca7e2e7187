"""Where the rooms are wired together: from a config to populations ready to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from lossalign.children import Children, Member, make_children
from lossalign.children.distributed import DistributedChildren
from lossalign.core import Controller, InputError, Ranks, generator
from lossalign.data import (
    LFW,
    BatchStream,
    Examples,
    MappedImages,
    Pairs,
    Splits,
    StreamedBatches,
    Transform,
    fit_transform,
    load_cifar10,
    load_cifar100,
    load_digits,
    load_lfw,
    load_omniglot,
    load_table,
    load_turned_digits,
    normalise,
    open_image_folder,
    open_products,
    split,
    split_classes,
)
from lossalign.experiments.config import RunConfig
from lossalign.experiments.families import Family, families
from lossalign.experiments.methods import Setting, costs_of, entry, make_loss
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, metric_named
from lossalign.models import build_model
from lossalign.rivals import Schedule
from lossalign.training import LabelledSet, Population


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One policy (or rival) and its children: neighbouring rows of a population."""

    method: str
    seed: int
    population: str
    start: int
    children: int

    @property
    def rows(self) -> slice:
        """Its rows in the population."""
        return slice(self.start, self.start + self.children)


@dataclass(frozen=True, kw_only=True)
class SeedData:
    """One seed's split; the validation sets normalised and on the device."""

    splits: Splits
    transform: Transform
    reward: LabelledSet
    selection: LabelledSet

    @property
    def train(self) -> Examples:
        """What children learn from."""
        return self.splits.train

    @property
    def test(self) -> Examples:
        """What results are reported on."""
        return self.splits.test

    def trained_on(self, *, and_reward: bool) -> Examples:
        """What the children of a method learn from."""
        return self.splits.train_and_reward if and_reward else self.splits.train


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A run, ready to train."""

    config: RunConfig
    metric: Metric
    device: torch.device
    counts: Tensor
    data: dict[int, SeedData]
    losses: dict[str, AdaptiveLoss]
    populations: dict[str, Population]
    arms: list[Arm]
    pairs: Pairs | None
    """Of the test set, to tell apart."""

    @property
    def device_name(self) -> str:
        """What the device is called."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def controller(self, arm: Arm) -> Controller:
        """Who moves the Φ of an arm."""
        mine = [other for other in self.arms if other.population == arm.population]
        return self.populations[arm.population].controllers[mine.index(arm)]


def pick_device(name: str) -> torch.device:
    """``auto`` is a GPU if there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={name!r}: choose from auto, cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device='cuda': torch sees no GPU here; use --device cpu.")
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu"))


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """All examples of a run's source, its own test set and pairs of it to tell apart, if it has them."""

    examples: Examples
    test: Examples | None = None
    pairs: Pairs | None = None


def load_source(config: RunConfig) -> Loaded:
    """Read a run's source."""
    if config.source in ("digits", "turned-digits"):
        return Loaded(examples=load_digits() if config.source == "digits" else load_turned_digits())
    if config.source == "table":
        assert config.data is not None
        return Loaded(examples=load_table(config.data))
    if config.source == "images":
        assert config.data is not None
        limit = config.in_memory_gb * 1e9
        images = open_image_folder(config.data, config.image_size, memory_limit=limit, cache=config.image_cache)
        return Loaded(examples=images)
    folder = config.data or "data"
    if config.source == "lfw":
        return _faces(load_lfw(Path(folder) / "lfw", config.image_size))
    readers: dict[str, Callable[[], tuple[Examples, Examples]]] = {
        "cifar10": lambda: load_cifar10(folder),
        "cifar100": lambda: load_cifar100(folder),
        "omniglot": lambda: load_omniglot(Path(folder) / "omniglot", config.image_size),
        "sop": lambda: open_products(Path(folder) / "Stanford_Online_Products", config.image_size, config.image_cache),
    }
    examples, test = readers[config.source]()
    return Loaded(examples=examples, test=test)


def _faces(lfw: LFW) -> Loaded:
    """People of DevTrain, and the images of DevTest's pairs."""
    pairs = lfw.pairs("dev_test")
    rows = torch.cat([pairs.first, pairs.second]).unique()
    within = pairs._replace(first=torch.searchsorted(rows, pairs.first), second=torch.searchsorted(rows, pairs.second))
    return Loaded(examples=lfw.faces_of(lfw.dev_train), test=lfw.images.subset(rows), pairs=within)


def make_splits(config: RunConfig, examples: Examples, test: Examples | None, seed: int) -> Splits:
    """One seed's train, reward-validation, selection-validation and test sets."""
    if config.embedding is not None:
        return split_classes(
            examples,
            reward=config.reward_classes or 0,
            selection=config.selection_classes or 0,
            test=config.test_classes or 0 if test is None else 0,
            test_set=test,
            examples_per_class=config.examples_per_class,
            generator=generator(seed, "split"),
        )

    def fraction(per_class: int | None) -> float | None:
        return config.validation_fraction if per_class is None else None

    return split(
        examples,
        reward_per_class=config.reward_per_class,
        reward_fraction=fraction(config.reward_per_class) if config.reward_of_train is None else None,
        reward_of_train=config.reward_of_train,
        selection_per_class=config.selection_per_class,
        selection_fraction=fraction(config.selection_per_class),
        test_per_class=config.test_per_class or 0 if test is None else 0,
        test_fraction=fraction(config.test_per_class) or 0.0 if test is None else 0.0,
        test=test,
        largest=config.largest,
        ratio=config.ratio,
        generator=generator(seed, "split"),
    )


def _seed_data(config: RunConfig, splits: Splits, device: torch.device) -> SeedData:
    transform = fit_transform(splits.train, crop=config.crop, flip=config.flip, noise=config.noise)
    return SeedData(
        splits=splits,
        transform=transform,
        reward=labelled(splits.reward, transform, device),
        selection=labelled(splits.selection, transform, device),
    )


def labelled(part: Examples, transform: Transform, device: torch.device) -> LabelledSet:
    """A part as a network sees it in evaluation."""
    whole = part.load()
    return LabelledSet(normalise(whole.inputs.to(device), transform), whole.targets.to(device))


@dataclass(frozen=True)
class Row:
    """One child of a population: of which seed, which of its arm's children, and whether it learns from the reward
    split too. Rows that are equal are paired: the same initial weights and batches."""

    seed: int
    child: int
    and_reward: bool


def initial_network(config: RunConfig, model: str, examples: Examples, seed: int, child: int) -> nn.Module:
    """The network of a child as it is before training."""
    return build_model(
        model,
        input_shape=examples.input_shape,
        num_classes=config.embedding or examples.num_classes,
        generator=generator(seed, "child", child, "weights"),
    )


def _member(config: RunConfig, model: str, data: SeedData, row: Row, device: torch.device) -> Member:
    examples = data.trained_on(and_reward=row.and_reward)
    network = initial_network(config, model, examples, row.seed, row.child)

    per_class = config.per_class

    def stream() -> BatchStream | StreamedBatches:
        batches = generator(row.seed, "child", row.child, "batches")
        if isinstance(examples, MappedImages):
            return StreamedBatches(examples, config.batch_size, data.transform, batches, device, per_class=per_class)
        return BatchStream(examples.load(), config.batch_size, data.transform, batches, device, per_class=per_class)

    purpose = ("layers", "and reward") if row.and_reward else ("layers",)
    return Member(network, generator(row.seed, "child", row.child, *purpose).initial_seed(), stream)


def build(config: RunConfig, say: Callable[[str], None] = lambda sentence: None) -> Experiment:
    """Everything of a run but the training; ``say`` is told what takes a while."""
    device = pick_device(config.device)
    loaded = load_source(config)
    metric = metric_named(config.metric, config.embedding or loaded.examples.num_classes)
    for method in config.methods:
        if entry(method).method.derived == "bayes":
            costs_of(metric, method)
    data = {
        seed: _seed_data(config, make_splits(config, loaded.examples, loaded.test, seed), device)
        for seed in range(config.seed, config.seed + config.seeds)
    }
    counts = data[config.seed].train.counts
    losses: dict[str, AdaptiveLoss] = {}
    populations: dict[str, Population] = {}
    arms: list[Arm] = []
    for name, family in families(config).items():
        losses[name] = make_loss(family.loss, family.groups, counts, config).to(device)
        own = list[Arm]()
        for seed, method in product(data, family.methods):
            children = entry(method).children or config.children
            start = own[-1].rows.stop if own else 0
            own.append(Arm(method=method, seed=seed, population=name, start=start, children=children))
        learned = partial(_learned, arms, populations, losses)
        populations[name] = _population(config, family, losses[name], metric, data, own, learned, device, say)
        arms += own
    return Experiment(
        config=config,
        metric=metric,
        device=device,
        counts=counts,
        data=data,
        losses=losses,
        populations=populations,
        arms=arms,
        pairs=loaded.pairs,
    )


def _children(
    config: RunConfig,
    family: Family,
    loss: AdaptiveLoss,
    data: dict[int, SeedData],
    rows: list[Row],
    device: torch.device,
    say: Callable[[str], None],
) -> Children:
    """One child for each of ``rows``, spread over the ranks if there are several."""

    def make(mine: slice) -> Children:
        members = [_member(config, family.model, data[row.seed], row, device) for row in rows[mine]]
        return make_children(
            members,
            loss,
            config.recipe(device, family.preset),
            engine=config.engine,
            compile=config.compile,
            device=device,
            say=say,
        )

    ranks = Ranks.current()
    return make(slice(None)) if ranks.count == 1 else DistributedChildren(make, len(rows), ranks)


def _learned(
    arms: list[Arm], populations: dict[str, Population], losses: dict[str, AdaptiveLoss], seed: int, method: str
) -> Schedule:
    """Φ along the training of a method, as the mean of its children, by group [steps, size]."""
    arm = next(arm for arm in arms if (arm.method, arm.seed) == (method, seed))
    phi, kept = populations[arm.population].history
    stride = int(kept[1] - kept[0]) if len(kept) > 1 else 1
    mean = phi[:, arm.rows].mean(1).repeat_interleave(stride, 0)
    return {name: mean[:, where] for name, where in losses[arm.population].spec.slices.items()}


def _population(
    config: RunConfig,
    family: Family,
    loss: AdaptiveLoss,
    metric: Metric,
    data: dict[int, SeedData],
    arms: list[Arm],
    learned: Callable[[int, str], Schedule],
    device: torch.device,
    say: Callable[[str], None],
) -> Population:
    rows, controllers = list[Row](), []
    for arm in arms:
        one = entry(arm.method)
        rows += [Row(arm.seed, child, one.and_reward) for child in range(arm.children)]
        setting = Setting(
            config=config,
            preset=config.controls(one.switches),
            loss=loss,
            metric=metric,
            counts=data[arm.seed].trained_on(and_reward=one.and_reward).counts,
            seed=arm.seed,
            device=device,
            learned=partial(learned, arm.seed),
            counts_before=data[arm.seed].train.counts,
            policy=one.policy or config.policy,
            freeze=config.freeze if one.freeze is None else one.freeze,
            children=arm.children,
        )
        assert one.method.controller is not None
        controllers.append(one.method.controller(setting))
    return Population(
        _children(config, family, loss, data, rows, device, say),
        controllers,
        loss=loss,
        metric=metric,
        reward=[data[row.seed].reward for row in rows],
        selection=[data[row.seed].selection for row in rows],
        preset=family.preset,
        every=config.every,
        steps=config.steps,
        generator=generator(config.seed, "minibatch", loss.__class__.__name__),
        tolerant=len(config.methods) > 1,
    )
