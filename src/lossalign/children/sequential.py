"""The reference engine: plain modules that train one after another."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lossalign.children.base import (
    CHUNK,
    Children,
    Device,
    IsolatedRng,
    Losses,
    Members,
    Weights,
    autocast,
    blocks,
    check_state,
    copied,
)
from lossalign.children.optimisation import Optimisation, average_, average_decay, learning_rate, sgd_
from lossalign.core import InputError


class SequentialChildren(Children):
    """N children trained in turn, K iterations each."""

    def __init__(self, members: Members, losses: Losses, optimisation: Optimisation, device: Device = "cpu") -> None:
        if not members:
            raise InputError("children=0: train at least 1.")
        self.count, self.iteration = len(members), 0
        self._losses = [block.loss for block in blocks(losses, self.count) for _ in range(self.count)[block.rows]]
        self._optimisation, self._device = optimisation, torch.device(device)
        self._models = [copy.deepcopy(member.model).to(self._device) for member in members]
        self._streams = [member.stream() for member in members]
        self._rngs = [IsolatedRng(member.seed, self._device) for member in members]
        self._momenta = [[torch.zeros_like(p) for p in _trained(model)] for model in self._models]
        self._averaged: list[dict[str, Tensor]] = [copied(dict(model.state_dict())) for model in self._models]
        self._best: list[dict[str, Tensor]] = copied(self._averaged)

    def advance(self, iterations: int, phi: Tensor) -> Tensor:
        """Train child after child; see ``Children.advance``."""
        phi = phi.to(self._device)

        def trained(child: int) -> Tensor:
            return self._rngs[child].run(lambda: self._train(child, iterations, phi[child]))

        losses = torch.stack([trained(child) for child in range(self.count)]).cpu()
        self.iteration += iterations
        return losses

    def _train(self, child: int, iterations: int, phi: Tensor) -> Tensor:
        model, stream = self._models[child].train(), self._streams[child]
        weights = _trained(model)
        total = torch.zeros((), device=self._device)
        for iteration in range(self.iteration, self.iteration + iterations):
            inputs, targets = stream.next()
            with autocast(self._device, self._optimisation.precision):
                outputs = model(inputs)
            loss = self._losses[child](outputs, targets, phi).mean()
            grads = torch.autograd.grad(loss, weights, materialize_grads=True)
            sgd_(weights, grads, self._momenta[child], self._optimisation, learning_rate(self._optimisation, iteration))
            average_(
                self._averaged[child], model.state_dict(), average_decay(self._optimisation.average_decay, iteration)
            )
            total += loss.detach()
        return total / iterations

    @torch.no_grad()
    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …]."""
        return torch.stack([self._outputs(child, inputs[child], weights) for child in range(self.count)])

    def _outputs(self, child: int, inputs: Tensor, weights: Weights) -> Tensor:
        model, state = self._models[child].eval(), self.child_state(child, weights)
        with autocast(self._device, self._optimisation.precision):
            parts = [
                torch.func.functional_call(model, state, (chunk,), tie_weights=False) for chunk in inputs.split(CHUNK)
            ]
        return torch.cat(parts).float()

    def keep_best(self, better: Tensor) -> None:
        """Copy averaged weights to best where ``better`` [N] is true."""
        for child in better.nonzero().flatten().tolist():
            self._best[child] = copied(self._averaged[child])

    def child_state(self, child: int, weights: Weights) -> dict[str, Tensor]:
        """A plain ``state_dict`` of one child."""
        if weights == "raw":
            return _detached(self._models[child].state_dict())
        return self._averaged[child] if weights == "averaged" else self._best[child]

    def training_state(self, child: int) -> dict[str, dict[str, Tensor]]:
        """Weights, averages and momenta of one child."""
        return {
            "weights": self.child_state(child, "raw"),
            "averaged": self._averaged[child],
            "momenta": dict(zip(_trained_names(self._models[child]), self._momenta[child], strict=True)),
        }

    def load_training_state(self, child: int, state: dict[str, dict[str, Tensor]]) -> None:
        """Load a training state into one child; see ``Children.load_training_state``."""
        self._models[child].load_state_dict(state["weights"])
        self._averaged[child] = copied(state["averaged"], self._device)
        momenta = [state["momenta"][name] for name in _trained_names(self._models[child])]
        self._momenta[child] = copied(momenta, self._device)

    def release_memory(self) -> None:
        """Does nothing: no memory is held between iterations."""

    def state_dict(self) -> dict[str, Any]:
        """Every child's weights, momenta, averages, best weights, stream and random state."""
        return {
            "iteration": self.iteration,
            "members": [
                {
                    **self.training_state(child),
                    "best": self._best[child],
                    "stream": self._streams[child].state_dict(),
                    "rng": self._rngs[child].state,
                }
                for child in range(self.count)
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``; with the state of another engine, dropout masks differ."""
        check_state(state, self.count)
        self.iteration = state["iteration"]
        for child, member in enumerate(state["members"]):
            self.load_training_state(child, member)
            self._best[child] = copied(member["best"], self._device)
            self._streams[child].load_state_dict(copy.deepcopy(member["stream"]))
            if member["rng"].keys() == self._rngs[child].state.keys():
                self._rngs[child].state = {name: t.cpu().clone() for name, t in member["rng"].items()}


def _trained_names(model: nn.Module) -> list[str]:
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def _trained(model: nn.Module) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _detached(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in state.items()}
