"""Types that all packages of lossalign share. Depends on PyTorch only."""

from lossalign.core.errors import (
    CheckpointError,
    InputError,
    Interrupted,
    LossalignError,
    NonFiniteError,
    RankError,
    RunFolderError,
)
from lossalign.core.inheritance import choose_parents
from lossalign.core.layers import CosineLinear, scaled_cosine
from lossalign.core.lifting import lifting
from lossalign.core.parameters import ParameterGroup, ParameterSpec
from lossalign.core.plugs import OBJECT, import_plug, offer_plug
from lossalign.core.ranks import Ranks, check_same, fingerprint
from lossalign.core.registry import Registry
from lossalign.core.seeding import generator
from lossalign.core.softmax import log_softmax
from lossalign.core.types import Controller, Observation, Wanted, wants
from lossalign.core.version import VERSION

__all__ = [
    "OBJECT",
    "VERSION",
    "CheckpointError",
    "Controller",
    "CosineLinear",
    "InputError",
    "Interrupted",
    "LossalignError",
    "NonFiniteError",
    "Observation",
    "ParameterGroup",
    "ParameterSpec",
    "RankError",
    "Ranks",
    "Registry",
    "RunFolderError",
    "Wanted",
    "check_same",
    "choose_parents",
    "fingerprint",
    "generator",
    "import_plug",
    "lifting",
    "log_softmax",
    "offer_plug",
    "scaled_cosine",
    "wants",
]
