"""Helpers of the benchmarks: children, timing, tables and the last line."""

import json
import os
import platform
import statistics
import time

import torch

from lossalign.children import Member
from lossalign.control import LearningController, default
from lossalign.core import generator
from lossalign.data import BatchStream, Dataset, fit_transform
from lossalign.models import build_model


def wait(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def seconds(works, device, rounds=5):
    """Median seconds of each ``work()``; they alternate, so that other load slows all of them."""
    times = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            wait(device)
            started = time.perf_counter()
            work()
            wait(device)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def images(shape, classes=10, number=5000):
    """Noise as uint8 images, or as floats if ``shape`` is that of a table's row."""
    draw = generator(0, "images", *shape)
    targets = torch.arange(number) % classes
    if len(shape) == 1:
        inputs = torch.randn(number, *shape, generator=draw)
    else:
        inputs = torch.randint(256, (number, *shape), generator=draw, dtype=torch.uint8)
    return Dataset(name="noise", inputs=inputs, targets=targets, class_names=tuple(map(str, range(classes))))


def members(model, data, batch, children, device):
    """Children with weights and batches of their own: normalised, and images cropped and mirrored at random."""
    shape = tuple(data.inputs.shape[1:])
    augment = {"crop": 4, "flip": True} if shape[-1] == 32 else {}
    transform = fit_transform(data, **augment)

    def member(child):
        network = build_model(
            model, input_shape=shape, num_classes=len(data.class_names), generator=generator(0, "weights", child)
        )
        return Member(
            network, child, lambda: BatchStream(data, batch, transform, generator(0, "batches", child), device)
        )

    return [member(child) for child in range(children)]


def controller(loss, children=1, preset=None, device="cpu"):
    """A learning controller of all parameters of a loss."""
    return LearningController(
        loss.spec,
        children=children,
        preset=preset or default(),
        statistics=loss.num_statistics,
        generator=generator(0, "controller"),
        device=device,
    )


def facts(device):
    """Hardware and versions."""
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else platform.machine()
    threads = {} if torch.device(device).type == "cuda" else {"threads": torch.get_num_threads()}
    return {
        "hardware": name,
        "cores": os.cpu_count(),
        **threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def table(title, rows):
    """Print rows of a table: the first cell names the row."""
    print(title)
    width = max(len(str(row[0])) for row in rows)
    for name, *cells in rows:
        print(f"  {name!s:{width}}  " + "  ".join(f"{cell:>12}" for cell in cells))


def last_line(device, **results):
    """The results as JSON, on one line."""
    print(json.dumps({**facts(device), **results}))
