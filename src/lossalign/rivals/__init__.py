"""Rivals: controllers that ALA is compared with. They use the same protocol, so that only the decision differs."""

from lossalign.rivals.population_based import PopulationBasedController
from lossalign.rivals.replayed import ReplayedController, Schedule, rescaled
from lossalign.rivals.rules import confusion_matrix, proportional_rule, random_matrix, random_phi
from lossalign.rivals.schedules import (
    cost_weights,
    designed,
    effective_number,
    fixed,
    inverse_frequency,
    logit_adjustment,
)

__all__ = [
    "PopulationBasedController",
    "ReplayedController",
    "Schedule",
    "confusion_matrix",
    "cost_weights",
    "designed",
    "effective_number",
    "fixed",
    "inverse_frequency",
    "logit_adjustment",
    "proportional_rule",
    "random_matrix",
    "random_phi",
    "rescaled",
]
