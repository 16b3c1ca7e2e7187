"""Algorithm 1 of the paper, for any number of children and any controllers. Here the ring closes:

children → metrics and statistics → controllers → Φ → loss → children
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lossalign.children import Children, Weights
from lossalign.control import Preset, discounted_metric, evaluation_points
from lossalign.core import Controller, InputError, wants
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, error
from lossalign.training.notices import Once
from lossalign.training.observe import (
    LabelledSet,
    check_finite,
    check_validation,
    measure,
    observe,
    sensitivity_cost,
)

_MINIBATCH = 128
_HISTORY = 20_000_000
"""Numbers of Φ history kept at most; longer histories keep every second, third … step."""


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
    """What controllers log: reward, entropy, reset [N]; NaN where one logs nothing."""


class Clock:
    """Where the time of a population goes, in seconds since it was made."""

    def __init__(self, children: int) -> None:
        self._children, self._at = children, 0.0
        self.seconds: dict[str | int, float] = {}

    def start(self) -> None:
        """A step begins."""
        self._at = time.perf_counter()

    def lap(self, what: str | int) -> None:
        """The time since the last lap went into ``what``: train, observe, select, or a controller by its number."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._at
        self._at = now

    def cost(self, controller: int, children: int, *, watches: bool) -> float | None:
        """A controller's time with its children's share of training and selecting, and of measuring the validation
        split if it ``watches`` it, over their share of training and selecting alone; None before the first step."""
        share, spent = children / self._children, self.seconds
        alone = share * (spent.get("train", 0.0) + spent.get("select", 0.0))
        more = spent.get(controller, 0.0) + (share * spent.get("observe", 0.0) if watches else 0.0)
        return (alone + more) / alone if alone else None


