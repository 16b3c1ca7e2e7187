"""Rivals: controllers that ALA is compared with. They use the same protocol, so that only the decision differs."""

from lossalign.rivals.population_based import PopulationBasedController
from lossalign.rivals.replayed import ReplayedController, Schedule, rescaled
from lossalign.rivals.rule import RuleController
from lossalign.rivals.rules import (
    confusion_matrix,
    confusion_rule,
    metric_gradient,
    proportional_rule,
    random_matrix,
    random_phi,
)
from lossalign.rivals.schedules import (
    cost_weights,
    designed,
    effective_number,
    fixed,
    inverse_frequency,
    logit_adjustment,
)
from lossalign.rivals.surviving import Heritable, Surviving

__all__ = [
    "Heritable",
    "PopulationBasedController",
    "ReplayedController",
    "RuleController",
    "Schedule",
    "Surviving",
    "confusion_matrix",
    "confusion_rule",
    "cost_weights",
    "designed",
    "effective_number",
    "fixed",
    "inverse_frequency",
    "logit_adjustment",
    "metric_gradient",
    "proportional_rule",
    "random_matrix",
    "random_phi",
    "rescaled",
]
