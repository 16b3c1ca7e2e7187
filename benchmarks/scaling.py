"""How the cost grows: with children (1 to 32), classes (10 to 1,000) and validation samples (1,000 to 100,000).

    python benchmarks/scaling.py [cpu | cuda] [PICTURE.png]

Children: one training iteration of ResNet-32 at batch 128 on a GPU, of an MLP on 8×8 images at batch 32 on a CPU, on
the engine that ``auto`` chooses, not compiled. Classes: one observation of 5,000 validation outputs and one controller
step, pairs off and on. Validation: evaluating one child, its metric and statistics.

Prints tables; as its last line JSON with, for each, the largest growth of the cost over the growth of the size (1 is
linear), hardware and versions; and draws the curves.
"""

import itertools
import sys

import torch
from common import controller, images, last_line, members, seconds, table

from lossalign.children import Optimisation, make_children
from lossalign.control import default
from lossalign.core import generator
from lossalign.losses import AlignedLoss
from lossalign.metrics import BalancedError
from lossalign.training.observe import measure, observe


def optimisation(device):
    return Optimisation(iterations=400, learning_rate=0.01, precision="bfloat16" if device == "cuda" else "float32")


def by_children(device):
    """Seconds of one iteration of N children."""
    model, shape, batch = ("resnet32", (3, 32, 32), 128) if device == "cuda" else ("mlp-16", (1, 8, 8), 32)
    data, loss, found = images(shape), AlignedLoss(10).to(device), {}
    for number in (1, 2, 4, 8, 16, 32):
        ours = make_children(members(model, data, batch, number, device), loss, optimisation(device), device=device)
        phi = loss.spec.initial.expand(number, -1)
        found[number] = seconds({"": lambda ours=ours, phi=phi: ours.advance(5, phi)}, device)[""] / 5
    return found


def by_classes(device, groups):
    """Seconds of one observation and one controller step of one child."""
    found = {}
    for classes in (10, 30, 100, 300, 1000):
        draw = generator(0, "scaling", classes)
        outputs = torch.randn(1, 5000, classes, generator=draw).to(device)
        targets = (torch.arange(5000) % classes)[None].to(device)
        loss, metric = AlignedLoss(classes, groups).to(device), BalancedError()
        where = device if loss.spec.size >= 400 else "cpu"
        mover = controller(loss, device=where)

        def step(outputs=outputs, targets=targets, loss=loss, metric=metric, mover=mover, where=where):
            errors = measure(metric, outputs, targets, 1)
            mover.move(observe(loss, metric, outputs, targets, errors, progress=0.5, device=where))

        for _ in range(default().replay + default().horizon + 1):
            step()
        found[classes] = seconds({"": step}, device, rounds=3)[""]
    return found


def by_samples(device):
    """Seconds of evaluating one child: forward pass, metric and statistics."""
    model, shape = ("resnet32", (3, 32, 32)) if device == "cuda" else ("mlp-16", (1, 8, 8))
    loss, metric, found = AlignedLoss(10).to(device), BalancedError(), {}
    child = make_children(members(model, images(shape), 128, 1, device), loss, optimisation(device), device=device)
    for samples in (1000, 3000, 10_000, 30_000, 100_000):
        inputs = torch.randn(samples, *shape, generator=generator(0, "samples"))
        inputs, targets = inputs.to(device), (torch.arange(samples) % 10)[None].to(device)

        def evaluate(inputs=inputs, targets=targets):
            outputs = child.outputs([inputs], "averaged")
            observe(loss, metric, outputs, targets, measure(metric, outputs, targets, 1), progress=0.5)

        found[samples] = seconds({"": evaluate}, device, rounds=3)[""]
    return found


def growth(found):
    """The largest growth of the cost over the growth of the size, between neighbours and from end to end."""
    sizes = list(found)
    pairs = [*itertools.pairwise(sizes), (sizes[0], sizes[-1])]
    return round(max((found[b] / found[a]) / (b / a) for a, b in pairs), 2)


def draw(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    for axis, (title, some) in zip(axes, curves.items(), strict=True):
        for label, found in some.items():
            sizes = list(found)
            axis.loglog(sizes, [1e3 * t for t in found.values()], "o-", label=label)
            axis.loglog(sizes, [1e3 * found[sizes[0]] * size / sizes[0] for size in sizes], ":", color="gray")
        axis.set_xlabel(title)
        axis.set_ylabel("ms")
        if len(some) > 1:
            axis.legend()
        axis.grid(alpha=0.3)
    axes[0].set_title("dotted: linear", fontsize=9, loc="left")
    figure.savefig(path, dpi=120)


def main():
    device = next((name for name in sys.argv[1:] if name in ("cpu", "cuda")), None)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    curves = {
        "children": {"one iteration": by_children(device)},
        "classes": {
            "offsets": by_classes(device, ("offsets",)),
            "with pairs": by_classes(device, ("offsets", "pairs")),
        },
        "validation samples": {"one evaluation": by_samples(device)},
    }
    for title, some in curves.items():
        for label, found in some.items():
            table(f"{title}: {label}", [(size, f"{1e3 * t:.2f} ms") for size, t in found.items()])
    for path in (name for name in sys.argv[1:] if name.endswith(".png")):
        draw(curves, path)
    ratios = {f"{title}: {label}": growth(found) for title, some in curves.items() for label, found in some.items()}
    last_line(device, growth=ratios, seconds=curves)


if __name__ == "__main__":
    main()
