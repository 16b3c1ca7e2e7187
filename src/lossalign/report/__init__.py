"""What a run folder has to say, in pictures; reads plain files, never a model."""

from lossalign.report.figures import curves_figure, phi_figure, write_pictures

__all__ = ["curves_figure", "phi_figure", "write_pictures"]
