"""One tree of errors: whoever catches the base catches all, and wrong input is a ValueError."""

from __future__ import annotations

import pytest

from lossalign import core


@pytest.mark.parametrize("name", ["CheckpointError", "InputError", "NonFiniteError", "RunFolderError"])
def test_every_error_is_ours(name: str) -> None:
    error = getattr(core, name)
    assert issubclass(error, core.LossalignError)
    assert issubclass(error, ValueError) == (error is core.InputError)
