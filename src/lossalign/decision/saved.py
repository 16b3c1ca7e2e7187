"""Files of decisions: safetensors with a description."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lossalign.core import VERSION, InputError

_FORMAT = "lossalign-decision"
_VERSION = 1

T = TypeVar("T")


def write_file(path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Path:
    """Write tensors and what they are, as JSON values."""
    path = Path(path)
    described = {"format": _FORMAT, "version": _VERSION, "written_by": f"lossalign {VERSION}", "about": about}
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file(kept, path, metadata={"lossalign": json.dumps(described)})
    return path


def read_file(path: str | Path, make: Callable[[dict[str, Tensor], dict[str, Any]], T]) -> T:
    """What ``make`` makes of the tensors and the description; ``InputError`` if the file is of another kind."""
    if not Path(path).is_file():
        raise InputError(f"decision: {path} is not a file; give the .safetensors file that Decision.save wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads((file.metadata() or {})["lossalign"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if described["format"] != _FORMAT:
            raise KeyError(described["format"])
        if described["version"] > _VERSION:
            raise InputError(
                f"decision: {path} has format version {described['version']}, this lossalign reads up to {_VERSION}; "
                "install a newer lossalign."
            )
        return make(tensors, described["about"])
    except (SafetensorError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise InputError(
            f"decision: {path} is not a lossalign decision ({error.__class__.__name__}); give a file that "
            "Decision.save wrote."
        ) from error
