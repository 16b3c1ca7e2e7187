"""N children in one network."""

from lossalign.children.fused.convert import dropouts, fuse, unfusable, why_not_fused
from lossalign.children.fused.lift import FusedChildren, FusedLift

__all__ = ["FusedChildren", "FusedLift", "dropouts", "fuse", "unfusable", "why_not_fused"]
