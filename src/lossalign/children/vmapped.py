"""All children in one call: ``torch.func.vmap`` over stacked weights. Pays for tiny networks on CPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from lossalign.children.base import (
    CHUNK,
    Children,
    IsolatedRng,
    LossFunction,
    Member,
    Stream,
    Weights,
    autocast,
    check_state,
    shared_inputs,
)
from lossalign.children.recipe import Recipe, average_, average_decay, learning_rate, sgd_
from lossalign.core import InputError

Stacked = dict[str, Tensor]
"""Weights or buffers of all children by name, each [N, …]; a frozen weight is a buffer."""


class VmapChildren(Children):
    """N children trained together; the same numbers as ``SequentialChildren`` to rounding.

    Children with the same seed share one batch stream. Dropout draws differ from the sequential engine's.
    """

    def __init__(
        self, members: Sequence[Member], loss: LossFunction, recipe: Recipe, device: torch.device | str = "cpu"
    ) -> None:
        if not members:
            raise InputError("children=0: train at least 1.")
        self.count, self.iteration = len(members), 0
        self._loss, self._recipe, self._device = loss, recipe, torch.device(device)
        self._module = copy.deepcopy(members[0].model)
        weights, buffers = stack_module_state([member.model for member in members])
        self._names = _stacked_names(members[0].model)
        trained = [name for name, tensor in weights.items() if tensor.requires_grad]
        stacked = {name: tensor.detach().to(self._device) for name, tensor in (weights | buffers).items()}
        self._weights: Stacked = {name: stacked.pop(name) for name in trained}
        self._buffers: Stacked = stacked
        self._momenta = [torch.zeros_like(tensor) for tensor in self._weights.values()]
        self._averaged = {name: tensor.clone() for name, tensor in self._state().items()}
        self._best = {name: tensor.clone() for name, tensor in self._averaged.items()}
        seeds = list(dict.fromkeys(member.seed for member in members))
        makers = {member.seed: member.stream for member in members}
        self._streams: list[Stream] = [makers[seed]() for seed in seeds]
        self._stream_of = torch.tensor([seeds.index(member.seed) for member in members], device=self._device)
        self._rng = IsolatedRng(seeds[0], self._device)

    def _state(self) -> Stacked:
        return {**self._weights, **self._buffers}

    def advance(self, iterations: int, phi: Tensor) -> Tensor:
        """Train all children together; see ``Children.advance``."""
        phi = phi.to(self._device)
        self._module.train()
        losses = self._rng.run(lambda: torch.stack([self._iterate(phi) for _ in range(iterations)]).mean(0))
        return losses.cpu()

    def _iterate(self, phi: Tensor) -> Tensor:
        def loss(weights: Stacked, buffers: Stacked, inputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
            outputs = functional_call(self._module, (weights, buffers), (inputs,))
            return self._loss(outputs, targets, phi).mean()

        inputs, targets = self._batches()
        step = vmap(grad_and_value(loss), randomness="different")
        with autocast(self._device, self._recipe.precision):
            grads, losses = step(self._weights, self._buffers, inputs, targets, phi)
        rate = learning_rate(self._recipe, self.iteration)
        sgd_(list(self._weights.values()), [grads[n] for n in self._weights], self._momenta, self._recipe, rate)
        average_(self._averaged, self._state(), average_decay(self._recipe.average, self.iteration))
        self.iteration += 1
        return torch.as_tensor(losses)

    def _batches(self) -> tuple[Tensor, Tensor]:
        batches = [stream.next() for stream in self._streams]
        inputs, targets = torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
        if len(self._streams) == self.count:
            return inputs, targets
        return inputs[self._stream_of], targets[self._stream_of]

    @torch.no_grad()
    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …]."""
        self._module.eval()
        state = self._which(weights)

        def forward(state: Stacked, inputs: Tensor) -> Tensor:
            with autocast(self._device, self._recipe.precision):
                outputs: Tensor = functional_call(self._module, state, (inputs,))
            return outputs.float()

        parts = []
        for tensor, children in shared_inputs(inputs):
            some = {name: value[children] for name, value in state.items()}
            chunks = [vmap(forward, in_dims=(0, None))(some, chunk) for chunk in tensor.split(CHUNK)]
            parts.append(torch.cat(chunks, 1))
        return torch.cat(parts)

    def _which(self, weights: Weights) -> Stacked:
        if weights == "raw":
            return self._state()
        return self._averaged if weights == "averaged" else self._best

    def keep_best(self, better: Tensor) -> None:
        """Copy averaged weights to best where ``better`` [N]."""
        chosen = better.to(self._device)
        for name, best in self._best.items():
            mask = chosen.view(-1, *[1] * (best.ndim - 1))
            torch.where(mask, self._averaged[name], best, out=best)

    def child_state(self, child: int, weights: Weights) -> dict[str, Tensor]:
        """A plain ``state_dict`` of one child."""
        state = self._which(weights)
        return {name: state[stacked][child] for name, stacked in self._names.items()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, momenta, averages, best weights, streams and the random state."""
        return {
            "engine": "vmap",
            "children": self.count,
            "iteration": self.iteration,
            "weights": self._weights,
            "buffers": self._buffers,
            "momenta": self._momenta,
            "averaged": self._averaged,
            "best": self._best,
            "streams": [stream.state_dict() for stream in self._streams],
            "rng": self._rng.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly from ``state``."""
        check_state(state, "vmap", self.count)
        to = self._device
        self.iteration = state["iteration"]
        for mine, theirs in (
            (self._weights, state["weights"]),
            (self._buffers, state["buffers"]),
            (self._averaged, state["averaged"]),
            (self._best, state["best"]),
        ):
            mine.update({name: tensor.to(to, copy=True) for name, tensor in theirs.items()})
        self._momenta = [momentum.to(to, copy=True) for momentum in state["momenta"]]
        for stream, at in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(at)
        self._rng.state = {name: tensor.cpu().clone() for name, tensor in state["rng"].items()}


def _stacked_names(model: nn.Module) -> dict[str, str]:
    """For every entry of a ``state_dict``, under which name its tensor is stacked: tied weights are stacked once."""
    name_of = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    return {name: name_of[id(tensor)] for name, tensor in model.state_dict(keep_vars=True).items()}
