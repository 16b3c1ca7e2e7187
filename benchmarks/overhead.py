"""The cost of the adaptive loss compared with training alone.

    python benchmarks/overhead.py [cpu | cuda] [controller | alignment]

Alignment: one step of K iterations with ALA (one evaluation of the validation split, as in the default preset, or
three, and one of the selection split; the controller learns) compared with the same K iterations alone, and with
one evaluation of the selection split, which picking the best weights needs without ALA too. On a GPU: ResNet-32,
batch 128, K = 200, 5,000 validation images, one child and ten; on a CPU: a small CNN on 8×8 images, batch 32, K = 50,
500 validation images.

Controller: one child, 5,000 validation samples, weights, offsets and pairs on, the replay memory full. ``observe``
scores the metric, its sensitivity and the statistics; ``step`` rewards, learns (four updates) and moves Φ. Memory is
the most that the GPU's allocator held beyond the validation outputs; on the CPU, what the process grew by since its
start. Sensitivity: against one scoring of its metric.

Prints tables, and as its last line JSON with the ratios, hardware and versions.
"""

import resource
import statistics
import sys
import time
from dataclasses import replace

import torch
from common import controller, images, last_line, members, seconds, table, wait

from lossalign.children import Optimisation, make_children
from lossalign.control import default
from lossalign.core import generator
from lossalign.losses import AlignedLoss
from lossalign.metrics import AUCPR, BalancedError, MacroF1, TopKError, class_sensitivity
from lossalign.training import LabelledSet, Part, Population
from lossalign.training.observe import measure, observe

SAMPLES, ROUNDS = 5000, 7


def milliseconds(work, device, rounds=ROUNDS):
    """Median milliseconds of ``work()``, and what it returned last."""
    times, result = [], None
    for _ in range(rounds + 1):
        wait(device)
        started = time.perf_counter()
        result = work()
        wait(device)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:]), result


def megabytes(device):
    """The most memory held so far: of the GPU's allocator, or of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def validation(classes, device):
    draw = generator(0, "overhead", classes)
    outputs = torch.randn(1, SAMPLES, classes, generator=draw)
    return outputs.to(device), (torch.arange(SAMPLES) % classes)[None].to(device)


def controller_row(classes, device, held=0.0):
    """Milliseconds and memory, beyond ``held``, of one controller step with pairs on."""
    outputs, targets = validation(classes, device)
    loss, metric = AlignedLoss(classes, groups=("weights", "offsets", "pairs")).to(device), BalancedError()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = megabytes(device)
    ours = controller(loss, device=device)

    def look():
        errors = measure(metric, outputs, targets, 1)
        return observe(loss, metric, outputs, targets, errors, progress=0.5, device=device)

    for _ in range(default().replay + default().horizon + 1):
        ours.move(look())
    looking, seen = milliseconds(look, device)
    stepping, _ = milliseconds(lambda: ours.move(seen), device)
    return {
        "classes": classes,
        "parameters": loss.spec.size,
        "observe_ms": round(looking, 2),
        "step_ms": round(stepping, 2),
        "total_ms": round(looking + stepping, 2),
        "peak_MB": round(megabytes(device) - held),
    }


def sensitivity_row(metric, classes, device):
    """Milliseconds of the sensitivity, and its ratio to one scoring."""
    outputs, targets = (tensor[0] for tensor in validation(classes, device))
    once, _ = milliseconds(lambda: metric(outputs, targets), device)
    whole, _ = milliseconds(lambda: class_sensitivity(metric, outputs, targets), device, rounds=3)
    return {"metric": metric.name, "classes": classes, "ms": round(whole, 2), "ratio": round(whole / once, 1)}


def alignment_row(children, device):
    """Seconds of one step with ALA, with selection alone, and with neither."""
    model, shape, batch, every, samples = (
        ("resnet32", (3, 32, 32), 128, 200, 5000) if device.type == "cuda" else ("small-cnn", (1, 8, 8), 32, 50, 500)
    )
    loss = AlignedLoss(10).to(device)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    optimisation = Optimisation(iterations=100_000, learning_rate=0.01, precision=precision)
    ours = make_children(members(model, images(shape), batch, children, device), loss, optimisation, device=device)
    inputs = torch.randn(samples, *shape, generator=generator(0, "validation"))
    validation = [LabelledSet(inputs.to(device), (torch.arange(samples) % 10).to(device))] * children

    def population(evaluations):
        preset = replace(default(), evaluations=evaluations)
        return Population(
            ours,
            {"aligned": Part.of(loss, [controller(loss, children, preset)])},
            metric=BalancedError(),
            validation=validation,
            selection=validation,
            preset=preset,
            every=every,
            steps=1000,
            generator=generator(0, "minibatch"),
        )

    phi = loss.spec.initial.expand(children, -1)
    three, one = population(3), population(1)

    def selecting():
        ours.advance(every, phi)
        one._select()

    works = {"alone": lambda: ours.advance(every, phi), "selecting": selecting, "three": three.step, "one": one.step}
    times = seconds(works, device, rounds=3)
    row = {"children": children, "engine": ours.engine, "iteration_ms": round(1e3 * times["alone"] / every, 3)}
    for name in ("three", "one"):
        for base in ("alone", "selecting"):
            row[f"{name} / {base}"] = round(times[name] / times[base], 3)
    return row


def controller_part(device):
    held = megabytes(device)
    steps = [controller_row(classes, device, held) for classes in (10, 100, 1000)]
    rows = [("classes", "parameters", "observe ms", "step ms", "total ms", "peak MB")]
    rows += [tuple(row.values()) for row in steps]
    table("one controller step, one child", rows)
    sizes = {BalancedError(): (10, 100, 1000), MacroF1(): (10, 100, 1000), TopKError(5): (10, 100, 1000)}
    sizes[AUCPR()] = (10, 30)
    scored = [sensitivity_row(metric, classes, device) for metric, some in sizes.items() for classes in some]
    rows = [("metric, classes", "ms", "/ one scoring")]
    rows += [(f"{row['metric']}, {row['classes']}", row["ms"], row["ratio"]) for row in scored]
    table("the metric's sensitivity", rows)
    growth = round(steps[-1]["total_ms"] / steps[0]["total_ms"], 2)
    return {"controller": steps, "total 1000 classes / 10 classes": growth, "sensitivity": scored}


def alignment_part(device):
    found = [alignment_row(children, device) for children in (1, 10)]
    rows = [("children", "ms / iteration", "3 / alone", "3 / selecting", "1 / alone", "1 / selecting", "engine")]
    for row in found:
        ratios = [row[f"{name} / {base}"] for name in ("three", "one") for base in ("alone", "selecting")]
        rows.append((row["children"], row["iteration_ms"], *ratios, row["engine"]))
    table("a step with ALA, with three evaluations and with one (the default)", rows)
    return {"alignment": found}


def main():
    parts = {"controller": controller_part, "alignment": alignment_part}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if {"cpu", "cuda"} & set(sys.argv[1:]):
        device = torch.device(next(name for name in sys.argv[1:] if name in ("cpu", "cuda")))
    torch.set_num_threads(1)
    wanted = [name for name in parts if name in sys.argv[1:]] or list(parts)
    results = {}
    for name in wanted:
        results |= parts[name](device)
    last_line(device, **results)


if __name__ == "__main__":
    main()
