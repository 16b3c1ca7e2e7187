"""What ALA is measured against. Rivals move Φ through the same protocol, so that only the decision differs."""

from lossalign.rivals.post_hoc import fit_offsets
from lossalign.rivals.rules import ConfusionMatrix, ProportionalRule, RandomMatrix
from lossalign.rivals.schedules import designed, effective_number, fixed, inverse_frequency, logit_adjustment

__all__ = [
    "ConfusionMatrix",
    "ProportionalRule",
    "RandomMatrix",
    "designed",
    "effective_number",
    "fit_offsets",
    "fixed",
    "inverse_frequency",
    "logit_adjustment",
]
