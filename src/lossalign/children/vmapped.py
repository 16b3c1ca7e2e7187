"""N children by ``torch.func.vmap``: any model without branches on values. Faster for tiny networks on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from lossalign.children.base import Device, IsolatedRng, Losses, Member, Members
from lossalign.children.optimisation import Optimisation
from lossalign.children.stacked import StackedChildren, State

Lifted = Callable[[State, Tensor], Tensor]


def _call(module: nn.Module, state: State, inputs: Tensor) -> Tensor:
    outputs: Tensor = functional_call(module, state, (inputs,))
    return outputs


class VmapLift:
    """One module, called with the weights of all children."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        weights, buffers = stack_module_state([member.model for member in members])
        self.state: State = {name: tensor.detach().to(device) for name, tensor in (weights | buffers).items()}
        self.trained = [name for name, tensor in weights.items() if tensor.requires_grad]
        self.names = stacked_names(members[0].model)
        self._training = copy.deepcopy(members[0].model).to(device).train()
        self._evaluating = copy.deepcopy(self._training).eval()
        self._rng = IsolatedRng(members[0].seed, device)
        self._count = len(members)

    def train(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs [N, B, …] in training mode."""
        call: Lifted = vmap(partial(_call, self._training), randomness="different")
        return call(state, inputs)

    def evaluate(self, state: State, inputs: Tensor, shared: bool) -> Tensor:
        """Outputs [N, V, …] in eval mode."""
        call: Lifted = vmap(partial(_call, self._evaluating), in_dims=(0, None if shared else 0))
        return call(state, inputs)

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        """Run ``work()`` on one random stream for all children."""
        return self._rng.run(work)

    def compile_blocks(self) -> bool:
        """False: what runs under vmap is compiled with it, as a whole."""
        return False

    def uncompile_blocks(self) -> None:
        """Does nothing."""

    def at(self, iteration: int) -> None:
        """Does nothing: the random stream continues by itself."""

    def random_states(self) -> list[dict[str, Tensor]]:
        """The state of the random stream, for every child."""
        return [self._rng.state] * self._count

    def load_random_states(self, states: list[dict[str, Tensor]]) -> None:
        """Resume the random stream."""
        if states[0].keys() == self._rng.state.keys():
            self._rng.state = {name: tensor.cpu().clone() for name, tensor in states[0].items()}


class VmapChildren(StackedChildren):
    """``StackedChildren`` by vmap."""

    def __init__(self, members: Members, losses: Losses, optimisation: Optimisation, device: Device = "cpu") -> None:
        super().__init__(members, losses, optimisation, device, lift=VmapLift)


def stacked_names(model: nn.Module) -> dict[str, str]:
    """The name under which each entry of a ``state_dict`` is stacked: tied weights are stacked once."""
    name_of = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    return {name: name_of[id(tensor)] for name, tensor in model.state_dict(keep_vars=True).items()}
