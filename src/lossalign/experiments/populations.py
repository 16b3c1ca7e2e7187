"""Where the rooms are wired together: from a config to populations ready to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lossalign.children import Children, Member, make_children
from lossalign.children.distributed import DistributedChildren
from lossalign.core import Controller, InputError, Ranks, generator
from lossalign.data import (
    BatchStream,
    Examples,
    MappedImages,
    Splits,
    StreamedBatches,
    Transform,
    fit_transform,
    load_cifar10,
    load_cifar100,
    load_digits,
    load_table,
    normalise,
    open_image_folder,
    split,
)
from lossalign.experiments.config import RunConfig
from lossalign.experiments.methods import Setting, grouped_by_loss, groups_needed, make_loss, method_named
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, metric_named
from lossalign.models import build_model
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

    train: Examples
    transform: Transform
    reward: LabelledSet
    selection: LabelledSet
    test: Examples


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


def load_source(config: RunConfig) -> tuple[Examples, Examples | None]:
    """All examples of a run's source, and its own test set if it has one."""
    if config.source == "digits":
        return load_digits(), None
    if config.source in ("cifar10", "cifar100"):
        return (load_cifar10 if config.source == "cifar10" else load_cifar100)(config.data or "data")
    assert config.data is not None
    if config.source == "table":
        return load_table(config.data), None
    limit = config.in_memory_gb * 1e9
    return open_image_folder(config.data, config.image_size, memory_limit=limit, cache=config.image_cache), None


def make_splits(config: RunConfig, examples: Examples, test: Examples | None, seed: int) -> Splits:
    """One seed's train, reward-validation, selection-validation and test sets."""

    def fraction(per_class: int | None) -> float | None:
        return config.validation_fraction if per_class is None else None

    return split(
        examples,
        reward_per_class=config.reward_per_class,
        reward_fraction=fraction(config.reward_per_class),
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
        train=splits.train,
        transform=transform,
        reward=labelled(splits.reward, transform, device),
        selection=labelled(splits.selection, transform, device),
        test=splits.test,
    )


def labelled(part: Examples, transform: Transform, device: torch.device) -> LabelledSet:
    """A part as a network sees it in evaluation."""
    whole = part.load()
    return LabelledSet(normalise(whole.inputs.to(device), transform), whole.targets.to(device))


def _member(config: RunConfig, data: SeedData, seed: int, child: int, device: torch.device) -> Member:
    model = build_model(
        config.model,
        input_shape=data.train.input_shape,
        num_classes=data.train.num_classes,
        generator=generator(seed, "child", child, "weights"),
    )

    def stream() -> BatchStream | StreamedBatches:
        batches = generator(seed, "child", child, "batches")
        if isinstance(data.train, MappedImages):
            return StreamedBatches(data.train, config.batch_size, data.transform, batches, device)
        return BatchStream(data.train.load(), config.batch_size, data.transform, batches, device)

    # One whole number for each child: the same for every method, so that rivals are paired.
    return Member(model, generator(seed, "child", child, "layers").initial_seed(), stream)


def build(config: RunConfig, say: Callable[[str], None] = lambda sentence: None) -> Experiment:
    """Everything of a run but the training; ``say`` is told what takes a while."""
    device = pick_device(config.device)
    examples, test = load_source(config)
    metric = metric_named(config.metric, examples.num_classes)
    data = {
        seed: _seed_data(config, make_splits(config, examples, test, seed), device)
        for seed in range(config.seed, config.seed + config.seeds)
    }
    counts = data[config.seed].train.counts
    losses: dict[str, AdaptiveLoss] = {}
    populations: dict[str, Population] = {}
    arms: list[Arm] = []
    for name, methods in grouped_by_loss(config).items():
        preset = config.controls()
        losses[name] = make_loss(name, groups_needed(methods, preset), counts).to(device)
        own = [
            Arm(method=method, seed=seed, population=name, start=i * config.children, children=config.children)
            for i, (seed, method) in enumerate((seed, method) for seed in data for method in methods)
        ]
        populations[name] = _population(config, losses[name], metric, data, own, device, say)
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
    )


def _children(
    config: RunConfig,
    loss: AdaptiveLoss,
    data: dict[int, SeedData],
    rows: list[tuple[int, int]],
    device: torch.device,
    say: Callable[[str], None],
) -> Children:
    """One child for each (seed, child) of ``rows``, spread over the ranks if there are several."""

    def make(mine: slice) -> Children:
        members = [_member(config, data[seed], seed, child, device) for seed, child in rows[mine]]
        return make_children(
            members,
            loss,
            config.recipe(device),
            engine=config.engine,
            compile=config.compile,
            device=device,
            say=say,
        )

    ranks = Ranks.current()
    return make(slice(None)) if ranks.count == 1 else DistributedChildren(make, len(rows), ranks)


def _population(
    config: RunConfig,
    loss: AdaptiveLoss,
    metric: Metric,
    data: dict[int, SeedData],
    arms: list[Arm],
    device: torch.device,
    say: Callable[[str], None],
) -> Population:
    preset = config.controls()
    rows = [(arm.seed, child) for arm in arms for child in range(arm.children)]
    controllers = []
    for arm in arms:
        counts = data[arm.seed].train.counts
        setting = Setting(config=config, preset=preset, loss=loss, counts=counts, seed=arm.seed, device=device)
        make = method_named(arm.method).controller
        assert make is not None
        controllers.append(make(setting))
    return Population(
        _children(config, loss, data, rows, device, say),
        controllers,
        loss=loss,
        metric=metric,
        reward=[data[seed].reward for seed, _ in rows],
        selection=[data[seed].selection for seed, _ in rows],
        preset=preset,
        every=config.every,
        steps=config.steps,
        generator=generator(config.seed, "minibatch", loss.__class__.__name__),
    )
