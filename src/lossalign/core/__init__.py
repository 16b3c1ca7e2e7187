"""Types that every room shares. Imports torch alone."""

from lossalign.core.errors import (
    CheckpointError,
    InputError,
    LossalignError,
    NonFiniteError,
    RankError,
    RunFolderError,
)
from lossalign.core.heirs import heirs
from lossalign.core.layers import CosineLinear, scaled_cosine
from lossalign.core.parameters import ParameterGroup, ParameterSpec
from lossalign.core.plugs import import_plug
from lossalign.core.ranks import Ranks, check_same, fingerprint
from lossalign.core.seeding import generator
from lossalign.core.types import Controller, Observation

__all__ = [
    "CheckpointError",
    "Controller",
    "CosineLinear",
    "InputError",
    "LossalignError",
    "NonFiniteError",
    "Observation",
    "ParameterGroup",
    "ParameterSpec",
    "RankError",
    "Ranks",
    "RunFolderError",
    "check_same",
    "fingerprint",
    "generator",
    "heirs",
    "import_plug",
    "scaled_cosine",
]
