"""A few steps of training on fixed seeds, compared with what they were when the code was last changed on purpose.

After such a change: ``python tests/golden/test_curves.py`` writes the new values; say why in the commit.
"""

import json
from pathlib import Path

import pytest

from lossalign.experiments import build, configure

GOLDEN = Path(__file__).with_name("curves.json")
CASES = {
    "default": {"preset": "default", "methods": ("fixed", "logit-adjustment", "ala")},
    "paper": {"preset": "paper", "methods": ("ala",)},
}


def curves(case):
    """Losses, metrics and Φ of every child at 8 steps."""
    config = configure(
        "digits-lt", {"children": 2, "seeds": 1, "iterations": 80, "engine": "sequential", **CASES[case]}
    )
    (population,) = build(config).populations.values()
    records = [population.step() for _ in range(config.steps)]
    return {
        "loss": [[round(v, 4) for v in record.loss.tolist()] for record in records],
        "metric": [[round(v, 4) for v in record.metric.tolist()] for record in records],
        "phi": [round(float(v), 3) for v in population.history[0][-1].flatten()],
    }


@pytest.mark.parametrize("case", CASES)
def test_curves_are_what_they_were(case):
    golden, now = json.loads(GOLDEN.read_text())[case], curves(case)
    for name in golden:
        for then, here in zip(golden[name], now[name], strict=True):
            assert here == pytest.approx(then, abs=2e-3), name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({case: curves(case) for case in CASES}, indent=1) + "\n")
