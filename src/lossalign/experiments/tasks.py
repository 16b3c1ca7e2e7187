"""Built-in tasks, and the config of a task with changes.

A task is a set of values by key. Tasks with tiny networks train on the CPU by default, all children at once
(docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lossalign.control import Preset, preset_named
from lossalign.core import OBJECT, InputError, Registry
from lossalign.core.values import check_value
from lossalign.experiments.config import Config
from lossalign.experiments.keys import OPTIONS, SECTIONS, typed
from lossalign.experiments.kinds import KINDS
from lossalign.experiments.methods import MethodSpec, parse_method
from lossalign.experiments.recipes import is_recipe, read_recipe
from lossalign.losses.registry import find_loss
from lossalign.metrics import ConfusionMetric, metric_named
from lossalign.models import check_model

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A built-in task.

    Args:
        kind: name of its kind.
        source: name of its data source.
        values: the values that it sets, by key.
    """

    kind: str
    source: str
    values: Values


TASKS: Registry[Task] = Registry("task", hint="table:FILE, images:FOLDER, or a recipe FILE.toml")

DIGITS: Values = {
    "largest": 60,
    "validation_per_class": 22,
    "selection_per_class": 22,
    "test_per_class": 30,
    "model": "mlp-16",
    "batch_size": 32,
    "noise": 1.0,
    "iterations": 1200,
    "every": 10,
    "children": 20,
    "device": "cpu",
}
TASKS.add(
    "digits",
    "1,797 handwritten digits, part of the package; an MLP; about a minute on one core",
    Task(kind="classification", source="digits", values=DIGITS),
)
TASKS.add(
    "digits-lt",
    "digits with class sizes 60 … 3",
    Task(kind="classification", source="digits", values={**DIGITS, "ratio": 20.0}),
)


def _cifar(classes: int) -> Values:
    return {
        "validation_per_class": 5000 // classes,
        "selection_per_class": 5000 // classes,
        "model": "resnet32",
        "metric": "error",
        "crop": 4,
        "flip": True,
        "iterations": 24_000,
        "every": 200,
        "schedule": "steps",
    }


def _long_tailed(classes: int, per_class: int) -> Values:
    return {
        **_cifar(classes),
        "ratio": 100.0,
        "validation_per_class": per_class,
        "selection_per_class": per_class,
        "metric": "balanced-error",
        "iterations": 9000,
        "every": 40,
        "weight_average": 4.0,
        "schedule": "cosine",
    }


for _source, _classes, _per_class in (("cifar10", 10, 50), ("cifar100", 100, 10)):
    _name = _source.upper().replace("CIFAR", "CIFAR-")
    TASKS.add(
        _source,
        f"{_name}, 40,000 training images, ResNet-32, error rate",
        Task(kind="classification", source=_source, values=_cifar(_classes)),
    )
    TASKS.add(
        f"{_source}-lt",
        f"{_name} with exponentially falling class sizes, ratio 100, balanced error",
        Task(kind="classification", source=_source, values=_long_tailed(_classes, _per_class)),
    )

