"""Experiments: config, tasks, recipe files, methods, and building a run from them."""

from lossalign.experiments.build import Arm, Experiment, build, labelled
from lossalign.experiments.config import Config
from lossalign.experiments.keys import KEYS, SECTIONS, Key, by_key, check_key, from_plain, plain_by_key, to_plain
from lossalign.experiments.methods import METHODS, MethodSpec, Role, parse_method
from lossalign.experiments.recipes import is_recipe, write_recipe
from lossalign.experiments.tasks import TASKS, compared, configure

__all__ = [
    "KEYS",
    "METHODS",
    "SECTIONS",
    "TASKS",
    "Arm",
    "Config",
    "Experiment",
    "Key",
    "MethodSpec",
    "Role",
    "build",
    "by_key",
    "check_key",
    "compared",
    "configure",
    "from_plain",
    "is_recipe",
    "labelled",
    "parse_method",
    "plain_by_key",
    "to_plain",
    "write_recipe",
]
