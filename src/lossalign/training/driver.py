"""Who moves Φ of one model: a policy, or a controller of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def statistics_name(loss: AdaptiveLoss) -> str:
    """Name of the class that computes a loss's statistics: what a policy has learned to read.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> class Mine(AlignedLoss):
        ...     pass
        >>> statistics_name(Mine(num_classes=3))
        'AlignedLoss'
    """
    return next(kind.__name__ for kind in type(loss).__mro__ if "statistics" in vars(kind))


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
        return _own(given, loss.spec, learn, generator)
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


def _own(factory: Any, spec: ParameterSpec, learn: bool | None, generator: torch.Generator) -> Controller:
    if not callable(factory):
        raise InputError(f"controller: it is of type {type(factory).__name__}; give {_CHOICES}.")
    if learn is not None:
        raise InputError(f"learn={learn}: a controller of your own decides that itself; leave it out.")
    try:
        made: Controller = factory(spec, 1, generator)
        shape = tuple(made.phi.shape)
    except Exception as error:  # whatever the user's factory raises
        raise InputError(
            f"controller: calling it with (spec, children, generator) failed: {type(error).__name__}: {error}"
        ) from error
    if shape != (1, spec.size):
        raise InputError(
            f"controller: its phi has shape {shape}; give [children, parameters] = {(1, spec.size)} for one model."
        )
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
