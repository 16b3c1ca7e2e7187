"""What the ``Aligner`` adds to an iteration of a user's own loop, at K = 200, as a ratio to the plain loop.

    python benchmarks/own_loop.py [cpu | cuda]

A small MLP (64-32-10, batch 32), ResNet-20 (batch 128 on a GPU, 16 on a CPU) and an MLP of 20 million parameters (batch
64); 500 validation samples. Each figure is the median over rounds that alternate with the plain loop; a round is 200
iterations with one move of Φ, after one round that is not counted. Prints a table, and as its last line JSON.
"""

import sys

import torch
from common import last_line, seconds, table

import lossalign as la
from lossalign.core import generator
from lossalign.models import build_model

EVERY, SAMPLES = 200, 500


def models(device):
    """Name, network, input shape, batch and rounds of each."""
    batch = 128 if device.type == "cuda" else 16
    yield "small MLP", "mlp-32", (64,), 32, 9
    yield "ResNet-20", "resnet20", (3, 32, 32), batch, 3
    yield "20 M-parameter MLP", "mlp-4096-3584", (1024,), 64, 3


def loop(name, shape, batch, device, aligned):
    """A function that trains 200 iterations."""
    model = build_model(name, input_shape=shape, num_classes=10, generator=generator(0, "own loop")).to(device)
    draw = generator(0, "noise", *shape)
    inputs, targets = torch.randn(batch, *shape, generator=draw).to(device), (torch.arange(batch) % 10).to(device)
    held_out = [(torch.randn(SAMPLES, *shape, generator=draw), torch.arange(SAMPLES) % 10)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if aligned:
        loss_of = la.Aligner(la.AlignedLoss(10), la.metrics.BalancedError(), held_out, 10**6, every=EVERY).to(device)
    else:
        loss_of = torch.nn.CrossEntropyLoss()

    def work():
        for _ in range(EVERY):
            loss = loss_of(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if aligned:
                loss_of.step(model)

    return work


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if {"cpu", "cuda"} & set(sys.argv[1:]):
        device = torch.device(next(name for name in sys.argv[1:] if name in ("cpu", "cuda")))
    torch.set_num_threads(1)
    rows, found = [("model", "plain ms", "aligned ms", "ratio")], {}
    for title, name, shape, batch, rounds in models(device):
        works = {which: loop(name, shape, batch, device, which == "aligned") for which in ("plain", "aligned")}
        times = seconds(works, device, rounds)
        ratio = found[title] = round(times["aligned"] / times["plain"], 3)
        rows.append((title, *(round(1e3 * times[which] / EVERY, 3) for which in works), ratio))
    table(f"an iteration of the own loop, K = {EVERY}", rows)
    last_line(device, **found)


if __name__ == "__main__":
    main()
