"""The command line of lossalign."""
