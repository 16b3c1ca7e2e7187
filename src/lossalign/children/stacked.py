"""All children at once: their weights are stacked [N, …], with one forward pass and one update for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from lossalign.children.base import CHUNK, Children, Losses, Member, Weights, autocast, blocks, check_state
from lossalign.children.feed import Feed
from lossalign.children.optimisation import Optimisation, average_, average_decay, learning_rate, sgd_
from lossalign.core import InputError, lifting

AT_ONCE = 2**27
"""Bytes of inputs of all children in one forward pass of an evaluation; activations are many times as large."""

KEPT = 2**30
"""Bytes of stacked validation inputs that are kept; more are stacked whenever they are evaluated."""

State = dict[str, Tensor]
"""Weights and buffers of all children by name, each [N, …]."""


class Lift(Protocol):
    """Computes N children with the model of one."""

    state: State
    """Initial weights and buffers."""
    trained: list[str]
    """Names in ``state`` of the trained weights."""
    names: dict[str, str]
    """For every entry of a child's ``state_dict``, its name in ``state``: tied weights are stacked once."""

    def train(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs [N, B, …] in training mode of inputs [N, B, …]; changes the buffers of ``state``."""
        ...

    def evaluate(self, state: State, inputs: Tensor, shared: bool) -> Tensor:
        """Outputs [N, V, …] in eval mode of inputs [N, V, …], or [V, …] that all children share."""
        ...

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        """Run ``work()``, some iterations of training; torch's global random stream is left as it was."""
        ...

    def compile_blocks(self) -> bool:
        """Compile the network's repeated blocks, each on its own; False if it has none, or cannot."""
        ...

    def uncompile_blocks(self) -> None:
        """Undo ``compile_blocks``."""
        ...

    def at(self, iteration: int) -> None:
        """Set the iteration of the next call of ``train``."""
        ...

    def random_states(self) -> list[dict[str, Tensor]]:
        """The random state of each child."""
        ...

    def load_random_states(self, states: list[dict[str, Tensor]]) -> None:
        """Resume from these random states, if this kind of lift saved them."""
        ...


class StackedChildren(Children):
    """N children trained together; results equal those of ``SequentialChildren`` up to rounding.

    Children with the same seed share one batch stream. Dropout draws differ from the sequential engine's.

    Args:
        members: the children, all of one architecture.
        losses: the loss of one child, for all of them or for each.
        optimisation: the same for all.
        device: the device they train on.
        lift: how they are computed together.
    """

    def __init__(
        self,
        members: Sequence[Member],
        losses: Losses,
        optimisation: Optimisation,
        device: torch.device | str = "cpu",
        *,
        lift: Callable[[Sequence[Member], torch.device], Lift],
    ) -> None:
        if not members:
            raise InputError("children=0: train at least 1.")
        self.count, self.iteration = len(members), 0
        self._blocks = blocks(losses, len(members))
        self._optimisation, self._device = optimisation, torch.device(device)
        self._make_lift, self._lift = lift, lift(members, self._device)
        self._state = self._lift.state
        self._weights = [self._state[name].requires_grad_() for name in self._lift.trained]
        self._momenta = [torch.zeros_like(weight) for weight in self._weights]
        self._averaged = {name: tensor.detach().clone() for name, tensor in self._state.items()}
        self._best = {name: tensor.clone() for name, tensor in self._averaged.items()}
        self._feed = Feed(members, self._device)
        self._members = members
        self._kept: list[tuple[list[Tensor], Tensor]] = []

    def advance(self, iterations: int, phi: Tensor) -> Tensor:
        """Train all children together; see ``Children.advance``."""
        phi = phi.to(self._device)
        try:
            with lifting("loss"):
                return (self._lift.run(lambda: self._train(iterations, phi)) / iterations).cpu()
        except torch.OutOfMemoryError:
            pass  # the memory of the failed pass is free only after this block
        raise InputError(self._too_many(phi[:1]))

    def _too_many(self, phi: Tensor) -> str:
        """The error message when memory runs out, with an estimate of how many children fit."""
        torch.cuda.empty_cache()
        used, (_, total) = torch.cuda.memory_allocated(self._device), torch.cuda.mem_get_info(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        fit = 0
        try:
            loss = self._blocks[0].loss
            one = StackedChildren(self._members[:1], loss, self._optimisation, self._device, lift=self._make_lift)
            one._train(1, phi)
            fit = int(0.9 * total / max(1, torch.cuda.max_memory_allocated(self._device) - used))
        except torch.OutOfMemoryError:
            pass
        if not fit:
            advice = "not even one fits: use a smaller model"
        elif fit < self.count:
            advice = f"about {fit} would fit: train fewer"
        else:
            advice = f"about {fit} would fit in a free GPU: end other processes that use it, train fewer"
        return (
            f"children: {self.count} at once (of all methods and seeds) do not fit into {total / 2**30:.0f} GB of GPU "
            f"memory; {advice}, or use smaller batches."
        )

    def _train(self, iterations: int, phi: Tensor) -> Tensor:
        """Train for ``iterations``; return summed losses [N]."""
        total = torch.zeros(self.count, device=self._device)
        for inputs, targets in self._feed.batches(iterations):
            self._lift.at(self.iteration)
            losses = self._losses(inputs, targets, phi)
            grads = torch.autograd.grad(losses.sum(), self._weights, materialize_grads=True)
            sgd_(
                self._weights,
                grads,
                self._momenta,
                self._optimisation,
                learning_rate(self._optimisation, self.iteration),
            )
            average_(self._averaged, self._state, average_decay(self._optimisation.average_decay, self.iteration))
            self.iteration += 1
            total += losses.detach()
        return total

    def _losses(self, inputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """Mean loss of every child on its batch [N]."""
        return self._losses_of(self._trained_outputs(inputs), targets, phi)

    def _trained_outputs(self, inputs: Tensor) -> Tensor:
        """Outputs of every child in training mode [N, B, …]."""
        with autocast(self._device, self._optimisation.precision):
            return self._lift.train(self._state, inputs)

    def _losses_of(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """Mean loss of every child [N], of its outputs."""
        losses = []
        for block in self._blocks:
            rows = block.rows
            losses.append(vmap(block.loss)(outputs[rows], targets[rows], phi[rows]).mean(1))
        return torch.cat(losses)

    @torch.no_grad()
    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …]."""
        state, size = self._which(weights), self._chunk(inputs[0])
        if all(tensor is inputs[0] for tensor in inputs):
            parts = [self._evaluate(state, chunk, shared=True) for chunk in inputs[0].split(size)]
        else:
            parts = [self._evaluate(state, chunk, shared=False) for chunk in self._stacked(inputs, size)]
        return torch.cat(parts, 1)

    def _chunk(self, inputs: Tensor) -> int:
        """Samples of each child in one forward pass."""
        return max(1, min(CHUNK, AT_ONCE // (self.count * max(1, inputs[0].nbytes))))

    def _stacked(self, inputs: Sequence[Tensor], size: int) -> Iterator[Tensor]:
        """The children's own inputs, stacked [N, v, …]; sets that are evaluated repeatedly are stacked once."""
        if sum(tensor.nbytes for tensor in inputs) > KEPT:
            yield from (torch.stack(some) for some in zip(*(tensor.split(size) for tensor in inputs), strict=True))
            return
        same = (whole for sets, whole in self._kept if all(a is b for a, b in zip(sets, inputs, strict=True)))
        stacked = next(same, None)
        if stacked is None:
            stacked = torch.stack(list(inputs))
            self._kept = [(list(inputs), stacked), *self._kept[:1]]
        yield from stacked.split(size, 1)

    def _evaluate(self, state: State, inputs: Tensor, shared: bool) -> Tensor:
        with autocast(self._device, self._optimisation.precision):
            return self._lift.evaluate(state, inputs, shared).float()

    def _which(self, weights: Weights) -> State:
        if weights == "raw":
            return self._state
        return self._averaged if weights == "averaged" else self._best

    @torch.no_grad()
    def keep_best(self, better: Tensor) -> None:
        """Copy averaged weights to best where ``better`` [N] is true."""
        chosen = better.to(self._device)
        for name, best in self._best.items():
            mask = chosen.view(-1, *[1] * (best.ndim - 1))
            best.copy_(torch.where(mask, self._averaged[name], best))

    def child_state(self, child: int, weights: Weights) -> dict[str, Tensor]:
        """A plain ``state_dict`` of one child."""
        state = self._which(weights)
        return {name: state[stacked][child].detach() for name, stacked in self._lift.names.items()}

    def training_state(self, child: int) -> dict[str, dict[str, Tensor]]:
        """Weights, averages and momenta of one child."""
        return {
            "weights": self.child_state(child, "raw"),
            "averaged": self.child_state(child, "averaged"),
            "momenta": {n: m[child] for n, m in zip(self._lift.trained, self._momenta, strict=True)},
        }

    @torch.no_grad()
    def load_training_state(self, child: int, state: dict[str, dict[str, Tensor]]) -> None:
        """Load a training state into one child; see ``Children.load_training_state``."""
        self._load(self._state, child, state["weights"])
        self._load(self._averaged, child, state["averaged"])
        for name, momentum in zip(self._lift.trained, self._momenta, strict=True):
            momentum[child].copy_(state["momenta"][name])

    @torch.no_grad()
    def inherit(self, parents: Tensor) -> None:
        """Copy training states between children; see ``Children.inherit``."""
        if torch.equal(parents, torch.arange(self.count)):
            return
        at = parents.to(self._device)
        for tensor in (*self._state.values(), *self._averaged.values(), *self._momenta):
            tensor.copy_(tensor[at])

    def release_memory(self) -> None:
        """Free the stacked inputs and return unused memory to the GPU."""
        self._kept = []
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _load(self, mine: State, child: int, theirs: dict[str, Tensor]) -> None:
        for name, stacked in self._lift.names.items():
            mine[stacked][child].copy_(theirs[name])

    def state_dict(self) -> dict[str, Any]:
        """Every child's weights, momenta, averages, best weights, stream and random state."""
        random, streams = self._lift.random_states(), self._feed.states()
        return {
            "iteration": self.iteration,
            "members": [
                {
                    **self.training_state(child),
                    "best": self.child_state(child, "best"),
                    "stream": streams[child],
                    "rng": random[child],
                }
                for child in range(self.count)
            ],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``; with the state of another engine, dropout masks differ."""
        check_state(state, self.count)
        self.iteration = state["iteration"]
        for child, member in enumerate(state["members"]):
            self.load_training_state(child, member)
            self._load(self._best, child, member["best"])
        self._feed.load_states([member["stream"] for member in state["members"]])
        self._lift.load_random_states([member["rng"] for member in state["members"]])
