"""The price of a child: one training iteration on each engine, in one run, as a ratio to the sequential engine.

    python benchmarks/children.py [CHILDREN]

Prints a table, and as its last line JSON with the ratios, hardware and versions.
"""

import json
import platform
import statistics
import sys
import time

import torch

from lossalign.children import Member, Recipe, SequentialChildren, VmapChildren
from lossalign.core import generator
from lossalign.losses import AlignedLoss
from lossalign.models import build_model

CASES = [("mlp-16", (1, 8, 8), 32), ("mlp-64-64", (1, 8, 8), 32), ("mlp-256-256", (3, 32, 32), 128)]
CASES += [("small-cnn", (1, 8, 8), 32), ("resnet8", (1, 8, 8), 32), ("resnet8", (3, 32, 32), 128)]


class Noise:
    """Batches of noise, made once."""

    def __init__(self, shape, batch, seed):
        draw = generator(seed, "noise")
        self.inputs = torch.randn(batch, *shape, generator=draw)
        self.targets = torch.randint(10, (batch,), generator=draw)

    def next(self):
        return self.inputs, self.targets


def iteration_seconds(engines, phi, rounds=5):
    """Median seconds of one iteration of each engine; engines take turns, so that a busy machine slows both."""
    times = {name: [] for name in engines}
    for engine in engines.values():
        engine.advance(1, phi)
    for _ in range(rounds):
        for name, engine in engines.items():
            started = time.perf_counter()
            engine.advance(2, phi)
            times[name].append((time.perf_counter() - started) / 2)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(name, shape, batch, children):
    loss, recipe = AlignedLoss(10), Recipe(iterations=1000)
    members = [
        Member(
            build_model(name, input_shape=shape, num_classes=10, generator=generator(0, child)),
            child,
            lambda child=child: Noise(shape, batch, child),
        )
        for child in range(children)
    ]
    engines = {"sequential": SequentialChildren(members, loss, recipe), "vmap": VmapChildren(members, loss, recipe)}
    seconds = iteration_seconds(engines, loss.spec.initial.expand(children, -1))
    weights = sum(p.numel() for p in members[0].model.parameters())
    return {
        "model": name,
        "input": list(shape),
        "weights": weights,
        "vmap/sequential": round(seconds["vmap"] / seconds["sequential"], 3),
    }


def main():
    children = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.set_num_threads(1)
    rows = [measure(name, shape, batch, children) for name, shape, batch in CASES]
    for row in rows:
        ratio = row["vmap/sequential"]
        print(f"{row['model']:12} {row['input']!s:12} {row['weights']:9,} weights   vmap / sequential {ratio:.2f}")
    print(json.dumps({"children": children, "torch": torch.__version__, "machine": platform.machine(), "ratios": rows}))


if __name__ == "__main__":
    main()
