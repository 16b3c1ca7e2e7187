"""Who trains: one child, or many, on the engine that is fastest for them."""

from lossalign.children.base import Children, Member, Stream, Weights
from lossalign.children.choose import Compile, Engine, choose_engine, make_children
from lossalign.children.compiled import CompiledChildren
from lossalign.children.fused import FusedChildren
from lossalign.children.recipe import Recipe, average_, average_decay, learning_rate
from lossalign.children.sequential import SequentialChildren
from lossalign.children.vmapped import VmapChildren

__all__ = [
    "Children",
    "Compile",
    "CompiledChildren",
    "Engine",
    "FusedChildren",
    "Member",
    "Recipe",
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
