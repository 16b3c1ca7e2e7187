"""Recipes, methods, the runner and its statistics: the only place where the rooms are wired together."""

from lossalign.experiments.config import RunConfig
from lossalign.experiments.fit import fit
from lossalign.experiments.methods import METHODS
from lossalign.experiments.recipes import RECIPES, recipe_for
from lossalign.experiments.results import Result
from lossalign.experiments.runner import Interrupted, Listener, run

__all__ = ["METHODS", "RECIPES", "Interrupted", "Listener", "Result", "RunConfig", "fit", "recipe_for", "run"]
