"""The picture of a decision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lossalign.core import InputError
from lossalign.decision import Decision
from lossalign.report import decision_figure


@pytest.mark.parametrize("metric", ["balanced-error", "auroc"])
def test_it_is_drawn_with_and_without_candidates(metric: str, tmp_path: Path) -> None:
    outputs = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    decision = Decision.fit(outputs, torch.arange(3).repeat(10), metric)
    path = decision_figure(decision, tmp_path / "decision.png", ["ant", "bee", "cat"])
    assert path.stat().st_size > 5000


def test_several_labels_have_no_gains(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, targets = (
        torch.randn(40, 2, generator=draw),
        torch.arange(2).repeat(40).view(40, 2).bitwise_xor(torch.arange(40)[:, None] % 2),
    )

    def accuracy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((scores > 0) == (labels > 0)).float().mean()

    decision = Decision.fit(outputs, targets, accuracy, higher_is_better=True)
    with pytest.raises(InputError, match="has no gains"):
        decision_figure(decision, tmp_path / "decision.png")
