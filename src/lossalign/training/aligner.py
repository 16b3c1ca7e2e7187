"""Algorithm 1 in the user's own training loop: three lines more than without."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lossalign.control import Policy, Preset, default, discounted_metric, evaluation_points
from lossalign.core import InputError, Ranks, check_same, fingerprint, generator, wants
from lossalign.decision import Decision
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, PipelineMetric, as_metric, error
from lossalign.training.averaging import WeightAverage
from lossalign.training.driver import Driver, Given, make_controller, on_cpu
from lossalign.training.history import History, Move, MoveLog
from lossalign.training.notices import Once
from lossalign.training.observe import observe, sensitivity_cost
from lossalign.training.start import start_of
from lossalign.training.use import (
    STATE_VERSION,
    check_batch,
    check_state,
    checked_every,
    looks_like_probabilities,
    refuse_renamed,
)
from lossalign.training.validation import Forward, Validation, forward_pair
from lossalign.training.weights import (
    WatchedModel,
    Weights,
    check_model,
    check_same_weights,
    evaluating,
    weights_of,
)

_FORGOTTEN = 1000
"""Losses without a step that are never too many: one step may accumulate the gradients of hundreds of batches."""


@dataclass
class Position:
    """How far a run is; apart from the module, as setting its attributes at every iteration takes time."""

    iteration: int = 0
    losses: int = 0
    """Losses since the last call of ``step``."""
    looked: bool = False
    """Whether the first batch has been looked at."""
    apart: bool = False
    """Whether the model's ``state_dict`` is asked for without the aligner's."""


class Aligner(nn.Module):
    """A loss whose parameters Φ follow a validation metric while your model trains.

    It changes Φ and nothing else: any optimiser, scheduler, sampler, mixed precision and gradient accumulation stay
    yours. Call ``step`` once for every ``optimizer.step()``.

    It is a module without parameters: Φ is the buffer ``phi`` [P], which follows ``to(device)``, and everything else
    that a run needs to resume bit for bit is in ``state_dict()``. A module of your own may hold it.

    In a process group (DDP) every rank makes one with the same arguments and calls it at every iteration. Φ is then the
    same on all ranks, which is checked at every move; what is measured are the weights of the wrapped module, with the
    BatchNorm statistics of rank 0.

    Args:
        loss: an ``AdaptiveLoss``.
        metric: one of ``lossalign.metrics``, any ``torchmetrics.Metric``, or a function ``(outputs, targets) -> float``
            or ``(model, loader) -> float`` (its parameters so named) with ``higher_is_better`` given.
        val_loader: batches ``(inputs, targets)`` that the model does not train on, in the same order every time.
        total_steps: optimiser iterations of the whole run: how often ``step`` is called, not how often Φ moves.
        every: K, iterations between two moves of Φ; a hundredth of the run, 10 to 200, if not given.
        preset: the controller's options, ``lossalign.default()`` if not given. Its ``loss`` and ``groups`` are not
            used: all groups of the loss you give are moved.
        controller: who moves Φ. ``"auto"``: for a loss with offsets alone, such as ``AlignedLoss``, the rule
            ``"metric-gradient"``: offsets follow the gradient of the metric on soft predictions, and nothing is
            learned; else ``"fresh"``, a policy that knows nothing; one model alone teaches it little.
            ``"confusion-rule"``: offsets follow what the metric would gain without the errors of each class.
            ``"pretrained"``: the policy that comes with lossalign. A ``Policy`` to start from, e.g.
            ``Policy.load("policy.safetensors")`` of a run with many children. A function
            ``(spec, children, generator) -> Controller``, for a rival or a controller of your own; or the
            ``"module:attribute"`` of a policy or such a function. See docs/results/one-model.md.
        class_counts: training examples of each class [C]. With a rule, the offsets move to logit adjustment, log π, at
            the first measurement, if the metric is better for it there. None: the labels of the first K iterations are
            counted.
        split_validation: whether one half of the validation samples (every second of each class) moves Φ, and the other
            picks the best weights and gives the metric that is reported. Where a class has fewer than 4 samples, or a
            sample several labels, all samples do both.
        learn: whether the policy learns; None: if it is fresh or was given, while the one that comes with lossalign
            is used as it is.
        higher_is_better: the metric's direction, if it does not say so itself.
        forward: how to get ``(outputs, targets)`` from the model and a batch of ``val_loader``.
        seed: of the controller's random stream.
        val_sharded: in a process group, whether each rank's ``val_loader`` holds a part of the validation set (the
            metric is then of all parts together; what a ``DistributedSampler`` repeats is counted once, what another
            sampler repeats is counted as often as it comes) or, by default, all of it. A ``(model, loader)`` metric
            sees its rank's loader, and must gather by itself if that is a part.
        **renamed: former names of arguments, refused with their new ones.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> from lossalign.metrics import BalancedError
        >>> batch = torch.eye(3), torch.arange(3)
        >>> model = nn.Linear(3, 3)
        >>> aligner = Aligner(AlignedLoss(3), BalancedError(), [batch], total_steps=20, every=10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     aligner(model(batch[0]), batch[1]).backward()
        ...     optimizer.step()
        ...     move = aligner.step(model)
        >>> move.step, move.iteration, aligner.history.phi.shape
        (2, 20, torch.Size([2, 3]))
    """

    phi: Tensor

    def __init__(
        self,
        loss: AdaptiveLoss,
        metric: Any,
        val_loader: Iterable[Any],
        total_steps: int,
        *,
        every: int | None = None,
        preset: Preset | None = None,
        controller: Given = "auto",
        class_counts: Sequence[int] | Tensor | None = None,
        split_validation: bool = True,
        learn: bool | None = None,
        higher_is_better: bool | None = None,
        forward: Forward = forward_pair,
        seed: int = 0,
        val_sharded: bool = False,
        **renamed: Any,
    ) -> None:
        super().__init__()
        refuse_renamed(renamed)
        every = checked_every(loss, total_steps, every)
        self.loss, self.metric = loss, as_metric(metric, higher_is_better)
        self.every, self.total_steps, self.preset = every, total_steps, default() if preset is None else preset
        self._once, self._log = Once(), MoveLog(loss.spec.size)
        self._validation = Validation(
            val_loader, forward, loss, self.metric, sharded=val_sharded, split=split_validation, once=self._once
        )
        self._validation.check()
        made = make_controller(
            controller,
            loss,
            self.preset,
            follows=[*loss.spec.slices] == ["offsets"]
            and not isinstance(self.metric, PipelineMetric)
            and self._validation.single_label,
            learn=learn,
            generator=generator(seed, "aligner"),
            provenance={"metric": self.metric.name, "every": every, "total_steps": total_steps, "seed": seed},
        )
        self._driver = Driver(made, loss.spec)
        self._sensitivity = self.preset.sensitivity or wants(made, "sensitivity")
        self._gradient = [0] if wants(made, "gradient") else []
        self.register_buffer("phi", self._driver.phi.clone())
        self._points = evaluation_points(self.preset.evaluation, every, self.preset.evaluations)
        self._average = WeightAverage(self.preset.weight_average, every)
        self._start = start_of(loss, made, class_counts)
        self._at, self._best_error = Position(), float("inf")
        self._values: list[Tensor] = []
        self._best: Weights | None = None
        self._held_as: str | None = None
        self._watched: WatchedModel | None = None

    @property
    def history(self) -> History:
        """Past moves: all of them, or every second, fourth … of more than 1,000."""
        return self._log.history

    @property
    def policy(self) -> Policy:
        """π_θ; ``aligner.policy.save("policy.safetensors")`` keeps it for another task."""
        return self._driver.policy

    @property
    def best_metric(self) -> float | None:
        """The best validation metric so far, that of ``best_state_dict()``; None before the first move."""
        return None if self._best is None else self._own_direction(self._best_error)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch under today's Φ, a scalar."""
        self._check_batch(outputs, targets)
        if self._start is not None and torch.is_grad_enabled():
            self._start.count(targets)
        if self.phi.device != outputs.device:
            self.to(outputs.device)
        mean: Tensor = self.loss(outputs, targets, self.phi).mean()
        return mean

    def step(self, model: nn.Module) -> Move | None:
        """Count one optimiser iteration; every K of them measure, reward, learn and move Φ.

        Returns:
            What the last K iterations led to, if Φ has moved; None between two moves.
        """
        at, watched = self._at, self._watch(model)
        at.iteration, at.losses = at.iteration + 1, 0
        if at.iteration > self.total_steps:
            self._once.say("long", self._too_long())
        point = (at.iteration - 1) % self.every + 1
        measured = point == self.every or point in self._points
        if self._average.due(at.iteration - 1, measured=measured):
            self._average.update(watched.names, watched.tensors())
        if not measured:
            return None
        if self._average.repair():
            self._once.say("not finite", self._not_finite())
        with self._apart():
            if point == self.every:
                return self._finish(watched.plain)
            self._values.append(self._measure(watched.plain))
        return None

    def best_state_dict(self) -> dict[str, Any]:
        """The (averaged) weights with the best validation metric so far, for ``model.load_state_dict``.

        Their names are those of the plain model: with DDP or DataParallel load them into ``model.module``. If the model
        holds this aligner, the aligner's present state is among them, so that loading them does not change it.
        """
        if self._best is None:
            raise InputError(
                f"best_state_dict: nothing is measured yet after {self._at.iteration} calls of aligner.step(model); "
                f"the first measurement comes after {self.every}, one for every optimizer.step()."
            )
        if self._at.iteration < self.total_steps:
            self._once.say("short", self._too_short())
        best: dict[str, Any] = {name: tensor.clone() for name, tensor in self._best.items()}
        return best if self._held_as is None else {**best, **self.state_dict(prefix=self._held_as)}

    def decision(self, model: nn.Module | None = None) -> Decision:
        """How to decide for the metric with ``best_state_dict()``, fitted on all validation samples.

        Args:
            model: a model to decide with instead, with the weights that it has; needed after a run was resumed, until
                ``step`` has seen the model again.
        """
        metric = self.metric
        if not isinstance(metric, Metric):
            raise InputError("decision: the metric is of a whole pipeline (model, loader), which has no outputs.")
        watched = self._watched
        if model is None and (self._best is None or watched is None):
            raise InputError(
                "decision: there are no best weights yet, or the model is not known since the run was resumed; call it "
                "after training, or give the model."
            )
        given = check_model(model) if model is not None else watched.plain  # type: ignore[union-attr]
        weights = None if model is not None else self._best
        with self._apart(), torch.no_grad(), evaluating(given, weights, without=self._held_as):
            outputs, targets = self._validation.whole(given, self._number)
        return Decision.fit(outputs[0].float().cpu(), targets[0].cpu(), metric)

    def extra_repr(self) -> str:
        """Loss, metric, K, how far the run is, and the best metric so far."""
        best = "none yet" if self.best_metric is None else f"{self.best_metric:.4g}"
        return (
            f"loss={type(self.loss).__name__}, metric={self.metric.name}, every={self.every}, "
            f"total_steps={self.total_steps}, step={self._number}, iteration={self._at.iteration}, best={best}"
        )

    def _measure(self, model: nn.Module) -> Tensor:
        """One measurement of Eq. 4 within a step, as an error [1]."""
        weights = self._average.measured(model, without=self._held_as)
        with evaluating(model, weights, without=self._held_as):
            if isinstance(self.metric, PipelineMetric):
                return self._validation.pipeline_error(model, self._number)
            if self.preset.evaluation == "minibatch":
                return self._validation.error(*self._validation.batch(model, self._number), self._number)
            whole = self._validation.moving(*self._validation.whole(model, self._number))
            return self._validation.error(*whole, self._number)

    def _finish(self, model: nn.Module) -> Move:
        """The last measurement of a step, whose outputs give the statistics too; then Φ moves."""
        weights = self._average.measured(model, without=self._held_as)
        with evaluating(model, weights, without=self._held_as):
            outputs, targets = self._validation.whole(model, self._number)
            if isinstance(self.metric, PipelineMetric):
                now = kept = self._validation.pipeline_error(model, self._number)
            else:
                now, kept = self._validation.errors(outputs, targets, self._number)
        errors = discounted_metric(torch.stack([*self._values, now]), self.preset.gamma, self._points)
        self._values = []
        self._keep_best(model, weights, float(kept))
        before = self._driver.phi.cpu().clone()
        reward = self._move(*self._validation.moving(outputs, targets), errors)
        metric = self._own_direction(float(kept))
        self._log.add(iteration=self._at.iteration, metric=metric, phi=before, reward=reward)
        phi = {name: before[where] for name, where in self.loss.spec.slices.items()}
        return Move(step=self._number, iteration=self._at.iteration, metric=metric, phi=phi, reward=reward)

    def _keep_best(self, model: nn.Module, weights: Weights | None, measured: float) -> None:
        current = {**weights_of(model, self._held_as), **(weights or {})}
        check_same_weights(self._best, current)
        if measured < self._best_error:
            self._best = {name: tensor.detach().clone() for name, tensor in current.items()}
            self._best_error = measured

    def _move(self, outputs: Tensor, targets: Tensor, errors: Tensor) -> float | None:
        """Let the controller move Φ; the reward of its last move."""
        if self._begins_adjusted(outputs, targets):
            return None
        ranks, metric = Ranks.current(), None if isinstance(self.metric, PipelineMetric) else self.metric
        cost = (
            None if metric is None or not self._sensitivity else sensitivity_cost(self.loss, metric, outputs, targets)
        )
        if cost is not None:
            self._once.say("sensitivity", cost)
        # The controller's own arithmetic is float32 even where the user's loop is not.
        with torch.autocast(outputs.device.type, enabled=False), torch.autocast("cpu", enabled=False):
            observation = ranks.on_first(
                lambda: observe(
                    self.loss,
                    metric,
                    outputs,
                    targets,
                    errors,
                    progress=min(1.0, self._at.iteration / self.total_steps),
                    device=self._driver.phi.device if ranks.count == 1 else "cpu",
                    sensitivity=self._sensitivity,
                    gradient=self._gradient,
                )
            )
            reward = self._driver.move(observation)
        self._follow()
        if ranks.count > 1:
            check_same(ranks.exchange(lambda: fingerprint(self._driver.held())), self._number)
        return reward

    def _begins_adjusted(self, outputs: Tensor, targets: Tensor) -> bool:
        """At the first move of a rule: whether its offsets go to logit adjustment, because the metric prefers that."""
        start, self._start = self._start, None
        if start is None or not isinstance(self.metric, Metric):
            return False
        phi = start.phi(self.loss.spec, self.metric, outputs[0], targets[0])
        if phi is not None:
            self._driver.start_at(phi)
            self._follow()
        return phi is not None

    def _follow(self) -> None:
        """``phi`` becomes the controller's Φ: another tensor, as a backward pass may still need the old one."""
        self.phi = self._driver.phi.detach().to(self.phi.device, copy=True)

    @property
    def _number(self) -> int:
        """Number of the step of K iterations that the last iteration belongs to."""
        return -(-self._at.iteration // self.every)

    def _own_direction(self, value: float) -> float:
        return float(error(self.metric, torch.tensor(value, dtype=torch.float64))) + 0.0

    def _watch(self, model: nn.Module) -> WatchedModel:
        """The model that trains; looked at again at the beginning of each step of K iterations."""
        watched = self._watched
        if watched is None or not watched.is_of(model) or self._at.iteration % self.every == 0:
            with self._apart():
                self._watched = watched = WatchedModel(model, self)
            self._held_as = watched.prefix
        return watched

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """A model that holds this aligner is measured, averaged and kept without it."""
        self._at.apart = True
        try:
            yield
        finally:
            self._at.apart = False

    def _check_batch(self, outputs: Tensor, targets: Tensor) -> None:
        check_batch(outputs, targets)
        at = self._at
        if not at.looked or targets.device.type == "cpu":
            self.loss.check_targets(targets, "targets")
        if not at.looked and looks_like_probabilities(self.loss, outputs, targets):
            self._once.say(
                "softmax",
                "outputs: every row is non-negative and sums to 1, as if the model ended in a softmax; give its "
                "logits, as the loss applies the softmax itself.",
            )
        at.looked = True
        at.losses += torch.is_grad_enabled()
        if at.losses > max(_FORGOTTEN, 20 * self.every):
            self._once.say(
                "forgotten",
                f"aligner.step: {at.losses} losses were computed since the last call of it, so Φ does not move; "
                "call aligner.step(model) after every optimizer.step().",
            )

    def _of_another_length(self, state: Mapping[str, Any]) -> str:
        return (
            f"state: it was saved after {state['iteration']} iterations of total_steps={state['total_steps']}, this "
            f"aligner has total_steps={self.total_steps}, so that the controller's progress jumps; make the Aligner "
            "with the same one, unless the run is meant to be of another length."
        )

    def _not_finite(self) -> str:
        return (
            f"step: the model's weights were NaN or inf in the {self.every} iterations before {self._at.iteration}, so "
            "their average is taken from before; leave out batches whose loss is not finite, or load "
            "aligner.best_state_dict() if the weights still are."
        )

    def _too_short(self) -> str:
        return (
            f"total_steps={self.total_steps}: the best weights are asked for after {self._at.iteration} iterations; if "
            "the run is over, the controller's progress never reached its end: make the Aligner with "
            f"total_steps={self._at.iteration}."
        )

    def _too_long(self) -> str:
        return (
            f"total_steps={self.total_steps}: the run is longer than that, and the controller's progress stays at its "
            "end; make the Aligner with all optimiser iterations, e.g. total_steps=len(loader) * epochs."
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Aligner:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._driver.to(self.phi.device)
        self._follow()  # Φ stays float32 where the user's module becomes half precision
        if isinstance(self.loss, nn.Module):
            AdaptiveLoss.to(self.loss, self.phi.device)  # what is neither its parameter nor its buffer
        else:
            self.loss.to(self.phi.device)
        return self

    @property
    def _identity(self) -> dict[str, Any]:
        """What a state must agree in to be loaded."""
        return {
            "parameters": {group.name: group.size for group in self.loss.spec.groups},
            "metric": self.metric.name,
            "higher_is_better": self.metric.higher_is_better,
            "every": self.every,
            "options": self._driver.options(self.preset),
        }

    def get_extra_state(self) -> dict[str, Any]:
        """Everything beside Φ, as primitives and tensors that later steps do not change."""
        if self._at.apart:
            return {}
        state = {
            "version": STATE_VERSION,
            **self._identity,
            "total_steps": self.total_steps,
            "iteration": self._at.iteration,
            "drawn": self._validation.drawn,
            "values": self._values,
            "history": self._log.state_dict(),
            "averaged": self._average.weights,
            "kept": self._average.kept,
            "counted": None if self._start is None else self._start.counts.cpu(),
            "best": self._best,
            "best_error": self._best_error,
            "held_as": self._held_as,
            "controller": self._driver.state_dict(),
        }
        return copy.deepcopy(state)

    def set_extra_state(self, state: Any) -> None:
        """Resume exactly from what ``get_extra_state`` gave; called by ``load_state_dict``."""
        try:
            check_state(state, self._identity)
            if state["total_steps"] != self.total_steps:
                self._once.say("other length", self._of_another_length(state))
            self._driver.load_state_dict(state["controller"])
        finally:
            self._follow()  # load_state_dict has written into phi already, whatever the state is
        state = copy.deepcopy(state)
        self._at, self._best_error = Position(iteration=state["iteration"]), state["best_error"]
        self._watched = None
        self._validation.drawn = state["drawn"]
        self._log.load_state_dict(state["history"])
        self._average.weights, self._average.kept, self._best = state["averaged"], state["kept"], state["best"]
        if self._start is not None and state["counted"] is not None:
            self._start.counts = on_cpu(state["counted"])
        elif state["counted"] is None:
            self._start = None
        self._values, self._held_as = on_cpu(state["values"]), state["held_as"]
