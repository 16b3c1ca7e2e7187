"""``Decision``: how to decide for a metric, given a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.decision.candidates import calibrations
from lossalign.decision.fit import Row, fit_gains
from lossalign.decision.inputs import Form, Problem, as_classes, read
from lossalign.decision.saved import read_file, write_file
from lossalign.decision.thresholds import fit_thresholds


class Decision:
    """A decision fitted to a metric on validation outputs: argmax_j Σ_i p_i G_ij, p = softmax(scale · z + bias).

    Make one with ``Decision.fit`` or ``Decision.load``. It is for outputs of the form it was fitted to: those of
    classes [..., V, C], of which it may decide among other samples and of other children of a population; binary
    outputs [V] or [V, 1]; or one output for each of several labels [V, L].

    Attributes:
        scale, bias: of the calibration; scalar and [C], of several labels [L] and [L].
        gains: G [C, C], row: true class, column: decision; of several labels None.
        thresholds: what binary outputs, or each of several labels [L], must exceed; of more classes None.
        chosen: name of the candidate that was kept: ``none``, ``prior``, ``gains``, ``offsets``, ``expected-gains``,
            ``expected-offsets``, or ``costs`` for a metric of costs.
        shrinkage: how far it goes from doing nothing, 0 … 1; of ``prior`` the power of the classes' shares.
        note: why the outputs are left alone, if they must be; else empty.
        rows: every candidate with its score out of fold.
        metric: name of the metric.

    Example:
        >>> import lossalign as la
        >>> outputs = torch.tensor([[2.0, 1.5], [2.0, 0.0], [1.0, 0.0], [1.0, 0.8]] * 10)
        >>> targets = torch.tensor([1, 0, 0, 1] * 10)
        >>> decision = la.Decision.fit(outputs, targets, "balanced-error")
        >>> decision.labels(outputs)[:4]
        tensor([1, 0, 0, 1])
    """

    def __init__(
        self,
        *,
        form: Form,
        scale: Tensor,
        bias: Tensor,
        gains: Tensor | None,
        chosen: str,
        shrinkage: float,
        metric: str,
        odds: Tensor | None = None,
        note: str = "",
        rows: Sequence[Row] = (),
    ) -> None:
        self.form, self.scale, self.bias, self.gains, self._odds = form, scale, bias, gains, odds
        self.chosen, self.shrinkage, self.metric, self.note, self.rows = chosen, shrinkage, metric, note, tuple(rows)

    @classmethod
    def fit(
        cls,
        outputs: Any,
        targets: Any,
        metric: object,
        higher_is_better: bool | None = None,
        *,
        repeats: int | None = None,
    ) -> Decision:
        """The decision for ``metric``, chosen on validation samples that its candidates were not fitted to.

        A metric that depends on more than the decisions (AUROC, Recall@k, a loss) leaves the outputs alone; ``note``
        says so. A ``MeanCost`` gives the Bayes decision on calibrated probabilities. Any other metric must be a
        function of the pairs (decision, label). The fit draws nothing from global generators.

        Args:
            outputs: logits or log-probabilities of validation samples: [V, C]; [V] or [V, 1] if binary, positive for
                class 1; [V, L] for several labels. Probabilities must be given as their logarithms.
            targets: labels [V], of which every class must occur; for several labels 0 and 1 [V, L].
            metric: one of ours, a ``torchmetrics.Metric``, a function ``(outputs, targets) -> float``, or a name. One
                that is not vectorised is called at most 32 · (C² + 2) + 272 C + 320 times for up to 16 classes.
            higher_is_better: the direction of a metric that has none of its own.
            repeats: most cross-validations that the choice among candidates is averaged over, each with other folds;
                None: 5, and fewer for many samples. A fit with 1 takes a quarter of the time.
        """
        with torch.no_grad():
            problem = read(outputs, targets, metric, higher_is_better)
            if problem.note:
                return cls._alone(problem)
            return cls._of_labels(problem) if problem.form == "labels" else cls._of_classes(problem, repeats)

    @classmethod
    def _alone(cls, problem: Problem) -> Decision:
        size = problem.outputs.shape[-1] if problem.outputs.ndim > 1 else 2
        known = problem.form != "labels" and not problem.metric.pairwise
        common: dict[str, Any] = {"form": problem.form, "chosen": "none", "shrinkage": 0.0, "note": problem.note}
        common["metric"] = problem.metric.name
        if known:
            seen = torch.ones(1, len(problem.outputs), device=problem.outputs.device)
            found = calibrations(problem.outputs, problem.targets, seen)
            gains = torch.diag((-found.bias[0]).exp())
            return cls(scale=found.scale[0], bias=found.bias[0], gains=gains, **common)
        several = problem.form == "labels"
        return cls(
            scale=torch.ones(size) if several else torch.ones(()),
            bias=torch.zeros(size),
            gains=None if several else torch.eye(size),
            odds=torch.zeros(size) if several else None,
            **common,
        )

    @classmethod
    def _of_classes(cls, problem: Problem, repeats: int | None) -> Decision:
        found = fit_gains(problem.outputs, problem.targets, problem.metric, problem.scale_free, repeats)
        return cls(
            form=problem.form,
            scale=found.scale,
            bias=found.bias,
            gains=found.gains,
            chosen=found.rows[found.kept].name,
            shrinkage=found.rows[found.kept].shrinkage,
            metric=problem.metric.name,
            rows=found.rows,
        )

    @classmethod
    def _of_labels(cls, problem: Problem) -> Decision:
        found = fit_thresholds(problem.outputs, problem.targets, problem.metric)
        kept = found.rows[found.kept]
        return cls(
            form="labels",
            scale=found.scale,
            bias=found.bias,
            gains=None,
            odds=found.threshold,
            chosen=kept.name,
            shrinkage=kept.shrinkage,
            metric=problem.metric.name,
            rows=found.rows,
        )

    def __call__(self, outputs: Tensor) -> Tensor:
        """Adjusted scores in the shape of the outputs.

        Of classes [..., V, C]: their argmax is the decision. Binary, or of several labels: positive is the decision
        for class 1. If ``chosen`` is ``none``, these are the outputs themselves.
        """
        self._check(outputs)
        if self.chosen == "none":
            return outputs
        if self.form == "labels":
            assert self._odds is not None
            return self.scale.to(outputs) * outputs + (self.bias - self._odds).to(outputs)
        assert self.gains is not None
        scores = self._softmax(outputs) @ self.gains.to(outputs)
        return scores if self.form == "classes" else (scores[..., 1] - scores[..., 0]).view_as(outputs)

    def labels(self, outputs: Tensor) -> Tensor:
        """The decisions: classes [..., V]; binary, or of several labels, 0 or 1 in the shape of the outputs."""
        scores = self(outputs)
        return scores.argmax(-1) if self.form == "classes" else (scores > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Calibrated probabilities in the shape of the outputs; binary, or of several labels: of class 1."""
        self._check(outputs)
        if self.form == "labels":
            return (self.scale.to(outputs) * outputs + self.bias.to(outputs)).sigmoid()
        found = self._softmax(outputs)
        return found if self.form == "classes" else found[..., 1].view_as(outputs)

    @property
    def thresholds(self) -> Tensor | None:
        """What outputs must exceed for class 1: a scalar if binary, [L] for several labels; None for classes."""
        if self.form == "labels":
            assert self._odds is not None
            return (self._odds - self.bias) / self.scale if self.chosen != "none" else torch.zeros_like(self.bias)
        if self.form == "classes" or self.gains is None:
            return None
        if self.chosen == "none":
            return torch.zeros_like(self.scale)
        wrong, right = self.gains[0, 0] - self.gains[0, 1], self.gains[1, 1] - self.gains[1, 0]
        odds = wrong.clamp_min(1e-12).log() - right.clamp_min(1e-12).log()
        return (odds - (self.bias[1] - self.bias[0])) / self.scale

    @property
    def out_of_fold(self) -> float | None:
        """The metric of what was kept, on validation samples that its fits did not see; None if nothing was fitted."""
        return next(
            (row.score for row in self.rows if (row.name, row.shrinkage) == (self.chosen, self.shrinkage)), None
        )

    def show(self) -> str:
        """The candidates and their scores out of fold, as a table of text; ``>`` marks the one that was kept."""
        if self.note or not self.rows:
            return f"{self!r}\n{self.note}".rstrip()
        width = max(10, len(self.metric) + 2)
        lines = [f"  {'candidate':18}{'shrinkage':>9}{self.metric:>{width}}{'gain':>10}{'± s.e.':>10}"]
        for row in self.rows:
            mark = ">" if (row.name, row.shrinkage) == (self.chosen, self.shrinkage) else ""
            numbers = f"{row.score:{width}.4f}{row.gain:+10.4f}{row.error:10.4f}"
            lines.append(f"{mark:2}{row.name:18}{row.shrinkage:9.2g}{numbers}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        size = len(self.bias)
        what = {"classes": f"{size} classes", "labels": f"{size} labels"}.get(self.form, "binary outputs")
        return f"Decision({what}, metric={self.metric!r}, chosen={self.chosen!r}, shrinkage={self.shrinkage:g})"

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file that ``Decision.load`` reads."""
        tensors = {"scale": self.scale, "bias": self.bias, "gains": self.gains, "odds": self._odds}
        about = {"form": self.form, "chosen": self.chosen, "shrinkage": self.shrinkage, "metric": self.metric}
        rows = [list(row) for row in self.rows]
        return write_file(
            path, {k: v for k, v in tensors.items() if v is not None}, {**about, "note": self.note, "rows": rows}
        )

    @classmethod
    def load(cls, path: str | Path) -> Decision:
        """Read a decision that ``save`` wrote."""
        return read_file(
            path,
            lambda tensors, about: cls(
                **{"gains": None, "odds": None, **tensors, **about, "rows": [Row(*row) for row in about["rows"]]}
            ),
        )

    def _softmax(self, outputs: Tensor) -> Tensor:
        z = outputs if self.form == "classes" else as_classes(outputs.flatten())
        return (self.scale.to(outputs) * z + self.bias.to(outputs)).softmax(-1)

    def _check(self, outputs: Tensor) -> None:
        wrong = {
            "classes": outputs.ndim < 2 or outputs.shape[-1] != len(self.bias),
            "binary": outputs.ndim != 1,
            "column": outputs.ndim != 2 or outputs.shape[-1] != 1,
            "labels": outputs.ndim < 2 or outputs.shape[-1] != len(self.bias),
        }
        if wrong[self.form]:
            expected = {"binary": "[V]", "column": "[V, 1]"}.get(self.form, f"[..., V, {len(self.bias)}]")
            raise InputError(f"outputs have shape {tuple(outputs.shape)}; this decision was fitted to {expected}.")
