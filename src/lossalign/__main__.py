"""``python -m lossalign``."""

from lossalign.cli.main import main

main()
