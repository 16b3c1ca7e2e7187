"""π_θ(a|s): one small network shared by all loss parameters, so that it moves to any number of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lossalign.control.state import StateLayout
from lossalign.core import VERSION, InputError, log_softmax
from lossalign.core.values import check_value

ACTIONS = 3
"""−β, 0, +β."""

_ROWS = 2**16
"""States that go through the network at once when nothing is learned from them; keeps its hidden layers small."""


_FORMAT = "lossalign-policy"
_VERSION = 2
"""Of the files that ``Policy.save`` writes. Files without a version are of version 1, which has no ``PolicyAbout``."""


@dataclass(frozen=True, kw_only=True)
class PolicyAbout:
    """What a policy was learned on.

    Args:
        groups: groups of loss parameters that it moved.
        loss: name of the statistics it saw; empty: unknown.
        preset: the preset it was learned with, field by field; empty: unknown.
        provenance: anything else of use to a reader, e.g. task, metric and seed, as JSON values.

    Example:
        >>> about = PolicyAbout(groups=("offsets",), loss="AlignedLoss")
        >>> about.fits(("offsets",), "AlignedLoss"), about.fits(("diagonal",), "ClassCorrelationLoss")
        (True, False)
    """

    groups: tuple[str, ...]
    loss: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, groups: Sequence[str], loss: str = "") -> bool:
        """Whether it learned to move all of ``groups``, of the same loss as far as both losses are known."""
        return bool(groups) and set(groups) <= set(self.groups) and (not loss or not self.loss or loss == self.loss)

    def __str__(self) -> str:
        groups = ", ".join(self.groups)
        return f"{self.loss} ({groups})" if self.loss else f"a loss with the groups {groups}"

    @classmethod
    def from_json(cls, described: dict[str, Any]) -> PolicyAbout:
        """The inverse of ``asdict``, from JSON."""
        return cls(**{**described, "groups": tuple(described["groups"])})


class Policy(nn.Module):
    """An MLP from the state of one parameter to the logits of its three actions.

    Args:
        layout: which features the state has.
        hidden: sizes of the hidden layers (ReLU).
        zero_bias: how much likelier, in logits, the action 0 is at the start.
        generator: where the initial weights come from.
        about: what it was learned on, which ``LearningController`` fills in; None: unknown.

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
        about: PolicyAbout | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.about = layout, about
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
        return logits + prior_logits(state) if self.layout.prior else logits

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file that ``Policy.load`` reads: weights, the state's layout, what it was learned on."""
        path = Path(path)
        described = {
            "format": _FORMAT,
            "version": _VERSION,
            "written_by": f"lossalign {VERSION}",
            "hidden": list(self.hidden),
            "layout": asdict(self.layout),
            "about": None if self.about is None else asdict(self.about),
        }
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
            StateLayout(statistics=1, history=10, sensitivity=True, prior=False)
        """
        return cls.load(Path(__file__).with_name("pretrained.safetensors"))

    @classmethod
    def pretrained_for(cls, groups: Sequence[str], layout: StateLayout, loss: str = "") -> Policy | None:
        """That policy, if it was learned for these groups (and loss, if named) on states of this layout; else None."""
        policy = cls.pretrained()
        assert policy.about is not None
        return policy if policy.layout == layout and policy.about.fits(groups, loss) else None

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy that ``save`` wrote, of this version or an earlier one."""
        if not Path(path).is_file():
            raise InputError(f"policy: {path} is not a file; give the .safetensors file that Policy.save wrote.")
        try:
            with safe_open(path, framework="pt") as file:
                described = json.loads((file.metadata() or {})["lossalign"])
                layout, hidden, about = _read_description(described, path)
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                if shapes != _shapes(layout, hidden):  # before anything of the size that it claims is allocated
                    raise ValueError("its tensors are not of the shapes that it says")
                weights = {name: file.get_tensor(name) for name in shapes}
            policy = cls(layout, hidden, generator=torch.Generator(), about=about)
            policy.load_state_dict(weights)
        except InputError:
            raise
        except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
            raise InputError(
                f"policy: {path} is not a lossalign policy ({error.__class__.__name__}); give a file that Policy.save "
                "wrote."
            ) from error
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise InputError(f"policy: {path} holds NaN or inf; give a policy of a run that did not diverge.")
        return policy


