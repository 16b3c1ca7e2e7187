"""A network by its name, initialised from a generator."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from lossalign.core import InputError, import_plug
from lossalign.models.registry import ENDINGS, find_model

Shape = tuple[int, ...]


def build_model(name: str, *, input_shape: Shape, num_classes: int, generator: torch.Generator) -> nn.Module:
    """The network called ``name``, with initial weights that depend on ``generator`` alone.

    PyTorch initialises from its global stream, so one seed is drawn from ``generator`` and the network is built under
    that seed; the global stream is left as it was.

    Args:
        name: ``resnet20`` and every other depth 6n + 2, ``wrn-28-10``, ``densenet-100-12``, ``small-cnn``, ``mlp``,
            ``mlp-64-32`` (hidden sizes); for embeddings ``embedding-cnn``, ``resnet18-trunk`` and ``resnet50-trunk``,
            ``face20`` and ``face64``; or ``module:factory`` for a model of your own. The factory is called with
            those of ``input_shape``, ``num_classes`` and ``in_channels`` that its signature names; a module in the
            current directory is found. A name that ends in ``+cosine`` (``resnet32+cosine``, ``module:factory+cosine``)
            has its last ``nn.Linear`` replaced by a ``CosineLinear``, for LDAM; with ``+unit`` (``face20+unit``,
            ``mlp-64+unit``), outputs are normalised to length 1, for embeddings.
        input_shape: shape of one input: (channels, height, width) of an image, (features,) of a row of a table.
        num_classes: C, the number of outputs: one for each class, or the dimensions of an embedding.
        generator: draws the initial weights.

    Returns:
        The network on the CPU, in the mode its factory left it in (ours: training). It maps [B, *input_shape] to
        [B, C], which was checked with two inputs.

    Example:
        >>> model = build_model("mlp-16", input_shape=(1, 8, 8), num_classes=3, generator=torch.Generator())
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 3])
    """
    if not input_shape or min(input_shape) < 1:
        raise InputError(f"input_shape={input_shape}: give positive sizes such as (3, 32, 32), without the batch axis.")
    if num_classes < 1:
        raise InputError(f"num_classes={num_classes}: a model needs at least one output.")
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPUs
        plain, ending = _parts(name)
        build = _build_own if ":" in plain else _build_ours
        model = build(plain, input_shape, num_classes)
        _check_output(plain, model, input_shape, num_classes)
        if ending:
            model = ENDINGS[ending](name, model, num_classes)
            _check_output(name, model, input_shape, num_classes)
    return model


def check_model(name: str) -> None:
    """Refuse a name that ``build_model`` does not know, before there is data to build it for.

    Example:
        >>> check_model("mlp-16+cosine")
    """
    plain, _ = _parts(name)
    if ":" in plain:
        _factory(plain)
    else:
        find_model(plain)


def _parts(name: str) -> tuple[str, str]:
    """The name without its ending, and the ending."""
    ending = next((ending for ending in ENDINGS if name.endswith(ending)), "")
    return name.removesuffix(ending), ending


def _factory(name: str) -> Callable[..., object]:
    """The user's own factory called ``module:attribute``."""
    factory = import_plug("model", name)
    if not callable(factory):
        raise InputError(f"model={name!r} is a {type(factory).__name__}; name a function or class that makes a model.")
    return factory  # type: ignore[no-any-return]


def _build_ours(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    entry, numbers = find_model(name)
    if entry.images and len(input_shape) != 3:
        raise InputError(
            f"model={name!r} takes images (channels, height, width), but one input has shape {input_shape}; use mlp."
        )
    return entry.make(*numbers, **_arguments(entry.make, input_shape, num_classes))


def _build_own(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    factory = _factory(name)
    signature, arguments = inspect.signature(factory), _arguments(factory, input_shape, num_classes)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"model={name!r}: the factory's signature is {signature}, but it is called with input_shape, num_classes "
            "and in_channels at most; give its other arguments defaults."
        ) from error
    try:
        model = factory(**arguments)
    except Exception as error:  # anything the user's factory raises
        raise InputError(f"model={name!r}: the factory failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"model={name!r}: the factory returned a {type(model).__name__}; return a torch.nn.Module.")
    return model


def _arguments(factory: Callable[..., object], input_shape: Shape, num_classes: int) -> dict[str, object]:
    """What a factory is called with: those of our arguments that its signature names."""
    offered = {"input_shape": input_shape, "num_classes": num_classes, "in_channels": input_shape[0]}
    by_keyword = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    accepted = {p.name for p in inspect.signature(factory).parameters.values() if p.kind in by_keyword}
    return {key: value for key, value in offered.items() if key in accepted}


def _check_output(name: str, model: nn.Module, input_shape: Shape, num_classes: int) -> None:
    """Try two inputs, in eval mode so that no running statistic moves."""
    modes = [(module, module.training) for module in model.modules()]
    first = next(model.parameters(), torch.empty(0))
    model.eval()
    try:
        with torch.no_grad():
            output = model(torch.zeros(2, *input_shape, device=first.device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"model={name!r} cannot process inputs of shape {input_shape} ({error}); choose another model."
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if shape != (2, num_classes):
        raise InputError(
            f"model={name!r} maps inputs (2, *{input_shape}) to {shape}; it must return a tensor of shape "
            f"(2, {num_classes})."
        )
