"""Children, the models of a population, and the engines that train them."""

from lossalign.children.base import Children, LossFunction, Member, Stream, Weights
from lossalign.children.choose import Compile, Engine, choose_engine, make_children
from lossalign.children.compiled import CompiledChildren
from lossalign.children.fused import FusedChildren
from lossalign.children.optimisation import Optimisation, average_, average_decay, learning_rate
from lossalign.children.sequential import SequentialChildren
from lossalign.children.vmapped import VmapChildren

__all__ = [
    "Children",
    "Compile",
    "CompiledChildren",
    "Engine",
    "FusedChildren",
    "LossFunction",
    "Member",
    "Optimisation",
    "SequentialChildren",
    "Stream",
    "VmapChildren",
    "Weights",
    "average_",
    "average_decay",
    "choose_engine",
    "learning_rate",
    "make_children",
]
