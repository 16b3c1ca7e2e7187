"""Files of decisions, and what a wrong argument is answered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lossalign.control import Policy
from lossalign.core import InputError
from lossalign.decision import Decision, saved
from lossalign.metrics import AUROC, BalancedError, MeanCost


def long_tailed(seed: int, classes: int, each: int, sharpness: float = 2.0, tilt: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits [V, C] of a model that prefers the first classes, and balanced labels [V]."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(classes).repeat_interleave(each)
    noise = torch.randn(len(targets), classes, generator=draw)
    signal = sharpness * torch.nn.functional.one_hot(targets, classes)
    return signal + noise - tilt * torch.arange(classes) / classes, targets


OUTPUTS, TARGETS = long_tailed(0, 3, 10)


def several() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    targets = (torch.rand(60, 2, generator=draw) < 0.3).long()
    return targets + torch.randn(60, 2, generator=draw) - 2, targets


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0)).float().mean()


@pytest.mark.parametrize(
    ("outputs", "targets", "metric"),
    [
        (OUTPUTS, TARGETS, BalancedError()),
        (OUTPUTS, TARGETS, AUROC()),
        (OUTPUTS, TARGETS, MeanCost(torch.ones(3, 3) - torch.eye(3))),
        (OUTPUTS[:20, 0], TARGETS[:20], accuracy),
        (*several(), accuracy),
    ],
    ids=["classes", "left alone", "costs", "binary", "labels"],
)
def test_a_loaded_decision_is_the_saved_one(outputs: Tensor, targets: Tensor, metric: object, tmp_path: Path) -> None:
    decision = Decision.fit(outputs, targets, metric, True if metric is accuracy else None)
    loaded = Decision.load(decision.save(tmp_path / "new" / "decision.safetensors"))
    torch.testing.assert_close(loaded(outputs), decision(outputs), rtol=0, atol=0)
    torch.testing.assert_close(loaded.probabilities(outputs), decision.probabilities(outputs), rtol=0, atol=0)
    assert loaded.show() == decision.show()
    assert repr(loaded) == repr(decision)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        Decision.load(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    save_file({"w": torch.ones(1)}, tmp_path / "plain.safetensors")
    policy = Policy.pretrained().save(tmp_path / "policy.safetensors")
    for path in (tmp_path / "text.safetensors", tmp_path / "plain.safetensors", policy):
        with pytest.raises(InputError, match="is not a lossalign decision"):
            Decision.load(path)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "_VERSION", 2)
    path = Decision.fit(OUTPUTS, TARGETS, "error").save(tmp_path / "decision.safetensors")
    monkeypatch.undo()
    with pytest.raises(InputError, match="format version 2"):
        Decision.load(path)


def ordered(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float() @ torch.arange(len(targets)).float()


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("outputs", "targets", "metric", "words"),
    [
        (OUTPUTS, TARGETS.clamp_max(1), "error", "no sample of class 2"),
        (OUTPUTS, TARGETS + 1, "error", "targets hold 3, outputs are for labels 0 … 2"),
        (OUTPUTS, -TARGETS, "error", "targets hold -2"),
        (OUTPUTS, TARGETS[:7], "error", "one label per output row"),
        (OUTPUTS[None], TARGETS[:1], "error", r"outputs have shape \(1, 30, 3\)"),
        (OUTPUTS, TARGETS[:, None], "error", "give labels .V. for classes"),
        (OUTPUTS * torch.nan, TARGETS, "error", "outputs hold NaN"),
        (OUTPUTS.long(), TARGETS, "error", "outputs are of type"),
        (OUTPUTS, TARGETS + 0.5, "error", "targets are not whole numbers"),
        (OUTPUTS, TARGETS, MeanCost(torch.ones(2, 2)), "costs is for 2 classes"),
        (OUTPUTS, TARGETS, lambda model, loader: 0.0, "pipeline"),
        (OUTPUTS, TARGETS, ordered, "order of the samples"),
        (OUTPUTS, TARGETS, broken, "RuntimeError: no such thing"),
        (OUTPUTS, TARGETS, nn.Linear, "pass an instance"),
        (torch.randn(20, 2), torch.ones(20, 2), accuracy, "label 0 are all alike"),
    ],
)
def test_a_wrong_argument_gets_one_sentence(outputs: Tensor, targets: Tensor, metric: object, words: str) -> None:
    direction = None if isinstance(metric, str | MeanCost) else True
    with pytest.raises(InputError, match=words) as found:
        Decision.fit(outputs, targets, metric, direction)
    assert str(found.value).removesuffix("e.g. Linear().").count(". ") == 0


@pytest.mark.parametrize("shape", [(4, 2), (3,)])
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    decision = Decision.fit(OUTPUTS, TARGETS, "error")
    for use in (decision, decision.labels, decision.probabilities):
        with pytest.raises(InputError, match="was fitted to"):
            use(torch.zeros(shape))  # type: ignore[operator]
