"""N children as one network of fused layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lossalign.children.base import Device, Losses, Member, Members
from lossalign.children.fused.blocks import compile_blocks, uncompile
from lossalign.children.fused.convert import dropouts, fuse
from lossalign.children.fused.layers import FusedConv
from lossalign.children.optimisation import Optimisation
from lossalign.children.stacked import StackedChildren, State
from lossalign.children.vmapped import stacked_names


class FusedLift:
    """One fused module, called with the current, the averaged or the best weights."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self._seeds = torch.tensor([member.seed for member in members], device=device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        module = fuse([member.model for member in members]).to(device)
        for dropout in dropouts(module):
            dropout.seeds, dropout.clock = self._seeds, self._clock
        if device.type == "cuda":
            for layer in module.modules():
                if isinstance(layer, FusedConv):
                    layer.use_own_kernel()
        parameters = dict(module.named_parameters())
        names = stacked_names(members[0].model)
        kept = {**parameters, **dict(module.named_buffers())}
        self.state: State = {name: kept[name].detach() for name in dict.fromkeys(names.values())}
        self.trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
        self.names = names
        self._count = len(members)
        self._compiled: list[nn.Module] = []
        self._training = module.train()
        self._evaluating = copy.deepcopy(module, {id(tensor): tensor for tensor in kept.values()}).eval()

    def train(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs [N, B, …] in training mode."""
        return self._call(self._training, state, inputs)

    def evaluate(self, state: State, inputs: Tensor, shared: bool) -> Tensor:
        """Outputs [N, V, …] in eval mode."""
        return self._call(self._evaluating, state, inputs.expand(self._count, *inputs.shape) if shared else inputs)

    def _call(self, module: nn.Module, state: State, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, state, (inputs.flatten(0, 1),))
        return outputs.view(self._count, -1, *outputs.shape[1:])

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        """Run ``work()``; fused layers do not use torch's random stream."""
        return work()

    def compile_blocks(self) -> bool:
        """Compile the network's repeated blocks, in training and in eval mode; False if it has none."""
        self.uncompile_blocks()
        self._compiled = [module for own in (self._training, self._evaluating) for module in compile_blocks(own)]
        return bool(self._compiled)

    def uncompile_blocks(self) -> None:
        """Undo ``compile_blocks``."""
        uncompile(self._compiled)
        self._compiled = []

    def at(self, iteration: int) -> None:
        """Set the iteration that dropout draws for."""
        self._clock.fill_(iteration)

    def random_states(self) -> list[dict[str, Tensor]]:
        """Each child's seed: masks follow from it and the iteration."""
        return [{"seed": seed} for seed in self._seeds.cpu()]

    def load_random_states(self, states: list[dict[str, Tensor]]) -> None:
        """Use the seeds of these states."""
        if "seed" in states[0]:
            self._seeds.copy_(torch.stack([state["seed"] for state in states]))


class FusedChildren(StackedChildren):
    """``StackedChildren`` computed as one fused network."""

    def __init__(self, members: Members, losses: Losses, optimisation: Optimisation, device: Device = "cpu") -> None:
        super().__init__(members, losses, optimisation, device, lift=FusedLift)
