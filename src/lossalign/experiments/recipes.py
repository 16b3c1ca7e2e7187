"""Recipes: functions that return a whole run.

Tiny networks train on the CPU unless told otherwise: there, one vmapped call trains all children (docs/performance.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lossalign.core import InputError
from lossalign.experiments.config import EMBEDDING_LOSSES, RunConfig, add_switches

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def digits(**changes: Any) -> RunConfig:
    """1,797 handwritten digits, embedded in the package; an MLP; about a minute on one core."""
    base = RunConfig(
        task="digits",
        source="digits",
        largest=60,
        reward_per_class=22,
        selection_per_class=22,
        test_per_class=30,
        model="mlp-16",
        metric="balanced-error",
        batch_size=32,
        noise=1.0,
        iterations=1200,
        every=10,
        children=20,
        device="cpu",
    )
    return base.changed(changes)


def digits_lt(**changes: Any) -> RunConfig:
    """Digits with class sizes 60 … 3."""
    return digits(task="digits-lt", ratio=20.0).changed(changes)


def _cifar(name: str, classes: int) -> RunConfig:
    return RunConfig(
        task=name,
        source=name,
        reward_per_class=5000 // classes,
        selection_per_class=5000 // classes,
        model="resnet32",
        metric="error",
        crop=4,
        flip=True,
        iterations=24_000,
        every=200,
        schedule="steps",
    )


def cifar10(**changes: Any) -> RunConfig:
    """CIFAR-10, 40,000 images to train on, ResNet-32, error rate."""
    return _cifar("cifar10", 10).changed(changes)


def cifar100(**changes: Any) -> RunConfig:
    """CIFAR-100, 40,000 images to train on, ResNet-32, error rate."""
    return _cifar("cifar100", 100).changed(changes)


_LONG_TAILED: dict[str, Any] = {
    "ratio": 100.0,
    "reward_per_class": 50,
    "selection_per_class": 50,
    "metric": "balanced-error",
    "iterations": 9000,
    "every": 40,
    "switches": ("average=4",),
    "schedule": "cosine",
}


def cifar10_lt(**changes: Any) -> RunConfig:
    """CIFAR-10 with exponentially falling class sizes, ratio 100, balanced error."""
    return cifar10(task="cifar10-lt").changed(_LONG_TAILED).changed(changes)


def cifar100_lt(**changes: Any) -> RunConfig:
    """CIFAR-100 with exponentially falling class sizes, ratio 100, balanced error."""
    few = {"reward_per_class": 10, "selection_per_class": 10}
    return cifar100(task="cifar100-lt").changed({**_LONG_TAILED, **few}).changed(changes)


def table(path: str, **changes: Any) -> RunConfig:
    """Your own table: .npz with X and y, or .csv."""
    base = RunConfig(
        task=f"table:{path}",
        source="table",
        data=path,
        validation_fraction=0.2,
        model="mlp-64-64",
        metric="balanced-error",
        iterations=2000,
        every=20,
        learning_rate=0.05,
        device="cpu",
    )
    return base.changed(changes)


_EMBEDDING: dict[str, Any] = {
    "loss": "distance-mixture",
    "embedding": 128,
    "metric": "recall@1",
    "per_class": 4,
    "learning_rate": 0.3,
    "switches": ("average=4",),
}


def digits_retrieval(**changes: Any) -> RunConfig:
    """Digits turned and mirrored, 80 classes: 44 to train on, 12 others for each part that judges; an MLP."""
    base = RunConfig(
        task="digits-retrieval",
        source="turned-digits",
        **_EMBEDDING | {"embedding": 8},
        reward_classes=12,
        selection_classes=12,
        test_classes=12,
        examples_per_class=20,
        model="mlp-64+unit",
        batch_size=64,
        noise=1.0,
        iterations=1200,
        every=10,
        children=20,
        device="cpu",
    )
    return base.changed(changes)


def _retrieval(name: str) -> RunConfig:
    return RunConfig(task=name, source=name, model="embedding-cnn+unit", iterations=5000, every=25, **_EMBEDDING)


def omniglot(**changes: Any) -> RunConfig:
    """Omniglot: 964 background characters, 20 drawings each, to train on; tested on 659 of other alphabets."""
    own = {"image_size": 28, "reward_classes": 100, "selection_classes": 100, "crop": 2}
    return _retrieval("omniglot").changed(own).changed(changes)


def lfw(**changes: Any) -> RunConfig:
    """Labeled Faces in the Wild: people of DevTrain to train on, tested by the 1,000 pairs of DevTest."""
    own = {
        "image_size": 64,
        "metric": "verification",
        "model": "face20+unit",
        "reward_classes": 100,
        "selection_classes": 100,
        "examples_per_class": 4,
        "crop": 4,
        "flip": True,
    }
    return _retrieval("lfw").changed(own).changed(changes)


def sop(**changes: Any) -> RunConfig:
    """Stanford Online Products: 10,000 classes to train on, tested on 11,316 others."""
    own = {
        "image_size": 64,
        "metric": "recall@1,10,100",
        "model": "resnet18-trunk+unit",
        "reward_classes": 659,
        "selection_classes": 659,
        "examples_per_class": 4,
        "crop": 4,
        "flip": True,
        "iterations": 20_000,
        "every": 100,
    }
    return _retrieval("sop").changed(own).changed(changes)


def _images_to_retrieve(path: str) -> RunConfig:
    held_out = {"reward_classes": 3, "selection_classes": 3, "test_classes": 10, "examples_per_class": 50}
    own = {"task": f"images:{path}", "data": path, "crop": 4, "flip": True, "image_size": 32}
    return _retrieval("images").changed({**held_out, **own})


def images(path: str, **changes: Any) -> RunConfig:
    """Your own images: one folder for each class. A loss of metric learning holds whole classes out."""
    if changes.get("loss") in EMBEDDING_LOSSES:
        return _images_to_retrieve(path).changed(changes)
    base = RunConfig(
        task=f"images:{path}",
        source="images",
        data=path,
        validation_fraction=0.2,
        model="resnet20",
        metric="balanced-error",
        crop=4,
        flip=True,
        iterations=10_000,
        every=100,
    )
    return base.changed(changes)


RECIPES = {
    "digits": digits,
    "digits-lt": digits_lt,
    "cifar10": cifar10,
    "cifar10-lt": cifar10_lt,
    "cifar100": cifar100,
    "cifar100-lt": cifar100_lt,
    "digits-retrieval": digits_retrieval,
    "omniglot": omniglot,
    "lfw": lfw,
    "sop": sop,
}
OWN_DATA = {"table": table, "images": images}


def read_recipe(path: str) -> dict[str, Any]:
    """A recipe file: TOML with ``task`` and any fields of a run."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"task {path!r}: the recipe file cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"task {path!r}: it is not TOML ({error}); mend it.") from error
    if not isinstance(found.get("task"), str) or is_file(found["task"]):
        raise InputError(f'task {path!r}: the recipe file must name its task, e.g. task = "digits-lt".')
    wrong = [name for name, value in found.items() if isinstance(value, dict)]
    if wrong:
        raise InputError(f"task {path!r}: {wrong[0]!r} is a table; write fields of a run as name = value.")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def is_file(task: str) -> bool:
    """Whether a task is a recipe file."""
    return task.endswith(".toml")


def recipe_for(task: str, **changes: Any) -> RunConfig:
    """The recipe of a task by its name on the command line, or of a recipe file.

    Example:
        >>> recipe_for("digits-lt", children=4).children
        4
    """
    if is_file(task):
        own = read_recipe(task)
        changes = add_switches(own.get("switches", ()), own.get("preset", "default"), changes)
        return recipe_for(**{**own, **changes})
    kind, _, path = task.partition(":")
    if task in RECIPES:
        return RECIPES[task](**changes)
    if kind in OWN_DATA and path:
        if not Path(path).exists():
            raise InputError(f"task {task!r}: {path} does not exist.")
        if changes.get("data", path) != path:
            raise InputError(f"data={changes['data']!r}: the task {task!r} names its data already; leave data out.")
        return OWN_DATA[kind](path, **changes)
    raise InputError(
        f"task {task!r} is unknown; choose from {', '.join(RECIPES)}, table:FILE, images:FOLDER or a recipe FILE.toml."
    )
