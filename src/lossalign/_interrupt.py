"""Ctrl-C while the command line is still importing ends it without a traceback. The package imports this first."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


_as_module = sys.argv[:1] == ["-m"] and "lossalign" in sys.orig_argv
if _as_module or Path(sys.argv[0] if sys.argv else "").stem == "lossalign":
    sys.excepthook = _report