EMBEDDING: Values = {
    "loss": "distance-mixture",
    "embedding": 128,
    "per_class": 4,
    "learning_rate": 0.3,
    "weight_average": 4.0,
    "model": "embedding-cnn+unit",
    "iterations": 5000,
    "every": 25,
}
TASKS.add(
    "digits-retrieval",
    "digits turned and mirrored, 80 classes of which 44 train; an MLP; Recall@1",
    Task(
        kind="retrieval",
        source="turned-digits",
        values={
            **EMBEDDING,
            "embedding": 8,
            "validation_classes": 12,
            "selection_classes": 12,
            "test_classes": 12,
            "examples_per_class": 20,
            "model": "mlp-64+unit",
            "batch_size": 64,
            "noise": 1.0,
            "iterations": 1200,
            "every": 10,
            "children": 20,
            "device": "cpu",
        },
    ),
)
TASKS.add(
    "omniglot",
    "Omniglot: 964 background characters train; tested on 659 of other alphabets; Recall@1",
    Task(
        kind="retrieval",
        source="omniglot",
        values={**EMBEDDING, "image_size": 28, "validation_classes": 100, "selection_classes": 100, "crop": 2},
    ),
)
_PHOTOS: Values = {**EMBEDDING, "image_size": 64, "examples_per_class": 4, "crop": 4, "flip": True}
TASKS.add(
    "lfw",
    "Labeled Faces in the Wild: people of DevTrain train; tested on the 1,000 pairs of DevTest",
    Task(
        kind="verification",
        source="lfw",
        values={**_PHOTOS, "model": "face20+unit", "validation_classes": 100, "selection_classes": 100},
    ),
)
TASKS.add(
    "sop",
    "Stanford Online Products: 10,000 classes train; tested on 11,316 others",
    Task(
        kind="retrieval",
        source="sop",
        values={
            **_PHOTOS,
            "metric": "recall@1,10,100",
            "model": "resnet18-trunk+unit",
            "validation_classes": 659,
            "selection_classes": 659,
            "iterations": 20_000,
            "every": 100,
        },
    ),
)


def table_task(embeds: bool = False) -> Task:
    """A user's table: .npz with X and y, or .csv."""
    values = {
        "held_out_fraction": 0.2,
        "model": "mlp-64-64",
        "iterations": 2000,
        "every": 20,
        "learning_rate": 0.05,
        "device": "cpu",
    }
    return Task(kind="classification", source="table", values=values)


HELD_OUT: Values = {"validation_classes": 3, "selection_classes": 3, "test_classes": 10, "examples_per_class": 50}


def object_task(embeds: bool = False) -> Task:
    """Examples that were passed to ``lossalign.fit`` as an object, with the settings of a table; with a loss on
    embeddings whole classes are held out."""
    if embeds:
        own = {"model": "mlp-64+unit", "device": "cpu"}
        return Task(kind="retrieval", source=OBJECT, values={**EMBEDDING, **HELD_OUT, **own})
    return replace(table_task(), source=OBJECT)


def images_task(embeds: bool = False) -> Task:
    """A user's images, one folder for each class; with a loss on embeddings whole classes are held out."""
    if embeds:
        return Task(kind="retrieval", source="images", values={**EMBEDDING, **HELD_OUT, "crop": 4, "flip": True})
    values = {
        "held_out_fraction": 0.2,
        "model": "resnet20",
        "crop": 4,
        "flip": True,
        "iterations": 10_000,
        "every": 100,
    }
    return Task(kind="classification", source="images", values=values)


OWN_DATA: dict[str, Callable[[bool], Task]] = {"table": table_task, "images": images_task, OBJECT: object_task}
"""Tasks that name a user's file or folder: ``table:FILE``, ``images:FOLDER``; or an object: ``object:NAME``."""


