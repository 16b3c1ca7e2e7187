"""The command line: a thin skin over ``lossalign.experiments``."""
