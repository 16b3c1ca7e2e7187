"""Evaluation of a trained run: scores, statistics, explained reward, and retrieval examples."""

from lossalign.evaluation.gallery import gallery, shown_children
from lossalign.evaluation.result import Chosen, Result, best_child, summarise
from lossalign.evaluation.scores import Scores, score
from lossalign.evaluation.statistics import Paired, difference, in_units

__all__ = [
    "Chosen",
    "Paired",
    "Result",
    "Scores",
    "best_child",
    "difference",
    "gallery",
    "in_units",
    "score",
    "shown_children",
    "summarise",
]