def configure(task: str, *changes: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> Config:
    """The config of a task with changes applied in order: later ones win.

    Args:
        task: a name in ``TASKS``, ``table:FILE``, ``images:FOLDER``, or a recipe file, whose values are applied
            before ``changes``.
        changes: values by key, as text or typed.
        usual: defaults, which the task and a recipe file override.

    Example:
        >>> configure("digits-lt", {"children": 4}, {"horizon": "1"}).control.options.horizon
        1
    """
    check_value("task", task, str)
    layers = [typed(layer, "changes") for layer in changes]
    if is_recipe(task):
        path = task
        task, own = read_recipe(path)
        layers.insert(0, typed(own, f"recipe {path}"))
    loss = next((layer["loss"] for layer in reversed(layers) if "loss" in layer), None)
    found = find_task(task, embeds=loss is not None and find_loss(loss).embeds)
    _check_data(task, layers)
    return assemble(task, found, [typed(usual or {}, "usual"), *layers])


def compared(task: str, *changes: Mapping[str, Any]) -> Config:
    """The config of a comparison: as ``configure``, by default with the usual methods of the task's kind on 5 seeds.

    Those with a decision are usual for metrics of the confusion counts: no decision changes most others, or each of
    hundreds of fits would call a user's metric thousands of times.
    """
    plain = configure(task, *changes)
    counted = isinstance(metric_named(plain.metric), ConfusionMetric)
    methods = [spec.text for spec in map(parse_method, KINDS[plain.kind].compared) if counted or not spec.decides]
    return configure(task, *changes, usual={"methods": tuple(methods), "seeds": 5})


def find_task(task: str, *, embeds: bool = False) -> Task:
    """The task called ``task``; ``embeds`` says whether the user asks for a loss on embeddings."""
    prefix, _, path = task.partition(":")
    if prefix not in OWN_DATA or not path:
        return TASKS[task]
    own = OWN_DATA[prefix](embeds)
    if prefix == OBJECT:
        return own
    if not Path(path).exists():
        raise InputError(f"task {task!r}: {path} does not exist.")
    return replace(own, values={**own.values, "data": path})


def _check_data(task: str, layers: list[Values]) -> None:
    path = task.partition(":")[2]
    given = [layer["data"] for layer in layers if "data" in layer]
    if path and given and given[-1] != path:
        raise InputError(f"data={given[-1]!r}: the task {task!r} already names its data; leave data out.")


def assemble(task: str, found: Task, layers: list[Values]) -> Config:
    """The config of a task with typed changes applied in order."""
    kind = KINDS[found.kind]
    values: Values = {"metric": kind.metric}
    preset = "default"
    for layer in [*layers[:1], typed(found.values, "task"), *layers[1:]]:
        if layer.get("preset", preset) != preset:  # options chosen for one preset do not carry over to another
            preset = layer["preset"]
            values = {key: value for key, value in values.items() if key not in OPTIONS or key == "loss"}
        values |= _with_implications(layer)
    sections: Values = {}
    for section, cls in SECTIONS.items():
        names = {each.name: each.metadata.get("key", each.name) for each in fields(cls)}
        sections[section] = {name: values[key] for name, key in names.items() if key in values}
    sections["data"]["source"] = found.source
    sections["control"]["options"] = _options(preset, values)
    if "start" not in values and kind.embeds:
        sections["control"]["start"] = "paper" if preset == "paper" else "default"
    missing = [key for key in ("model", "iterations", "every") if key not in values]
    if missing:
        raise InputError(f"task {task!r} does not set {missing[0]!r}; give it.")
    made = {section: cls(**sections[section]) for section, cls in SECTIONS.items()}
    config = Config(task=task, kind=found.kind, metric=values["metric"], **made)
    kind.check(config)
    check_model(config.model.name)
    metric_named(config.metric)
    return config


_SIZES_OF_SPLITS = ("validation_per_class", "validation_of_train", "selection_per_class", "test_per_class")


def _with_implications(layer: Values) -> Values:
    """``layer`` with None for the other ways to size a split, if it sets one: it replaces those set before."""
    if layer.get("held_out_fraction") is not None:
        layer = {**dict.fromkeys(_SIZES_OF_SPLITS), **layer}
    number, of_train = layer.get("validation_per_class"), layer.get("validation_of_train")
    if number is not None and of_train is not None:
        raise InputError(
            f"validation_per_class={number}, validation_of_train={of_train}: each sizes the validation split; give one "
            "of the two."
        )
    if of_train is not None:
        return {"validation_per_class": None, **layer}
    if number is not None:
        return {"validation_of_train": None, **layer}
    return layer


def _options(preset: str, values: Values) -> Preset:
    base = preset_named(preset)
    return changed_options(base, {key: values[key] for key in OPTIONS if key in values})


def changed_options(base: Preset, changes: Mapping[str, Any]) -> Preset:
    """``base`` with some options changed; another loss brings its own groups unless they are given."""
    loss = changes.get("loss", base.loss)
    groups = base.groups if loss == base.loss else find_loss(loss).groups
    return replace(base, **{"groups": groups, **changes})


def options_of(config: Config, spec: MethodSpec) -> Preset:
    """The controller's options of one method."""
    return changed_options(config.control.options, dict(spec.options))
