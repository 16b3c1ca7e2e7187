"""A network's repeated blocks, each compiled on its own, so that compiling does not take longer for a deeper network.

ResNet-32 has fifteen residual blocks of five shapes. Compiled as a whole it is one graph of fifteen blocks; compiled by
blocks it is five graphs of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from lossalign.children.fused.layers import FusedBatchNorm

SAVED = 2
"""Compiling by blocks is worth it if it saves compiling this many blocks."""
VARIANTS = 256
"""Variants of one function that may be compiled: one for each shape of a block, when training and in eval mode."""

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the class that is repeated most often in equal shapes, outermost first; empty if none is worth it.

    A block is a module that holds layers and is no mere container.

    Example:
        >>> from lossalign.models import ResNet
        >>> len(repeated_blocks(ResNet(32))), len(repeated_blocks(ResNet(8)))
        (15, 0)
    """
    classes = dict.fromkeys(type(module) for module in model.modules() if _holds_layers(module))
    found = [list(_outermost(model, kind)) for kind in classes if kind is not type(model)]
    best = max(found, key=_saved, default=[])
    return best if _saved(best) >= SAVED else []


def _holds_layers(module: nn.Module) -> bool:
    return (
        not isinstance(module, _CONTAINERS) and "forward" not in vars(module) and any(True for _ in module.children())
    )


def _outermost(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if type(child) is kind:
            yield child
        else:
            yield from _outermost(child, kind)


def _saved(blocks: list[nn.Module]) -> int:
    """How many of the blocks have the shape of an earlier one."""
    return len(blocks) - len({_shape(block) for block in blocks})


def _shape(block: nn.Module) -> str:
    """What a compiler can tell blocks of one class apart by: settings, and shapes of weights and buffers."""
    parts = []
    for name, module in block.named_modules():
        settings = {k: v for k, v in vars(module).items() if k[0] != "_" and isinstance(v, int | float | str | tuple)}
        settings |= getattr(module, "settings", {})
        tensors = [(k, v) for k, v in (*module._parameters.items(), *module._buffers.items()) if v is not None]
        parts.append((name, type(module).__name__, settings, [(k, tuple(v.shape), v.dtype) for k, v in tensors]))
    return repr(parts)


def compile_blocks(model: nn.Module) -> list[nn.Module]:
    """Compile the repeated blocks of ``model``, and the norms beside them, when they are first called.

    Returns:
        The modules that are compiled now; empty if the network has no repeated blocks. ``uncompile`` undoes it.
    """
    blocks = repeated_blocks(model)
    inside = {id(module) for block in blocks for module in block.modules()}
    beside = [m for m in model.modules() if blocks and isinstance(m, FusedBatchNorm) and id(m) not in inside]
    for module in (*blocks, *beside):
        module.forward = torch.compile(module.forward, dynamic=False)
    return [*blocks, *beside]


def uncompile(modules: Sequence[nn.Module]) -> None:
    """Undo ``compile_blocks``."""
    for module in modules:
        del vars(module)["forward"]


def many_variants() -> AbstractContextManager[None]:
    """Within it, a function may be compiled for as many shapes as networks have."""
    patched: AbstractContextManager[None] = torch._dynamo.config.patch(recompile_limit=VARIANTS)
    return patched
