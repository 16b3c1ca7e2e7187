"""Gain of ``Aligner`` for one model in its own loop, over paired seeds with the same batches and selection of weights.

    python benchmarks/one_child.py [RUN]

Digits with ten times fewer images of 5 … 9; balanced error of the best averaged weights on images not used otherwise.
With the folder of a run, its policies are used too, another one for each seed: the unit of replication is one policy.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

import lossalign as la
from lossalign.control.state import StateLayout
from lossalign.core import generator
from lossalign.data import load_digits
from lossalign.evaluation.statistics import paired


def never_moving():
    """A policy that always takes the action 0: cross-entropy, measured and selected like the others."""
    return la.Policy(StateLayout(statistics=1), zero_bias=60.0, generator=torch.Generator())


def batches(inputs, targets, size, draw):
    order = torch.randperm(len(targets), generator=draw)[: len(targets) // size * size]
    return [(inputs[i], targets[i]) for i in order.split(size)]


def test_error(seed, epochs, **aligner_settings):
    draw, digits = generator(seed, "one child"), load_digits()
    order = torch.randperm(len(digits), generator=draw)
    val, test, pool = order[:400], order[400:800], order[800:]
    rare = torch.where(digits.targets[pool] < 5, 1.0, 0.1)
    train = pool[torch.rand(len(pool), generator=draw) < rare]
    x, y = digits.inputs, digits.targets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        model = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    total = epochs * (len(train) // 32)
    loader = [(x[val], y[val])]
    aligner = la.Aligner(la.AlignedLoss(10), la.metrics.BalancedError(), loader, total, seed=seed, **aligner_settings)
    for _ in range(epochs):
        for inputs, targets in batches(x[train], y[train], 32, draw):
            loss = aligner(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            aligner.step(model)
    model.load_state_dict(aligner.best_state_dict())
    with torch.no_grad():
        return float(la.metrics.BalancedError()(model(x[test]), y[test]))


def main():
    torch.set_num_threads(1)
    policies = sorted(Path(sys.argv[1]).glob("policy-*.safetensors")) if len(sys.argv) > 1 else []
    seeds = range(200, 200 + (len(policies) or 8))
    arms = {
        "fixed": lambda seed: {"controller": never_moving(), "learn": False},
        "fresh policy, learning": lambda seed: {"controller": "fresh"},
    }
    if policies:
        arms["given policy, frozen"] = lambda seed: {"controller": la.Policy.load(policies[seed - 200]), "learn": False}
        arms["given policy, learning"] = lambda seed: {"controller": la.Policy.load(policies[seed - 200])}
    result = {}
    for epochs in (20, 60):
        errors = {name: np.array([test_error(s, epochs, **make(s)) for s in seeds]) for name, make in arms.items()}
        for name, values in errors.items():
            row = paired(values, None if name == "fixed" else errors["fixed"], higher_is_better=False)
            result[f"{epochs} epochs, {name}"] = vars(row)
            against = "" if row.difference is None else f"  {100 * row.difference:+.2f} ± {100 * row.half_width:.2f}"
            print(f"{epochs} epochs  {name:24} {100 * row.mean:6.2f} %{against}")
    print(json.dumps({"seeds": len(seeds), "torch": torch.__version__, "rows": result}))


if __name__ == "__main__":
    main()
