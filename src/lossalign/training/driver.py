"""Who moves Φ of one model: a policy, or a controller of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from lossalign.control import LARGE, LearningController, Policy, Preset
from lossalign.core import Controller, InputError, Observation, ParameterSpec, import_plug
from lossalign.losses import AdaptiveLoss

Factory = Callable[[ParameterSpec, int, torch.Generator], Controller]
"""(parameters of the loss, number of children, random stream) → a controller of so many children."""
Given: TypeAlias = Literal["auto", "fresh"] | str | Policy | Factory

_CHOICES = (
    "'auto', 'fresh', a lossalign.Policy (Policy.load reads a file), 'module:attribute', or a function "
    "(spec, children, generator) -> Controller"
)

_PROTOCOL = ("phi", "parents", "move", "state_dict", "load_state_dict")
"""Members of a ``Controller``."""


def statistics_name(loss: AdaptiveLoss) -> str:
    """Name of a loss's statistics, which a policy has learned to read: that of the class that defines them.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> class Mine(AlignedLoss):
        ...     pass
        >>> class Others(AlignedLoss):
        ...     def statistics(self, outputs, targets):
        ...         return super().statistics(outputs, targets).sqrt()
        >>> [statistics_name(kind(num_classes=3)) for kind in (AlignedLoss, Mine, Others)]
        ['AlignedLoss', 'AlignedLoss', 'Others']
    """
    owner = next(kind for kind in type(loss).__mro__ if "statistics" in vars(kind))
    return vars(owner).get("statistics_name") or owner.__name__


def make_controller(
    given: Given,
    loss: AdaptiveLoss,
    preset: Preset,
    *,
    learn: bool | None,
    generator: torch.Generator,
    provenance: Mapping[str, Any],
) -> Controller:
    """The controller of one child that ``given`` stands for.

    Args:
        given: see ``Aligner``.
        loss: whose Φ it moves.
        preset: options of a learning controller.
        learn: whether its policy learns; None: unless it is the one that comes with lossalign.
        generator: its random stream.
        provenance: what a fresh policy says of where it was learned.
    """
    if isinstance(given, str) and ":" in given:
        given = import_plug("controller", given)
    if not isinstance(given, str | Policy):
        if not callable(given):
            raise InputError(f"controller: it is of type {type(given).__name__}; give {_CHOICES}.")
        if learn is not None:
            raise InputError(f"learn={learn}: a controller of your own decides that itself; leave it out.")
        return own_controller("controller", given, loss.spec, 1, generator)
    if isinstance(given, str) and given not in ("auto", "fresh"):
        raise InputError(f"controller={given!r}: give {_CHOICES}.")
    pretrained = None
    if given == "auto":
        layout = preset.layout(loss.num_statistics)
        pretrained = Policy.pretrained_for(tuple(loss.spec.slices), layout, statistics_name(loss))
    return LearningController(
        loss.spec,
        children=1,
        preset=preset,
        statistics=loss.num_statistics,
        policy=given if isinstance(given, Policy) else pretrained,
        learn=pretrained is None if learn is None else learn,
        generator=generator,
        loss_name=statistics_name(loss),
        provenance=provenance,
    )


def own_controller(
    what: str, factory: Any, spec: ParameterSpec, children: int, generator: torch.Generator
) -> Controller:
    """A controller of the user's own, checked before anything trains.

    Args:
        what: names it in errors.
        factory: (parameters of the loss, number of children, random stream) → a controller.
        spec: the loss's parameters.
        children: n.
        generator: its random stream.
    """
    try:
        made: Controller = factory(spec, children, generator)
        missing = [name for name in _PROTOCOL if not hasattr(made, name)]
        shape = None if "phi" in missing else tuple(made.phi.shape)
    except Exception as error:  # whatever the user's factory raises
        raise InputError(
            f"{what}: calling it with (spec, children, generator) failed: {type(error).__name__}: {error}"
        ) from error
    if missing:
        renamed = "; step is now called move" if "move" in missing and hasattr(made, "step") else ""
        raise InputError(
            f"{what}: a {type(made).__name__} has no {', '.join(missing)}{renamed}; give it all of a "
            "lossalign.Controller."
        )
    if shape != (children, spec.size):
        raise InputError(f"{what}: its phi has shape {shape}; give [children, parameters] = {(children, spec.size)}.")
    spec.check(made.phi)
    return made


class Driver:
    """A controller of one child. It is no module, so that no optimizer finds the weights of a policy.

    Args:
        controller: of one child.
        spec: the loss's parameters.
    """

    def __init__(self, controller: Controller, spec: ParameterSpec) -> None:
        self.controller, self._spec = controller, spec

    @property
    def phi(self) -> Tensor:
        """Φ for the coming iterations, where the controller computes [P]."""
        return self.controller.phi[0]

    @property
    def policy(self) -> Policy:
        """The policy of a learning controller."""
        if not isinstance(self.controller, LearningController):
            raise InputError(
                f"aligner.policy: the controller is a {type(self.controller).__name__}, which has no policy."
            )
        return self.controller.policy

    def options(self, preset: Preset) -> dict[str, Any]:
        """The options that a state depends on: all but the loss and its groups, with the sizes of the policy's own
        layers; None where there is no policy."""
        learning = isinstance(self.controller, LearningController)
        hidden = self.policy.hidden if learning else None
        used = {name: value for name, value in asdict(preset).items() if name not in ("loss", "groups")}
        return {**used, "policy_hidden": hidden}

    def to(self, device: torch.device) -> None:
        """Φ is on ``device`` now: a policy of many parameters computes there too, one of few stays on the CPU."""
        follows = isinstance(self.controller, LearningController) and self._spec.size >= LARGE
        if follows and self.phi.device != device:
            self.controller.to(device)  # type: ignore[attr-defined]

    def move(self, observation: Observation) -> float | None:
        """Move Φ; the reward of the move before, if there is one."""
        reward = self.controller.move(observation.to(self.phi.device)).get("reward")
        self._spec.check(self.phi)
        return None if reward is None or bool(reward.isnan().any()) else float(reward)

    def held(self) -> list[Tensor]:
        """What must be the same on all ranks."""
        learned = self.policy.state_dict().values() if isinstance(self.controller, LearningController) else ()
        return [self.controller.phi, *learned]

    def state_dict(self) -> dict[str, Any]:
        """The controller's state."""
        return self.controller.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``, wherever its tensors were loaded to."""
        self.controller.load_state_dict(on_cpu(state))


def on_cpu(state: Any) -> Any:
    """A copy of nested dicts and lists whose tensors are on the CPU.

    Example:
        >>> on_cpu({"a": [torch.zeros(1), None]})
        {'a': [tensor([0.]), None]}
    """
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {name: on_cpu(part) for name, part in state.items()}
    if isinstance(state, list | tuple):
        return [on_cpu(part) for part in state]
    return state
