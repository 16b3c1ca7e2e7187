"""Time to the first step of children that are compiled: as a whole, by their repeated blocks, and from a warm cache.

    python benchmarks/start.py [--device cpu | cuda] [--model resnet32] [--children 10] [--batch 128]

Each case is a process of its own. A cold case has an empty cache; a warm one has that of the case before it. With
"eight losses" the children train under eight losses instead of one (and are eight, if they were fewer). The time is
that of the first iteration: tracing, compiling, the comparison with the eager iteration, and capture on a GPU. Takes
five minutes on a CPU with --children 8 --batch 4. Prints a table, and as its last line JSON.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch
from common import images, last_line, members, table

from lossalign.children import CompiledChildren, Optimisation
from lossalign.children.fused import FusedLift
from lossalign.losses import Narrowed
from lossalign.losses.registry import LossSettings, make_loss

CASES = {
    "as a whole": ("whole", 1, "cold"),
    "by blocks": ("blocks", 1, "cold"),
    "by blocks, warm cache": ("blocks", 1, "warm"),
    "by blocks, eight losses": ("blocks", 8, "cold"),
}
NAMES = (
    "aligned",
    "class-correlation",
    "log-class-correlation",
    "ranking",
    "pairwise",
    "smooth-ap",
    "ldam",
    "l-softmax",
)


def losses(number, device):
    """So many losses of ten classes; each reads as many parameters as it has."""
    made = [make_loss(name, LossSettings(counts=torch.full((10,), 100))).to(device) for name in NAMES[:number]]
    return [Narrowed(loss) for loss in made], max(loss.spec.size for loss in made)


def first_step(options, way, number):
    """Print the seconds of the first iteration, and the milliseconds of a later one."""
    if way == "whole":
        FusedLift.compile_blocks = lambda self: False
    device, count = options.device, max(options.children, number)
    made, widest = losses(number, device)
    each = [made[child * number // count] for child in range(count)]
    precision = "bfloat16" if device == "cuda" else "float32"
    optimisation = Optimisation(iterations=10_000, learning_rate=0.01, precision=precision)
    some = members(options.model, images((3, 32, 32)), options.batch, count, device)
    children = CompiledChildren(some, each, optimisation, device, lift=FusedLift)
    phi = torch.zeros(count, widest)

    def advance(iterations):
        began = time.perf_counter()
        children.advance(iterations, phi)
        return time.perf_counter() - began

    first, many = advance(1), 200 if device == "cuda" else 3
    print(first, 1e3 * advance(many) / many)


def measure(options, case, cache):
    """Seconds of the first iteration and milliseconds of a later one, in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--device", options.device, "--model", options.model]
    command += ["--children", str(options.children), "--batch", str(options.batch)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()[-2:]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--children", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--case")
    options = parser.parse_args()
    if options.case:
        way, number, _ = CASES[options.case]
        torch.set_num_threads(1)
        first_step(options, way, number)
        return
    found, rows, caches = {}, [("compiled", "first step, s", "iteration, ms")], []
    for case, (_, _, cache) in CASES.items():
        if cache == "cold":
            caches.append(tempfile.TemporaryDirectory())
        seconds, milliseconds = measure(options, case, caches[-1].name)
        found[case] = {"first_s": round(seconds, 1), "iteration_ms": round(milliseconds, 2)}
        rows.append((case, *found[case].values()))
        print(case, *found[case].values(), flush=True)
    table(f"{options.children} × {options.model}, batch {options.batch}", rows)
    last_line(options.device, model=options.model, children=options.children, batch=options.batch, **found)


if __name__ == "__main__":
    main()
