"""Figures of a run folder, drawn from its plain files without a model; and the figure of a decision."""

from lossalign.report.decision import decision_figure
from lossalign.report.figures import curves_figure, phi_figure, write_pictures
from lossalign.report.retrieval import distances_figure, neighbours_figure, write_retrieval

__all__ = [
    "curves_figure",
    "decision_figure",
    "distances_figure",
    "neighbours_figure",
    "phi_figure",
    "write_pictures",
    "write_retrieval",
]
