"""``lossalign.fit``: train from Python, with a task or your own objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lossalign.core import Controller, InputError, ParameterSpec, Ranks, offer_plug
from lossalign.core.values import parse_value
from lossalign.data import Dataset, Examples
from lossalign.evaluation import Result
from lossalign.experiments import Config, configure
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric
from lossalign.runs import Existing, Listener, run

Data = str | Examples | tuple[Tensor, Tensor]
"""The name of a task, a data set, or a pair (inputs [n, …], labels [n])."""
ControllerFactory = Callable[[ParameterSpec, int, torch.Generator], Controller]
"""(parameters of the loss, number of children, random generator) → a controller."""


def fit(
    data: Data,
    *,
    loss: str | AdaptiveLoss | None = None,
    metric: str | Metric | Callable[[Tensor, Tensor], float | Tensor] | None = None,
    model: str | Callable[..., nn.Module] | None = None,
    controller: str | ControllerFactory | None = None,
    out: str | Path,
    existing: Existing = "refuse",
    final: bool = False,
    listener: Listener | None = None,
    **changes: Any,
) -> Result:
    """Train children on a task or on your own data, write a run folder, and return the result.

    In a ``torch.distributed`` process group call it on every rank: the children are spread over the ranks, rank 0
    writes the folder, and all ranks return the result.

    Args:
        data: a task (``"digits-lt"``, ``"table:FILE"``, ``"images:FOLDER"``, a recipe file), a ``Dataset``, or a pair
            (inputs [n, …], labels [n]).
        loss: a name (``lossalign list losses``), ``"module:attribute"``, or an ``AdaptiveLoss``; None: the task's.
        metric: a name, ``"module:attribute"``, a ``Metric``, or a function ``(outputs, targets)`` that carries
            ``higher_is_better``; None: the task's.
        model: a name, ``"module:factory"``, or a function that makes a network; it is called with those of
            ``input_shape``, ``num_classes`` and ``in_channels`` that it accepts. None: the task's.
        controller: moves Φ, as one more of the ``methods``: a method's name, ``"module:attribute"``, or a class or
            function called with (``ParameterSpec``, number of children, ``torch.Generator``).
        out: the run folder.
        existing: what to do if the folder exists: ``refuse``, ``resume`` or ``overwrite``.
        final: score the test split, which can be done once, instead of the selection split.
        listener: callbacks during the run.
        changes: any other key of the config (the flags of ``lossalign train``), e.g. ``children=4, horizon=1``.

    Example:
        >>> result = fit("digits-lt", methods=["fixed", "ala"], out="runs/mine")  # doctest: +SKIP
        >>> result.rows["ala"].mean, result.files  # doctest: +SKIP
    """
    given = {"loss": _named("loss", loss), "metric": _named("metric", metric), "model": _named("model", model)}
    changes |= {key: name for key, name in given.items() if name is not None}
    if controller is not None:
        changes["methods"] = [*_listed(changes.get("methods")), _named("controller", controller)]
    config = Ranks.current().guarded(lambda: configure(_task(data), changes))
    if not isinstance(out, (str, os.PathLike)):
        raise InputError(f"out={out!r}: give the run folder.")
    final = parse_value("final", final, bool)
    return train(config, Path(out), existing=existing, final=final, listener=listener)


def train(
    config: Config,
    out: Path,
    *,
    existing: Existing = "refuse",
    final: bool = False,
    listener: Listener | None = None,
) -> Result:
    """Train a config into its folder, then draw its figures; see ``fit``."""
    listener = listener or Listener()
    result = run(config, out, existing=existing, final=final, listener=listener)
    pictures = Ranks.current().on_first(lambda: _draw(out, listener))
    return replace(result, files=(*result.files, *pictures))


def _draw(folder: Path, listener: Listener) -> tuple[Path, ...]:
    """Draw what can be drawn: the run is finished, whatever matplotlib, its backend or the disk do."""
    try:
        if find_spec("matplotlib") is None:
            return ()
        from lossalign.report import write_pictures, write_retrieval  # matplotlib is an optional dependency

        return (*write_pictures(folder), *write_retrieval(folder))
    except Exception as error:
        listener.said(
            f"pictures of {folder} cannot be drawn ({type(error).__name__}: {error}); the run is finished, and "
            "--resume draws them."
        )
        return ()


def _named(what: str, thing: Any) -> str | None:
    """The name of ``thing`` in a config."""
    return thing if thing is None or isinstance(thing, str) else offer_plug(what, thing)


def _listed(methods: str | Sequence[str] | None) -> Sequence[str]:
    return [methods] if isinstance(methods, str) else methods or ()


def _task(data: Data) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(each, Tensor) for each in data):
        data = _dataset(*data)
    if not isinstance(data, Examples):
        raise InputError(
            f"data is of type {type(data).__name__}; give a task's name, a lossalign.data.Dataset, or two tensors "
            "(inputs, labels)."
        )
    return offer_plug("data", data, name=data.name)


def _dataset(inputs: Tensor, targets: Tensor) -> Dataset:
    if targets.ndim != 1 or targets.is_floating_point() or not len(targets):
        raise InputError(
            f"data: labels have shape {tuple(targets.shape)} and type {targets.dtype}; give class indices [n]."
        )
    names = tuple(str(number) for number in range(int(targets.max()) + 1))
    kept = inputs if inputs.dtype is torch.uint8 else inputs.float()
    return Dataset(name="tensors", inputs=kept, targets=targets.long(), class_names=names)
