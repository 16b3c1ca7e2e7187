"""Algorithm 1 of the paper, for any number of children and any controllers. Here the ring closes:

children → metrics and statistics → controllers → Φ → loss → children
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.children import Children, Weights
from lossalign.control import Preset, discounted_metric, evaluation_points
from lossalign.core import InputError, NonFiniteError, Observation, wants
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, error
from lossalign.training.clock import Clock
from lossalign.training.diverged import Diverged
from lossalign.training.notices import Once
from lossalign.training.observe import (
    LabelledSet,
    check_finite,
    check_validation,
    measure,
    observe,
    sensitivity_cost,
)
from lossalign.training.parts import Owner, Part
from lossalign.training.past import Past

_MINIBATCH = 128


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step led to, for all N children."""

    step: int
    iteration: int
    loss: Tensor
    """Mean training loss [N]."""
    metric: Tensor
    """M of Eq. 4 on the validation split, in the metric's own direction [N]."""
    selection: Tensor
    """The metric of the averaged weights on the selection split [N]."""
    logs: dict[str, Tensor] = field(default_factory=dict)
    """What controllers log: reward, entropy, reset [N]; NaN where one logs nothing. With a child that diverged also who
    was restored, and who retired."""


class Population:
    """N children, the controllers that move their Φ, and the sets they are judged on.

    Args:
        children: who trains.
        parts: by name, which children train under which loss, and who moves their Φ.
        metric: what the children are judged by.
        validation: each child's validation set; it moves Φ.
        selection: each child's selection set; it picks the best weights, for every method alike.
        preset: how M is measured.
        every: K, iterations of a step.
        steps: how many.
        generator: for ``minibatch`` evaluation.
        tolerant: whether a child whose numbers stop being finite is set aside (``failed``), instead of stopping all.
        restores: how often such a child gets its best weights and its initial Φ back; 0: it stays set aside.
    """

    def __init__(
        self,
        children: Children,
        parts: Mapping[str, Part],
        *,
        metric: Metric,
        validation: Sequence[LabelledSet],
        selection: Sequence[LabelledSet],
        preset: Preset,
        every: int,
        steps: int,
        generator: torch.Generator,
        tolerant: bool = False,
        restores: int = 0,
    ) -> None:
        self._check_owners(parts, children.count)
        for name, sets in (("validation", validation), ("selection", selection)):
            if len(sets) != children.count or len({len(s.targets) for s in sets}) != 1:
                raise InputError(f"{name}: give one set for each of {children.count} children, all of one size.")
            for part in parts.values():
                for some in {id(s): s for s in sets[part.rows]}.values():
                    check_validation(part.loss, some.targets, name)
        self.children, self.parts, self.steps, self.step_count = children, dict(parts), steps, 0
        self._metric, self._preset, self._every = metric, preset, every
        self._validation, self._selection, self._generator = validation, selection, generator
        self._validation_targets = torch.stack([s.targets for s in validation])
        self._selection_targets = torch.stack([s.targets for s in selection])
        self._points = evaluation_points(preset.evaluation, every, preset.evaluations)
        devices = [owner.controller.phi.device for owner in self.owners]
        self._device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        self._widest = max(part.loss.spec.size for part in parts.values())
        self._best = torch.full((children.count,), torch.inf)
        self._tolerant, self._diverged = tolerant, Diverged(children, restores)
        self.past = Past(steps=steps, children=children.count, parameters=self._widest)
        self.clock = Clock(children.count)

    @staticmethod
    def _check_owners(parts: Mapping[str, Part], children: int) -> None:
        rows = [row for part in parts.values() for row in range(children + 1)[part.rows]]
        if rows != list(range(children)):
            raise InputError(f"controllers own the children {rows}, but {children} train; give each one owner.")

    @property
    def owners(self) -> list[Owner]:
        """All controllers with their children, part after part."""
        return [owner for part in self.parts.values() for owner in part.owners]

    def owner_of(self, row: int) -> Owner:
        """The controller of child ``row``."""
        return next(owner for owner in self.owners if row in owner.rows)

    def step(self) -> StepRecord:
        """K iterations of every child, then one move of every controller."""
        self.clock.start()
        phi = self._phi()
        losses, values, outputs = self._train(phi)
        errors = discounted_metric(values, self._preset.gamma, self._points)
        logs = self._move(outputs, errors)
        selection = self._select()
        if self.step_count + 1 < self.steps:  # after the last step nothing trains any more: score what was measured
            self._inherit()
            self._restore(logs)
        self.clock.lap("select")
        self.past.add(self.step_count, phi, logs)
        self.step_count += 1
        if self.step_count == self.steps:
            self.children.release_memory()
        return StepRecord(
            step=self.step_count,
            iteration=self.children.iteration,
            loss=losses,
            metric=error(self._metric, errors),
            selection=selection,
            logs=logs,
        )

    def _phi(self) -> Tensor:
        """Φ of all children [N, P], P of the loss that has most; the others leave the rest at zero."""
        each = [part.phi(self._device) for part in self.parts.values()]
        for part, phi in zip(self.parts.values(), each, strict=True):
            part.loss.spec.check(phi)
        return torch.cat([F.pad(phi, (0, self._widest - phi.shape[1])) for phi in each])

    def _move(self, outputs: Tensor, errors: Tensor) -> dict[str, Tensor]:
        """One move of every controller, after what it sees of the validation outputs [N, V, …]; what they log."""
        progress, number, logs = (self.step_count + 1) / self.steps, 0, list[tuple[Owner, dict[str, Tensor]]]()
        for part in self.parts.values():
            watching = [owner for owner in part.owners if owner.watches]
            seen = self._observe(part.loss, watching, outputs, errors, progress) if watching else None
            self.clock.lap("observe")
            at = 0
            for owner in part.owners:
                look = owner.look_at_errors(errors, part.loss.num_statistics, progress)
                if owner.watches:
                    assert seen is not None
                    look = seen.of(at + torch.arange(len(owner.rows))).to(owner.controller.phi.device)
                    at += len(owner.rows)
                logs.append((owner, owner.controller.move(look)))
                self.clock.lap(number)
                number += 1
        return self._merged(logs)

    def _observe(
        self, loss: AdaptiveLoss, owners: Sequence[Owner], outputs: Tensor, errors: Tensor, progress: float
    ) -> Observation:
        """What the controllers of a loss see of their children, owner after owner."""
        rows = torch.cat([owner.rows for owner in owners])
        here = rows.to(outputs.device)
        outputs, targets = outputs[here], self._validation_targets[here]
        sensitivity = self._preset.sensitivity or any(wants(owner.controller, "sensitivity") for owner in owners)
        wanted = torch.cat([torch.full((len(owner.rows),), wants(owner.controller, "gradient")) for owner in owners])
        if self.step_count == 0 and sensitivity:
            cost = sensitivity_cost(loss, self._metric, outputs, targets)
            if cost is not None:
                Once().say("sensitivity", cost)
        return observe(
            loss,
            self._metric,
            outputs,
            targets,
            errors[rows],
            progress=progress,
            device=self._device,
            sensitivity=sensitivity,
            gradient=wanted.nonzero().flatten().tolist(),
        )

    def _merged(self, logs: list[tuple[Owner, dict[str, Tensor]]]) -> dict[str, Tensor]:
        merged: dict[str, Tensor] = {}
        for owner, one in logs:
            for name, values in one.items():
                merged.setdefault(name, torch.full((self.children.count,), torch.nan))[owner.rows] = values
        return dict(sorted(merged.items()))

    def _train(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """K iterations; mean losses [N], errors at the measured points [E, N], validation outputs at the end."""
        step, at = self.step_count + 1, 0
        losses, values = torch.zeros(self.children.count), []
        weights: Weights = "raw" if self._preset.weight_average is None else "averaged"
        for point in self._points:
            losses += self.children.advance(point - at, phi) * (point - at) / self._every
            self._set_aside(~losses.isfinite())
            check_finite(losses.where(~self._diverged.lost, 0.0), "training loss", step)
            self.clock.lap("train")
            at = point
            if self._preset.evaluation == "minibatch":
                values.append(self._minibatch(weights, step))
            else:
                outputs, errors = self._evaluate(weights, step)
                values.append(errors)
            self.clock.lap("validate")
        if self._preset.evaluation == "minibatch":
            outputs, _ = self._evaluate(weights, step)
        return losses, torch.stack(values), outputs

    def _set_aside(self, bad: Tensor) -> None:
        if self._tolerant:
            self._diverged.set_aside(bad)

    def _restore(self, logs: dict[str, Tensor]) -> None:
        """Lost children start again from their best weights under their initial Φ, or are retired."""
        restored, retired = self._diverged.restore()
        if restored.any() or retired.any():
            logs |= {"restored": restored.float(), "retired": retired.float()}
        for owner in self.owners:
            restart = getattr(owner.controller, "restart", None)
            if restart is not None and restored[owner.rows].any():
                restart(restored[owner.rows])

    @property
    def failed(self) -> Tensor:
        """Children whose loss or outputs were ever not finite [N]. They are judged as if all their outputs were zero,
        until they are restored or inherit from one that did not fail."""
        return self._diverged.failed

    def _outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …]; zeros of those that are lost."""
        outputs = self.children.outputs(inputs, weights)
        if not self._tolerant:
            return outputs
        self._set_aside(~outputs.flatten(1).isfinite().all(1).cpu())
        lost = self._diverged.lost.to(outputs.device).view(-1, *[1] * (outputs.ndim - 1))
        return outputs.masked_fill(lost, 0.0)

    def _evaluate(self, weights: Weights, step: int) -> tuple[Tensor, Tensor]:
        """Outputs on the whole validation split [N, V, …] and errors [N]."""
        outputs = self._outputs([s.inputs for s in self._validation], weights)
        return self._measured(outputs, self._validation_targets, step)

    def _measured(self, outputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Outputs and errors [N]; a child whose metric is not finite is set aside, too."""
        while True:
            try:
                return outputs, error(self._metric, measure(self._metric, outputs, targets, step))
            except NonFiniteError as failed:
                before = self._diverged.lost
                self._set_aside(torch.arange(self.children.count) == failed.child)
                if torch.equal(self._diverged.lost, before):  # it is not the child: its outputs are zero already
                    raise
                outputs = outputs.index_fill(0, torch.tensor([failed.child], device=outputs.device), 0.0)

    def _minibatch(self, weights: Weights, step: int) -> Tensor:
        """Errors on one random validation batch [N]."""
        size = self._validation_targets.shape[1]
        drawn = torch.randperm(size, generator=self._generator)[:_MINIBATCH].to(self._validation_targets.device)
        batches = {id(s): s.inputs[drawn] for s in self._validation}
        outputs = self._outputs([batches[id(s)] for s in self._validation], weights)
        return self._measured(outputs, self._validation_targets[:, drawn], step)[1]

    def _select(self) -> Tensor:
        """Score averaged weights on the selection split and keep the best of each child [N]."""
        outputs = self._outputs([s.inputs for s in self._selection], "averaged")
        errors = self._measured(outputs, self._selection_targets, self.step_count + 1)[1]
        better = self._diverged.may_be_best(errors < self._best)
        self.children.keep_best(better)
        self._best = torch.where(better, errors, self._best)
        return error(self._metric, errors)

    def _inherit(self) -> None:
        """Children copy the weights of the parents that their controller chose."""
        parents = torch.arange(self.children.count)
        for part in self.parts.values():
            for rows, of in part.parents():
                parents[rows] = of
        self.children.inherit(parents)
        self._diverged.inherit(parents)

    def cost(self, row: int) -> float | None:
        """Time of the controller that owns child ``row``, over training and selecting alone; None before a step."""
        watching = sum(len(owner.rows) for owner in self.owners if owner.watches)
        owner = self.owner_of(row)
        number = next(i for i, other in enumerate(self.owners) if other is owner)
        return self.clock.cost(number, len(owner.rows), watching if owner.watches else 0)

    @property
    def best_errors(self) -> Tensor:
        """The best selection metric of each child so far, as an error [N]."""
        return self._best

    @property
    def history(self) -> tuple[Tensor, Tensor]:
        """Φ under which each kept step trained [steps, N, P], and which steps those are, from 1 [steps]."""
        return self.past.phi, self.past.steps

    def history_of(self, name: str) -> tuple[Tensor, Tensor]:
        """The same of one part: of its children and its loss's parameters."""
        (phi, steps), part = self.history, self.parts[name]
        return phi[:, part.rows, : part.loss.spec.size], steps

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: children, controllers, best scores, past steps, random state."""
        return {
            "step": self.step_count,
            "children": self.children.state_dict(),
            "controllers": [owner.controller.state_dict() for owner in self.owners],
            "best": self._best,
            "diverged": self._diverged.state_dict(),
            "past": self.past.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``."""
        self.step_count, self._best = state["step"], state["best"]
        self._diverged.load_state_dict(state["diverged"])
        self.children.load_state_dict(state["children"])
        for owner, at in zip(self.owners, state["controllers"], strict=True):
            owner.controller.load_state_dict(at)
        self.past.load_state_dict(state["past"])
        self._generator.set_state(state["generator"])
