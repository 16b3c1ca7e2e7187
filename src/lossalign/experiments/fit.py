"""Train from Python as the command line does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lossalign.core import Ranks
from lossalign.experiments.folder import Existing
from lossalign.experiments.recipes import recipe_for
from lossalign.experiments.results import Result
from lossalign.experiments.runner import Listener, run


def fit(
    task: str,
    *,
    out: str | Path,
    existing: Existing = "refuse",
    final: bool = False,
    listener: Listener | None = None,
    **changes: Any,
) -> Result:
    """Train a population on a task and write its run folder.

    In a ``torch.distributed`` process group every rank calls it: the children are spread over the ranks, rank 0 writes
    the folder, and all get the result.

    Args:
        task: ``digits-lt``, ``cifar10-lt``, ``table:FILE``, ``images:FOLDER`` …
        out: the run folder.
        existing: ``refuse``, ``resume`` or ``overwrite`` a folder that exists.
        final: score the test split, once, instead of the selection split.
        listener: told what happens meanwhile.
        changes: fields of ``RunConfig``, e.g. ``children=4, methods=("fixed", "ala")``.
    """
    config = Ranks.current().guarded(lambda: recipe_for(task, **changes))
    return run(config, Path(out), existing=existing, final=final, listener=listener)
