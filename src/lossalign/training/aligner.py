"""For the user's own training loop: three lines more than without."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from lossalign.children import average_, average_decay
from lossalign.control import LearningController, Policy, Preset, default, discounted_metric, evaluation_points
from lossalign.core import InputError, Ranks, check_same, fingerprint, generator
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, PipelineMetric, as_metric, error
from lossalign.training.observe import check_finite, check_validation, measure, observe

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""(model, batch of the validation loader) → (outputs, targets). A model in DDP is given without its wrapper."""


def forward_pair(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Outputs and targets of a batch ``(inputs, targets)``, on the model's device."""
    inputs, targets = batch
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return model(inputs.to(device)), targets.to(device)


@contextmanager
def evaluating(model: nn.Module, weights: dict[str, Tensor] | None) -> Iterator[None]:
    """Eval mode, no gradients, and ``weights`` in place of the model's own; everything is put back afterwards.

    So is torch's global random stream, from which every pass over a ``DataLoader`` draws.
    """
    gpus = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    modes = [(module, module.training) for module in model.modules()]
    live = model.state_dict()
    saved = {} if weights is None else {name: tensor.clone() for name, tensor in live.items()}
    try:
        with torch.no_grad(), torch.random.fork_rng(list(gpus)):
            if weights is not None:
                _copy_into(live, weights)
            model.eval()
            yield
    finally:
        with torch.no_grad():
            _copy_into(live, saved)
        for module, mode in modes:
            module.training = mode


def _full_precision(tensor: Tensor) -> Tensor:
    """Half-precision weights as float32: an average of them would stall at their resolution."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _names(loss: AdaptiveLoss) -> list[str]:
    return [f"{group.name}/{label}" for group in loss.spec.groups for label in group.labels]


def _copy_into(live: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        live[name].copy_(tensor)


def whole_set(part: Tensor, loader: Any, ranks: Ranks) -> Tensor:
    """All ranks' parts of a sharded validation set, one after another.

    A ``DistributedSampler`` deals samples in turn and repeats the first ones until all ranks have as many: its order is
    restored and what it repeated is dropped, so that the set is the one that a single process would read.
    """
    sizes = ranks.exchange(lambda: len(part))
    whole = ranks.gather(part, sizes)
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas != ranks.count or len(set(sizes)) > 1:
        return whole
    in_turn: Tensor = whole.unflatten(0, (ranks.count, -1)).transpose(0, 1).flatten(0, 1)
    return in_turn[: len(sampler.dataset)]  # type: ignore[arg-type]


def _start(policy: object, loss: AdaptiveLoss, preset: Preset) -> Policy | None:
    """The policy to start from; None for a fresh one."""
    if isinstance(policy, Policy):
        return policy
    if policy not in ("auto", "fresh"):
        raise InputError(f"policy={policy!r}: give a lossalign.Policy, 'auto' or 'fresh'; Policy.load reads a file.")
    if policy == "fresh":
        return None
    return Policy.pretrained_for(tuple(loss.spec.slices), preset.layout(loss.num_statistics))


class Aligner:
    """A loss whose parameters follow a validation metric while your model trains.

    It changes Φ and nothing else: any optimiser, scheduler, sampler, mixed precision and gradient accumulation stay
    yours. Call ``step`` once for every ``optimizer.step()``.

    In a process group (DDP) every rank makes one with the same arguments and calls it at every iteration. Φ is then the
    same on all ranks, which is checked at every step; what is measured are the weights of the wrapped module, with the
    BatchNorm statistics of rank 0.

    Args:
        loss: an ``AdaptiveLoss``.
        metric: one of ``lossalign.metrics``, any ``torchmetrics.Metric``, or a function ``(outputs, targets) -> float``
            or ``(model, loader) -> float`` (its parameters so named) with ``higher_is_better`` said.
        val_loader: batches ``(inputs, targets)`` that the model does not train on, in the same order every time.
        total_steps: optimiser iterations of the whole run.
        every: K, iterations between two moves of Φ; a hundredth of the run, 10 to 200, if not given.
        preset: the controller's switches, ``lossalign.default()`` if not given. Its ``loss`` and ``groups`` are not
            used: all groups of the loss you give are moved.
        policy: a policy to start from, e.g. ``Policy.load("policy.safetensors")`` of a run with many children;
            ``"fresh"`` for one that knows nothing; or ``"auto"``: the one that comes with lossalign if it fits the loss
            (``AlignedLoss`` with offsets alone) and the preset, else a fresh one. One model alone teaches a fresh
            policy little: see docs/results.md.
        learn: whether the policy learns on; None: if it is fresh or was given, while the one that comes with lossalign
            is used as it is.
        higher_is_better: the metric's direction, if it does not say so itself.
        forward: how to get ``(outputs, targets)`` from the model and a batch of ``val_loader``.
        seed: of the controller's random stream.
        val_sharded: in a process group, whether each rank's ``val_loader`` holds a part of the validation set (the
            metric is then of all parts together; what a ``DistributedSampler`` repeats is counted once, what another
            sampler repeats is counted as often as it comes) or, by default, all of it. A ``(model, loader)`` metric
            sees its rank's loader, and must gather by itself if that is a part.
        device: where the controller works. Your GPU pays if the loss has hundreds of parameters: many classes, pairs.
    """

    def __init__(
        self,
        loss: AdaptiveLoss,
        metric: Any,
        val_loader: Iterable[Any],
        total_steps: int,
        *,
        every: int | None = None,
        preset: Preset | None = None,
        policy: Policy | Literal["auto", "fresh"] = "auto",
        learn: bool | None = None,
        higher_is_better: bool | None = None,
        forward: Forward = forward_pair,
        seed: int = 0,
        val_sharded: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(loss, AdaptiveLoss):
            raise InputError(f"loss: {type(loss).__name__} is not an AdaptiveLoss; try AlignedLoss(num_classes=…).")
        if total_steps < 1:
            raise InputError(f"total_steps={total_steps}: give the number of optimiser iterations of the whole run.")
        every = min(200, max(10, total_steps // 100), max(total_steps, 1)) if every is None else every
        if not 1 <= every <= total_steps:
            raise InputError(f"every={every}: K must be between 1 and total_steps={total_steps}.")
        self.loss, self.metric = loss, as_metric(metric, higher_is_better)
        self.every, self.total_steps, self.preset = every, total_steps, default() if preset is None else preset
        self._loader, self._forward, self._val_sharded = val_loader, forward, val_sharded
        self._points = evaluation_points(self.preset.evaluation, every, self.preset.evaluations)
        start = _start(policy, loss, self.preset)
        self._controller = LearningController(
            loss.spec,
            children=1,
            preset=self.preset,
            statistics=loss.num_statistics,
            policy=start,
            learn=policy != "auto" or start is None if learn is None else learn,
            generator=generator(seed, "aligner"),
            device=device,
        )
        self._device, self._moved = device, self.phi
        self._iteration, self._drawn, self._best_error = 0, 0, float("inf")
        self._values: list[Tensor] = []
        self._history: list[Tensor] = []
        self._averaged: dict[str, Tensor] | None = None
        self._best: dict[str, Tensor] | None = None
        self._batches: Iterator[Any] = iter(())
        self._labels_checked = False
        self._peek()

    @property
    def phi(self) -> Tensor:
        """Today's Φ [P]."""
        return self._controller.phi[0]

    @property
    def history(self) -> Tensor:
        """Φ under which each past step trained [steps, P]."""
        return torch.stack(self._history) if self._history else torch.empty(0, self.loss.spec.size)

    @property
    def policy(self) -> Policy:
        """π_θ; ``aligner.policy.save("policy.safetensors")`` keeps it for another task."""
        return self._controller.policy

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss under today's Φ."""
        if not self._labels_checked or targets.device.type == "cpu":
            self.loss.check_targets(targets, "targets")
            self._labels_checked = True
        if self._moved.device != outputs.device:
            self._moved = self.phi.to(outputs.device)
            self.loss.to(outputs.device)
        return self.loss(outputs, targets, self._moved).mean()

    def step(self, model: nn.Module) -> None:
        """Count one optimiser iteration; every K of them measure, reward, learn and move Φ."""
        model = model.module if isinstance(model, DistributedDataParallel) else model
        self._average(model)
        self._iteration += 1
        point = (self._iteration - 1) % self.every + 1
        if point < self.every and point in self._points:
            self._values.append(self._measure(model))
        elif point == self.every:
            self._finish(model)

    def best_state_dict(self) -> dict[str, Tensor]:
        """The (averaged) weights with the best validation metric so far, for ``model.load_state_dict``.

        Their names are those of the plain model: with DDP load them into ``model.module``.
        """
        if self._best is None:
            raise InputError(f"best_state_dict: nothing is measured yet; it comes after {self.every} iterations.")
        return {name: tensor.clone() for name, tensor in self._best.items()}

    def _average(self, model: nn.Module) -> None:
        if self.preset.average is None:
            return
        current = {name: _full_precision(tensor.detach()) for name, tensor in model.state_dict().items()}
        if self._averaged is None:
            self._averaged = {name: tensor.clone() for name, tensor in current.items()}
        self._averaged = {name: tensor.to(current[name].device) for name, tensor in self._averaged.items()}
        decay = 1 - 1 / max(1.0, self.preset.average * self.every)
        average_(self._averaged, current, average_decay(decay, self._iteration))

    def _measured(self, model: nn.Module) -> dict[str, Tensor] | None:
        """The weights to measure, None for the model's own; buffers, which may differ by rank, are those of rank 0."""
        ranks = Ranks.current()
        if ranks.count == 1:
            return self._averaged
        weights = model.state_dict() if self._averaged is None else self._averaged
        buffers = sorted(weights.keys() - dict(model.named_parameters(remove_duplicate=False)).keys())
        sent = ranks.on_first(lambda: {name: weights[name].detach().cpu() for name in buffers})
        shared = {name: tensor.to(weights[name].device) for name, tensor in sent.items()}
        if self._averaged is not None:
            self._averaged.update(shared)
        return self._averaged or shared or None

    def _measure(self, model: nn.Module) -> Tensor:
        """One measurement of Eq. 4 within a step, as an error [1]."""
        with evaluating(model, self._measured(model)):
            if isinstance(self.metric, PipelineMetric):
                return self._pipeline_error(model)
            if self.preset.evaluation == "minibatch":
                outputs, targets = self._outputs(model, [self._next_batch()])
                self.loss.check_targets(targets[0], "val_loader")
            else:
                outputs, targets = self._validate(model)
            return self._error(self.metric, outputs, targets)

    def _finish(self, model: nn.Module) -> None:
        """The last measurement of a step; its outputs give the statistics too."""
        ranks, weights = Ranks.current(), self._measured(model)
        with evaluating(model, weights):
            outputs, targets = self._validate(model)
            metric = None if isinstance(self.metric, PipelineMetric) else self.metric
            now = self._pipeline_error(model) if metric is None else self._error(metric, outputs, targets)
        self._values.append(now)
        errors = discounted_metric(torch.stack(self._values), self.preset.gamma, self._points)
        progress = min(1.0, self._iteration / self.total_steps)
        self._history.append(self.phi.cpu())
        self._values = []
        if float(now) < self._best_error:
            best = {**model.state_dict(), **(weights or {})}
            self._best = {name: tensor.detach().clone() for name, tensor in best.items()}
            self._best_error = float(now)
        # The controller's own arithmetic is float32 even where the user's loop is not.
        with torch.autocast(outputs.device.type, enabled=False), torch.autocast("cpu", enabled=False):
            seen = ranks.on_first(
                lambda: observe(
                    self.loss,
                    metric,
                    outputs,
                    targets,
                    errors,
                    progress=progress,
                    device=self._device,
                    sensitivity=self.preset.sensitivity,
                )
            )
            self._controller.step(seen)
        self._moved = self.phi
        if ranks.count > 1:
            held = [self._controller.phi, *self.policy.state_dict().values()]
            check_same(ranks.exchange(lambda: fingerprint(held)), self._number)

    @property
    def _number(self) -> int:
        return -(-self._iteration // self.every)

    def _error(self, metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of outputs, as rank 0 measures it, as an error [1]."""
        return Ranks.current().on_first(lambda: error(metric, measure(metric, outputs, targets, self._number)))

    def _pipeline_error(self, model: nn.Module) -> Tensor:
        metric = self.metric
        assert isinstance(metric, PipelineMetric)
        values = Ranks.current().exchange(
            lambda: torch.as_tensor(metric(model, self._loader), dtype=torch.float32).reshape(1).cpu()
        )
        if self._val_sharded and any(not torch.equal(value, values[0]) for value in values):
            raise InputError(
                f"metric: ranks measured {[float(v) for v in values]}; a (model, loader) metric on parts of the "
                "validation set must gather them, or give every rank the whole set and val_sharded=False."
            )
        check_finite(values[0], "metric", self._number)
        return error(metric, values[0])

    def _validate(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Outputs and targets of the whole loader, after a look at the labels."""
        outputs, targets = self._outputs(model, self._loader)
        check_validation(self.loss, targets[0].cpu(), "val_loader")
        return outputs, targets

    def _outputs(self, model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
        """Outputs [1, V, …] and targets [1, V] of one child."""
        ranks = Ranks.current()
        outputs, targets = ranks.guarded(lambda: self._forwarded(model, batches))
        if self._val_sharded:
            outputs, targets = (whole_set(part, batches, ranks) for part in (outputs, targets))
        check_finite(outputs[None], "outputs", self._number)
        return outputs[None], targets[None]

    def _forwarded(self, model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
        pairs = [self._forward(model, batch) for batch in batches]
        if not pairs:
            raise InputError("val_loader: it is empty; give at least two validation samples.")
        return torch.cat([o for o, _ in pairs]).float(), torch.cat([t for _, t in pairs])

    def _next_batch(self) -> Any:
        """Validation batches in turn, over and over."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches, self._drawn = iter(self._loader), 0
            batch = next(self._batches, None)
        if batch is None:
            raise InputError("val_loader: it is empty; give at least two validation samples.")
        self._drawn += 1
        return batch

    def _peek(self) -> None:
        """Find what is wrong with the validation loader before anything is trained."""
        if not isinstance(self._loader, Iterable):
            raise InputError(f"val_loader: {type(self._loader).__name__} has no batches; give a list or a DataLoader.")
        with torch.random.fork_rng([]):
            batches = iter(self._loader)
            batch = next(batches, None)
        if batches is self._loader:
            raise InputError("val_loader: it can be read only once; give a list or a DataLoader, not an iterator.")
        if batch is None:
            raise InputError("val_loader: it is empty; give at least two validation samples.")
        if self._forward is forward_pair:
            pair = isinstance(batch, (tuple, list)) and len(batch) == 2
            if not pair or not all(isinstance(part, Tensor) for part in batch):
                raise InputError(
                    "val_loader: its batches are not pairs of tensors (inputs, targets); pass forward=… to say how to "
                    "get (outputs, targets) from one."
                )
            self.loss.check_targets(batch[1], "val_loader")

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly, beside the model's and the optimiser's own state."""
        state = {
            "parameters": _names(self.loss),
            "iteration": self._iteration,
            "drawn": self._drawn,
            "values": self._values,
            "history": self.history,
            "averaged": self._averaged,
            "best": self._best,
            "best_error": self._best_error,
            "controller": self._controller.state_dict(),
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly from ``state``."""
        if state.get("parameters") != _names(self.loss):
            raise InputError("state: it belongs to a loss with other parameters; use the same loss and groups.")
        state = copy.deepcopy(state)
        self._controller.load_state_dict(state["controller"])
        self._moved = self.phi
        self._iteration, self._drawn, self._best_error = state["iteration"], 0, state["best_error"]
        self._values, self._history = state["values"], list(state["history"])
        self._averaged, self._best = state["averaged"], state["best"]
        self._batches = iter(())
        with torch.random.fork_rng([]):
            for _ in range(state["drawn"]):
                self._next_batch()
