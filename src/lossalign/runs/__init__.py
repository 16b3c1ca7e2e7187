"""Runs on disk: the run folder, the runner, and TensorBoard events."""

from lossalign.runs.find import Existing, find_policies
from lossalign.runs.folder import RETRIEVAL, RunFolder
from lossalign.runs.runner import Listener, run
from lossalign.runs.saved import Curves, PhiGroup, SavedRetrieval, SavedRun, finite_mean, read_groups

__all__ = [
    "RETRIEVAL",
    "Curves",
    "Existing",
    "Listener",
    "PhiGroup",
    "RunFolder",
    "SavedRetrieval",
    "SavedRun",
    "find_policies",
    "finite_mean",
    "read_groups",
    "run",
]
