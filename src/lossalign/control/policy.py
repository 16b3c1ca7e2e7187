"""π_θ(a|s): one small network shared by all loss parameters, so that it moves to any number of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lossalign.control.state import StateLayout
from lossalign.core import InputError

ACTIONS = 3
"""−β, 0, +β."""

_ROWS = 2**16
"""States that go through the network at once when nothing is learned from them; keeps its hidden layers small."""


class Policy(nn.Module):
    """An MLP from the state of one parameter to the logits of its three actions.

    Args:
        layout: which features the state has.
        hidden: sizes of the hidden layers (ReLU).
        zero_bias: how much likelier, in logits, the action 0 is at the start.
        generator: where the initial weights come from.

    Example:
        >>> policy = Policy(StateLayout(statistics=1), generator=torch.Generator().manual_seed(0))
        >>> policy(torch.zeros(20, 10, policy.layout.size)).shape
        torch.Size([20, 10, 3])
    """

    def __init__(
        self,
        layout: StateLayout,
        hidden: Sequence[int] = (32, 32),
        zero_bias: float = 0.0,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.hidden = tuple(hidden)
        sizes = (layout.size, *self.hidden, ACTIONS)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
            with torch.no_grad():
                for tensor in (linear.weight, linear.bias):
                    tensor.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
            layers += [linear, nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        with torch.no_grad():
            self.layers[-1].bias[1] += zero_bias  # type: ignore[operator, index]

    def forward(self, state: Tensor) -> Tensor:
        """Logits [..., 3] of the actions −β, 0, +β, from states [..., F]."""
        logits: Tensor = self.layers(state)
        return logits

    @torch.no_grad()
    def log_probabilities(self, states: Tensor) -> Tensor:
        """log π(a|s) [..., 3] of states [..., F], without gradients."""
        parts = [torch.log_softmax(self(some), -1) for some in states.flatten(0, -2).split(_ROWS)]
        return torch.cat(parts).view(*states.shape[:-1], ACTIONS)

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file that ``Policy.load`` reads; it holds weights and the state's layout."""
        path = Path(path)
        described = {"format": "lossalign-policy", "hidden": list(self.hidden), "layout": asdict(self.layout)}
        weights = {name: tensor.detach().clone().contiguous() for name, tensor in self.state_dict().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(weights, path, metadata={"lossalign": json.dumps(described)})
        return path

    @classmethod
    def pretrained(cls) -> Policy:
        """The policy that comes with lossalign: twenty children learned it on long-tailed digits, rewarded by balanced
        error, moving the offsets of ``AlignedLoss``. It knows nothing of how many classes there are.

        Example:
            >>> Policy.pretrained().layout
            StateLayout(statistics=1, history=10, sensitivity=True)
        """
        return cls.load(Path(__file__).with_name("pretrained.safetensors"))

    @classmethod
    def pretrained_for(cls, groups: Sequence[str], layout: StateLayout) -> Policy | None:
        """That policy, if it was learned for these groups of parameters on states of this layout; else None."""
        policy = cls.pretrained()
        return policy if tuple(groups) == ("offsets",) and policy.layout == layout else None

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy that ``save`` wrote."""
        if not Path(path).is_file():
            raise InputError(f"policy: {path} is not a file; give the .safetensors file that Policy.save wrote.")
        try:
            with safe_open(path, framework="pt") as file:
                described = json.loads((file.metadata() or {})["lossalign"])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            policy = cls(StateLayout(**described["layout"]), described["hidden"], generator=torch.Generator())
            policy.load_state_dict(weights)
        except (SafetensorError, KeyError, TypeError, RuntimeError, json.JSONDecodeError) as error:
            raise InputError(
                f"policy: {path} is not a lossalign policy ({error.__class__.__name__}); give a file that Policy.save "
                "wrote."
            ) from error
        return policy
