"""The version of lossalign, read by the build too."""

VERSION = "0.2.0"