class Population:
    """N children, the controllers that move their Φ, and the sets they are judged on.

    Args:
        children: who trains.
        controllers: who moves Φ; each owns as many neighbouring children as its Φ has rows.
        loss: gives statistics (the children hold it too, to train under).
        metric: what the children are judged by.
        validation: each child's validation set; it moves Φ.
        selection: each child's selection set; it picks the best weights, for every method alike.
        preset: how M is measured.
        every: K, iterations of a step.
        steps: how many.
        generator: for ``minibatch`` evaluation.
        tolerant: whether a child whose numbers stop being finite is set aside (``failed``), instead of stopping all.
    """

    def __init__(
        self,
        children: Children,
        controllers: Sequence[Controller],
        *,
        loss: AdaptiveLoss,
        metric: Metric,
        validation: Sequence[LabelledSet],
        selection: Sequence[LabelledSet],
        preset: Preset,
        every: int,
        steps: int,
        generator: torch.Generator,
        tolerant: bool = False,
    ) -> None:
        sizes = [len(controller.phi) for controller in controllers]
        if sum(sizes) != children.count:
            raise InputError(f"controllers own {sum(sizes)} children, but {children.count} train.")
        for name, sets in (("validation", validation), ("selection", selection)):
            if len(sets) != children.count or len({len(s.targets) for s in sets}) != 1:
                raise InputError(f"{name}: give one set for each of {children.count} children, all of one size.")
            for some in {id(s): s for s in sets}.values():
                check_validation(loss, some.targets, name)
        self.children, self.controllers, self.steps, self.step_count = children, controllers, steps, 0
        self._ends = torch.tensor(sizes).cumsum(0).tolist()
        self._loss, self._metric, self._preset, self._every = loss, metric, preset, every
        self._validation, self._selection, self._generator = validation, selection, generator
        self._validation_targets = torch.stack([s.targets for s in validation])
        self._selection_targets = torch.stack([s.targets for s in selection])
        self._sensitivity = preset.sensitivity or any(wants(one, "sensitivity") for one in controllers)
        wanting = [range(rows.start, rows.stop) for one, rows in self._owners() if wants(one, "gradient")]
        self._gradient = [row for rows in wanting for row in rows]
        self._points = evaluation_points(preset.evaluation, every, preset.evaluations)
        self._device = next((c.phi.device for c in controllers if c.phi.device.type != "cpu"), torch.device("cpu"))
        self._best = torch.full((children.count,), torch.inf)
        self._tolerant = tolerant
        self._lost = torch.zeros(children.count, dtype=torch.bool)
        self.failed = self._lost.clone()
        """Children whose loss or outputs were ever not finite. They are judged as if all their outputs were zero, until
        they inherit from one that did not fail."""
        self._stride = -(-steps * children.count * loss.spec.size // _HISTORY)
        self._history: list[Tensor] = []
        self.clock = Clock(children.count)

    def step(self) -> StepRecord:
        """K iterations of every child, then one move of every controller."""
        self.clock.start()
        phi = torch.cat([controller.phi.to(self._device) for controller in self.controllers])
        self._loss.spec.check(phi)
        losses, values, outputs = self._train(phi)
        if self.step_count == 0 and self._sensitivity:
            self._say_cost(outputs)
        errors = discounted_metric(values, self._preset.gamma, self._points)
        observation = observe(
            self._loss,
            self._metric,
            outputs,
            self._validation_targets,
            errors,
            progress=(self.step_count + 1) / self.steps,
            device=self._device,
            sensitivity=self._sensitivity,
            gradient=self._gradient,
        )
        self.clock.lap("observe")
        logged = []
        for number, (controller, rows) in enumerate(self._owners()):
            logged.append(controller.move(observation.of(rows).to(controller.phi.device)))
            self.clock.lap(number)
        selection = self._select()
        if self.step_count + 1 < self.steps:  # after the last step nothing trains any more: score what was measured
            self._inherit()
        self.clock.lap("select")
        if self.step_count % self._stride == 0:
            self._history.append(phi.cpu())
        self.step_count += 1
        if self.step_count == self.steps:
            self.children.release_memory()
        return StepRecord(
            step=self.step_count,
            iteration=self.children.iteration,
            loss=losses,
            metric=error(self._metric, errors),
            selection=selection,
            logs=self._merge(logged),
        )

    def _say_cost(self, outputs: Tensor) -> None:
        """Warn once a run, at its first step, of a metric that the sensitivity calls many times."""
        cost = sensitivity_cost(self._loss, self._metric, outputs, self._validation_targets)
        if cost is not None:
            Once().say("sensitivity", cost)

    def _train(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """K iterations; mean losses [N], errors at the measured points [E, N], validation outputs at the end."""
        step, at = self.step_count + 1, 0
        losses, values = torch.zeros(self.children.count), []
        weights: Weights = "raw" if self._preset.weight_average is None else "averaged"
        for point in self._points:
            losses += self.children.advance(point - at, phi) * (point - at) / self._every
            self._set_aside(~losses.isfinite())
            check_finite(losses.where(~self._lost, 0.0), "training loss", step)
            self.clock.lap("train")
            at = point
            if self._preset.evaluation == "minibatch":
                values.append(self._minibatch(weights, step))
            else:
                outputs, errors = self._evaluate(weights, step)
                values.append(errors)
            self.clock.lap("observe")
        if self._preset.evaluation == "minibatch":
            outputs, _ = self._evaluate(weights, step)
        return losses, torch.stack(values), outputs

    def _set_aside(self, bad: Tensor) -> None:
        """Children that are not finite fail, if that is tolerated and another one is left."""
        lost = self._lost | bad
        if self._tolerant and not lost.all():
            self._lost, self.failed = lost, self.failed | bad

    def _outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …]; zeros of those that are lost."""
        outputs = self.children.outputs(inputs, weights)
        if not self._tolerant:
            return outputs
        self._set_aside(~outputs.flatten(1).isfinite().all(1).cpu())
        lost = self._lost.to(outputs.device).view(-1, *[1] * (outputs.ndim - 1))
        return outputs.masked_fill(lost, 0.0)

    def _evaluate(self, weights: Weights, step: int) -> tuple[Tensor, Tensor]:
        """Outputs on the whole validation split [N, V, …] and errors [N]."""
        outputs = self._outputs([s.inputs for s in self._validation], weights)
        return outputs, error(self._metric, measure(self._metric, outputs, self._validation_targets, step))

    def _minibatch(self, weights: Weights, step: int) -> Tensor:
        """Errors on one random validation batch [N]."""
        size = self._validation_targets.shape[1]
        drawn = torch.randperm(size, generator=self._generator)[:_MINIBATCH].to(self._validation_targets.device)
        batches = {id(s): s.inputs[drawn] for s in self._validation}
        outputs = self._outputs([batches[id(s)] for s in self._validation], weights)
        return error(self._metric, measure(self._metric, outputs, self._validation_targets[:, drawn], step))

    def _select(self) -> Tensor:
        """Score averaged weights on the selection split and keep the best of each child [N]."""
        outputs = self._outputs([s.inputs for s in self._selection], "averaged")
        values = measure(self._metric, outputs, self._selection_targets, self.step_count + 1)
        errors = error(self._metric, values)
        better = errors < self._best
        self.children.keep_best(better)
        self._best = torch.where(better, errors, self._best)
        return values

    def _inherit(self) -> None:
        """Children copy the weights of the parents that their controller chose."""
        parents = torch.arange(self.children.count)
        for controller, rows in self._owners():
            if controller.parents is not None:
                parents[rows] = rows.start + controller.parents
        self.children.inherit(parents)
        self._lost = self._lost[parents]

    def _owners(self) -> list[tuple[Controller, slice]]:
        starts = [0, *self._ends[:-1]]
        return [(c, slice(a, b)) for c, a, b in zip(self.controllers, starts, self._ends, strict=True)]

    def _merge(self, logged: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        logs: dict[str, Tensor] = {}
        for name in sorted({name for one in logged for name in one}):
            silent = [torch.full((rows.stop - rows.start,), torch.nan) for _, rows in self._owners()]
            logs[name] = torch.cat([one.get(name, nan) for one, nan in zip(logged, silent, strict=True)])
        return logs

    @property
    def best_errors(self) -> Tensor:
        """The best selection metric of each child so far, as an error [N]."""
        return self._best

    @property
    def history(self) -> tuple[Tensor, Tensor]:
        """Φ under which each kept step trained [steps, N, P], and which steps those are, from 1 [steps]."""
        kept = (
            torch.stack(self._history) if self._history else torch.empty(0, self.children.count, self._loss.spec.size)
        )
        return kept, torch.arange(len(kept)) * self._stride + 1

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: children, controllers, best scores, Φ history, random state."""
        return {
            "step": self.step_count,
            "children": self.children.state_dict(),
            "controllers": [controller.state_dict() for controller in self.controllers],
            "best": self._best,
            "failed": self.failed,
            "lost": self._lost,
            "history": self.history[0],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``."""
        self.step_count, self._best = state["step"], state["best"]
        self.failed, self._lost = state["failed"], state["lost"]
        self.children.load_state_dict(state["children"])
        for controller, at in zip(self.controllers, state["controllers"], strict=True):
            controller.load_state_dict(at)
        self._history = list(state["history"])
        self._generator.set_state(state["generator"])