def _read_description(
    described: dict[str, Any], path: str | Path
) -> tuple[StateLayout, tuple[int, ...], PolicyAbout | None]:
    """Layout of the state, sizes of the hidden layers, and what a policy was learned on."""
    if described.get("format", _FORMAT) != _FORMAT:
        raise InputError(f"policy: {path} has the format {described['format']!r}; give a file that Policy.save wrote.")
    check_value("version", described.get("version", 1), int)
    if described.get("version", 1) > _VERSION:
        raise InputError(
            f"policy: {path} has format version {described['version']}, this lossalign reads up to {_VERSION}; "
            "install a newer lossalign."
        )
    layout = StateLayout(**described["layout"])
    for name, hint in (("statistics", int), ("history", int), ("sensitivity", bool), ("prior", bool)):
        check_value(f"policy: {path}: {name}", getattr(layout, name), hint)
    hidden = tuple(described["hidden"])
    check_value(f"policy: {path}: hidden", hidden, tuple[int, ...])
    return layout, hidden, described.get("about") and PolicyAbout.from_json(described["about"])


def _shapes(layout: StateLayout, hidden: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a policy's weights by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (inputs, outputs) in enumerate(pairwise((layout.size, *hidden, ACTIONS))):
        shapes |= {f"layers.{2 * number}.weight": (outputs, inputs), f"layers.{2 * number}.bias": (outputs,)}
    return shapes


def prior_logits(states: Tensor) -> Tensor:
    """What a rule adds to the logits of the actions −β, 0, +β: (−l, 0, l), l the last feature of the states [..., F].

    Example:
        >>> prior_logits(torch.tensor([[0.5, 2.0]]))
        tensor([[-2.,  0.,  2.]])
    """
    return states[..., -1:] * torch.arange(-1.0, 2.0, device=states.device)


def policy_logits(weights: Sequence[Tensor], states: Tensor, prior: bool = False) -> Tensor:
    """Logits of G policies of one architecture, each on its own states.

    Args:
        weights: of their layers in order, weight [G, out, in] and bias [G, out] in turn.
        states: [G, R, F].
        prior: whether the last feature is the logit of a rule, on which the policies learn a residual.

    Returns:
        [G, R, 3].
    """
    x = states
    for number in range(0, len(weights), 2):
        x = x.relu() if number else x
        x = torch.baddbmm(weights[number + 1][:, None], x, weights[number].transpose(1, 2))
    return x + prior_logits(states) if prior else x


class PolicyStack:
    """G policies of one architecture, computed in one pass.

    They stay what they are: their weights are views of those of the stack.

    Args:
        policies: the policies.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(policies)
        self.prior = self.policies[0].layout.prior
        self._together: list[Tensor] = []
        self._join()

    @property
    def weights(self) -> list[Tensor]:
        """Weight [G, out, in] and bias [G, out] of each layer in turn; writing to them changes the policies."""
        if len(self.policies) == 1:  # views of its own, so that they follow a policy that is copied with the stack
            return [weight.detach()[None] for weight in self.policies[0].parameters()]
        return self._together

    def _join(self) -> None:
        if len(self.policies) == 1:
            return
        self._together = []
        for same in zip(*(policy.parameters() for policy in self.policies), strict=True):
            self._together.append(torch.stack([weight.detach() for weight in same]))
            for weight, part in zip(same, self._together[-1], strict=True):
                weight.data = part

    def to(self, device: torch.device | str) -> None:
        """Move all policies to ``device``."""
        for policy in self.policies:
            policy.to(device)
        self._join()

    @torch.no_grad()
    def log_probabilities(self, states: Tensor) -> Tensor:
        """log π(a|s) [G, n, P, 3] of states [G, n, P, F], without gradients."""
        weights, rows = self.weights, max(1, _ROWS // len(self.policies))
        parts = [log_softmax(policy_logits(weights, some, self.prior)) for some in states.flatten(1, 2).split(rows, 1)]
        return torch.cat(parts, 1).view(*states.shape[:-1], ACTIONS)

    def state_dict(self) -> list[dict[str, Tensor]]:
        """The weights of each policy."""
        return [policy.state_dict() for policy in self.policies]

    def load_state_dict(self, state: list[dict[str, Tensor]]) -> None:
        """Load the weights of each policy, in place."""
        for policy, weights in zip(self.policies, state, strict=True):
            policy.load_state_dict(weights)
