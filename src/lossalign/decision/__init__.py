"""Decisions after training: calibrate the outputs, learn what the metric minds, decide for it."""

from lossalign.decision.calibration import calibrate, expected_costs
from lossalign.decision.candidates import Candidate, calibrations, find_candidates
from lossalign.decision.choice import Choice, Folds, choose, make_folds, out_of_fold, resampled
from lossalign.decision.counts import CountsScore, as_outputs, confusions, rounded
from lossalign.decision.decision import Decision
from lossalign.decision.elicitation import elicit
from lossalign.decision.fit import Fitted, Row, fit_gains
from lossalign.decision.search import Evidence, fit_offsets, frank_wolfe, search_offsets, standardised
from lossalign.decision.thresholds import Thresholds, fit_thresholds

__all__ = [
    "Candidate",
    "Choice",
    "CountsScore",
    "Decision",
    "Evidence",
    "Fitted",
    "Folds",
    "Row",
    "Thresholds",
    "as_outputs",
    "calibrate",
    "calibrations",
    "choose",
    "confusions",
    "elicit",
    "expected_costs",
    "find_candidates",
    "fit_gains",
    "fit_offsets",
    "fit_thresholds",
    "frank_wolfe",
    "make_folds",
    "out_of_fold",
    "resampled",
    "rounded",
    "search_offsets",
    "standardised",
]
