"""One iteration of all children as one CUDA graph: batches, forward, loss, backward, SGD and averages."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from lossalign.children.base import Losses, Member
from lossalign.children.fused.blocks import many_variants
from lossalign.children.optimisation import Optimisation, average_, average_decay, learning_rate, sgd_
from lossalign.children.stacked import Lift, StackedChildren, State

Say = Callable[[str], None]

CACHE = Path.home() / ".cache" / "lossalign" / "compiled"
"""Cache of compiled iterations between runs, unless TORCHINDUCTOR_CACHE_DIR is set."""

TOLERANCE = (0.02, 0.25)
"""Largest relative differences of losses and of updates from the eager iteration that rounding in bfloat16 explains:
where an activation is nearly zero, rounding decides whether its gradient counts."""

CHUNK = 500
"""Samples of each child in one compiled forward pass; shorter parts are padded, so that one shape is compiled."""


class CompiledChildren(StackedChildren):
    """``StackedChildren`` with an iteration that is compiled and captured once, and then replayed.

    Φ, the learning rate and the decay of the averages are numbers on the device: they change without a new capture.
    If compiling fails, or the compiled iteration differs from the eager one, training is eager, after a warning.

    Args:
        members: the children, all of one architecture.
        losses: the loss of one child, for all of them or for each.
        optimisation: the same for all.
        device: a GPU.
        lift: how they are computed together.
        whole: whether the network is compiled as one graph, even if it has repeated blocks.
        say: called with a progress message before slow work.
    """

    def __init__(
        self,
        members: Sequence[Member],
        losses: Losses,
        optimisation: Optimisation,
        device: torch.device | str = "cuda",
        *,
        lift: Callable[[Sequence[Member], torch.device], Lift],
        whole: bool = False,
        say: Say = lambda sentence: None,
    ) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE))
        super().__init__(members, losses, optimisation, device, lift=lift)
        self._say, self._whole = say, whole
        self._replay: Callable[[], None] | None = None
        self._forward: Callable[..., Tensor] | None = None
        self._eager = self._by_blocks = False
        self._size = 0
        self._phi = torch.empty(0)
        self._drawn: tuple[Tensor, ...] = ()
        self._rate, self._decay = (torch.zeros((), device=self._device) for _ in range(2))
        self._total = torch.zeros(self.count, device=self._device)

    def _train(self, iterations: int, phi: Tensor) -> Tensor:
        numbers = range(self.iteration, self.iteration + iterations)
        rates = torch.tensor([learning_rate(self._optimisation, i) for i in numbers]).to(self._device)
        decays = torch.tensor([average_decay(self._optimisation.average_decay, i) for i in numbers]).to(self._device)
        for i, drawn in enumerate(self._feed.draws(iterations)):
            if self._replay is None:
                self._prepare(drawn, phi)
            if i == 0:
                self._phi.copy_(phi)
                self._total.zero_()
            for static, tensor in zip(self._drawn, drawn, strict=True):
                static.copy_(tensor)
            self._rate.copy_(rates[i])
            self._decay.copy_(decays[i])
            self._lift.at(self.iteration)
            assert self._replay is not None
            self._replay()
            self.iteration += 1
        return self._total

    def _prepare(self, drawn: tuple[Tensor, ...], phi: Tensor) -> None:
        """Make the iteration: compiled and captured, or eager if that fails; the children are not trained by it."""
        self._drawn, self._phi = tuple(tensor.clone() for tensor in drawn), phi.clone()
        before = [tensor.detach().clone() for tensor in self._changing()]
        self._rate.fill_(self._optimisation.learning_rate)
        self._decay.fill_(0.5)
        self._say("compiling the training iteration of all children (cached for later runs) …")
        began, cached = time.monotonic(), _cache_counts()
        self._lift.uncompile_blocks()
        eager = self._step(self._batch_losses, self._update)
        try:
            expected = self._seen(eager, before)
            step = self._compiled_step()
            with warnings.catch_warnings(), many_variants():
                warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")  # other streams are intended
                self._replay = self._captured(step, before, expected)
            self._say(f"compiled in {time.monotonic() - began:.0f} s{_from_cache(cached)}.")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways
            self._warn("training", error)
            self._replay = eager
        finally:
            self._restore(before)

    def _compiled_step(self) -> Callable[[], None]:
        """The iteration compiled by its repeated blocks, with the batches and the losses beside them; else as a whole.

        The update by blocks is that of torch's foreach kernels: there is nothing to fuse.
        """
        self._by_blocks = not self._whole and self._lift.compile_blocks()
        if not self._by_blocks:
            return self._step(torch.compile(self._batch_losses, dynamic=False), torch.compile(self._update))
        make = torch.compile(self._feed.make, dynamic=False)
        losses_of = torch.compile(self._losses_of, dynamic=False)

        def batch_losses(phi: Tensor, *drawn: Tensor) -> Tensor:
            inputs, targets = make(*drawn)
            losses: Tensor = losses_of(self._trained_outputs(inputs), targets, phi)
            return losses

        return self._step(batch_losses, self._update)

    def _seen(self, step: Callable[[], None], before: list[Tensor]) -> list[Tensor]:
        """Result of one iteration from ``before``: losses, and the changes of weights, momenta and averages."""
        self._restore(before)
        self._total.zero_()
        drawing = _random_state(self._device)
        step()
        if any(not torch.equal(a, b) for a, b in zip(drawing, _random_state(self._device), strict=True)):
            _set_random_state(drawing, self._device)
            raise RuntimeError("the model draws random numbers from torch's global stream")
        moved = [now.detach() - then for now, then in zip(self._changing(), before, strict=True)]
        return [self._total.clone(), torch.cat([tensor.flatten().float() for tensor in moved])]

    def _batch_losses(self, phi: Tensor, *drawn: Tensor) -> Tensor:
        return self._losses(*self._feed.make(*drawn), phi)

    def _update(self, grads: tuple[Tensor, ...]) -> None:
        sgd_(self._weights, grads, self._momenta, self._optimisation, self._rate)
        average_(self._averaged, self._state, self._decay)

    def _step(self, losses_of: Callable[..., Tensor], update: Callable[..., None]) -> Callable[[], None]:
        def step() -> None:
            losses = losses_of(self._phi, *self._drawn)
            grads = torch.autograd.grad(losses.sum(), self._weights, materialize_grads=True)
            update(grads)
            self._total.add_(losses.detach())

        return step

    def _captured(self, step: Callable[[], None], before: list[Tensor], expected: list[Tensor]) -> Callable[[], None]:
        """``step`` as a CUDA graph, if it matches the eager iteration; itself on a CPU."""
        on_gpu = self._device.type == "cuda"
        stream = torch.cuda.Stream(self._device) if on_gpu else None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream) if on_gpu else nullcontext():
            for _ in range(3):
                seen = self._seen(step, before)
        if stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        for what, mine, theirs, most in zip(("losses", "updates"), seen, expected, TOLERANCE, strict=True):
            difference = float((mine - theirs).norm() / theirs.norm())
            if not difference <= most:
                raise RuntimeError(f"its {what} differ from the eager iteration's by {100 * difference:.1f} %")
        if not on_gpu:
            return step
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def release_memory(self) -> None:
        """Free the captured iteration: a CUDA graph keeps the memory of its activations."""
        self._replay, self._drawn = None, ()
        super().release_memory()

    def _changing(self) -> list[Tensor]:
        return [*self._state.values(), *self._momenta, *self._averaged.values()]

    @torch.no_grad()
    def _restore(self, before: list[Tensor]) -> None:
        for tensor, value in zip(self._changing(), before, strict=True):
            tensor.copy_(value)

    def _chunk(self, inputs: Tensor) -> int:
        """Samples of each child in one forward pass; changed if a set is much larger than those before."""
        if len(inputs) >= 2 * self._size:
            self._size = min(CHUNK, len(inputs), super()._chunk(inputs))
        return self._size

    def _evaluate(self, state: State, inputs: Tensor, shared: bool) -> Tensor:
        if self._eager:
            return super()._evaluate(state, inputs, shared)
        axis = 0 if shared else 1
        size = inputs.shape[axis]
        if size < self._size:
            filler = inputs.narrow(axis, 0, 1)
            inputs = torch.cat([inputs, filler.repeat_interleave(self._size - size, axis)], axis)
        try:
            self._forward = self._forward or self._compiled_forward()
            with many_variants():
                outputs = self._forward(state, inputs, shared)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways
            self._warn("evaluation", error)
            outputs = super()._evaluate(state, inputs, shared)
        return outputs.narrow(1, 0, size)

    def _compiled_forward(self) -> Callable[..., Tensor]:
        by_blocks = self._by_blocks or (not self._whole and self._lift.compile_blocks())
        return super()._evaluate if by_blocks else torch.compile(super()._evaluate, dynamic=False)

    def _warn(self, what: str, error: Exception) -> None:
        """Warn once; nothing is compiled afterwards."""
        self._eager = True
        self._lift.uncompile_blocks()
        reason = (str(error).strip().splitlines() or [""])[0]
        warnings.warn(f"{what} is not compiled ({type(error).__name__}: {reason}); it runs eagerly.", stacklevel=2)


def _cache_counts() -> tuple[int, int]:
    """Graphs that were found in the compiler's cache, and those that were not, since the process began."""
    seen = torch._dynamo.utils.counters["inductor"]  # not imported above: torch._dynamo takes two seconds to import
    return seen["fxgraph_cache_hit"], seen["fxgraph_cache_miss"]


def _from_cache(before: tuple[int, int]) -> str:
    """How many graphs since ``before`` were found in the compiler's cache, as part of a sentence."""
    hits, misses = (now - then for now, then in zip(_cache_counts(), before, strict=True))
    return f", {hits} of {hits + misses} graphs from the cache" if hits else ""


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
