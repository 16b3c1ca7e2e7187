"""Where a run was started: command line, launch, hardware and versions."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lossalign.core import VERSION


def command() -> str:
    """The command line of this process, or the script that called the library."""
    program, *args = sys.argv or ["python"]
    name = "lossalign" if Path(program).stem in ("lossalign", "__main__") else Path(program).name
    return shlex.join([name, *args])


def launch() -> str | None:
    """An identifier of the torchrun that started this process, kept over its restarts; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # Without --rdzv-id or --standalone every run is called "none"; the agent's process distinguishes them.
    return f"{platform.node()}/{os.getppid()}" if name == "none" else name


def environment() -> dict[str, Any]:
    """Hardware and versions of this process."""
    packages = ("torch", "numpy", "safetensors", "torchmetrics", "rich")
    versions = {"lossalign": VERSION}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": versions,
        "command": command(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
