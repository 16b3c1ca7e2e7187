"""One network in its own loop: the ``Aligner`` against simpler ways, each with and without a decision.

    python benchmarks/one_model.py --tables FOLDER [--seed 8000] [--seeds 8] [--results results/one-model.json]

Long-tailed digits, balanced digits and every table (.npz) of a folder; an MLP with one hidden layer, SGD with momentum
and a cosine schedule. All ways share batches, initial weights, averaged weights, and the points at which a checkpoint
is measured and the best one is kept; ways without an ``Aligner`` pick it on all validation samples. Decisions are
fitted to the outputs of that checkpoint on all validation samples. Prints tables and one line of JSON.
"""

import argparse
import json
import time
import warnings
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import facts
from decision import digits, metrics, table
from sklearn.preprocessing import StandardScaler

import lossalign as la
from lossalign import rivals
from lossalign.core import generator
from lossalign.data import load_table
from lossalign.data.registry import SourceSettings, load_source
from lossalign.evaluation.statistics import paired
from lossalign.experiments import configure
from lossalign.experiments.kinds import KINDS
from lossalign.metrics import ErrorRate, error

WAYS = ("cross-entropy", "class weights", "logit adjustment", "Aligner")
KEPT = ("balanced error", "1 − macro F1", "1 − worst recall", "dense random costs", "plain error")


def balanced_digits(seed):
    """Train, validation and test of one seed of the task digits."""
    config = configure("digits", {})
    splits = KINDS[config.kind].split(config, load_source("digits", SourceSettings()).examples, None, seed)
    parts = [getattr(splits, name).load() for name in ("train", "validation", "selection", "test")]
    x, y = [part.inputs.flatten(1) for part in parts], [part.targets for part in parts]
    return (x[0], y[0]), (torch.cat(x[1:3]), torch.cat(y[1:3])), (x[3], y[3])


def prepared(split):
    """Standardised inputs and labels as tensors."""
    scaler = StandardScaler().fit(split[0][0])
    return [(torch.tensor(scaler.transform(x)).float(), torch.as_tensor(y).long().clone()) for x, y in split]


def controller(way, counts):
    """The argument ``controller`` of a way, and the loss's groups."""
    if way == "Aligner":
        return "auto", ("offsets",)
    group = "weights" if way == "class weights" else "offsets"
    values = {
        "cross-entropy": torch.zeros(len(counts)),
        "class weights": rivals.inverse_frequency(counts),
        "logit adjustment": rivals.logit_adjustment(counts),
    }[way]
    return lambda spec, children, _: rivals.designed(spec, children, group, values), (group,)


def trained(way, split, metric, seed, iterations, batch):
    """The best checkpoint of one way: outputs on validation and test."""
    (x, y), validation, test = split
    classes = int(y.max()) + 1
    counts = y.bincount(minlength=classes)
    mover, groups = controller(way, counts)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, classes))
    loss = la.AlignedLoss(classes, groups=groups, frequencies=counts)
    aligner = la.Aligner(
        loss, metric, [validation], iterations, controller=mover, split_validation=way == "Aligner", seed=seed
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    draw = generator(seed, "batches")
    for _ in range(iterations):
        at = torch.randint(len(x), (batch,), generator=draw)
        optimizer.zero_grad()
        aligner(model(x[at]), y[at]).backward()
        optimizer.step()
        schedule.step()
        aligner.step(model)
    model.load_state_dict(aligner.best_state_dict())
    with torch.no_grad():
        return model(validation[0]), model(test[0])


def errors(split, metric, seed, iterations, batch):
    """The metric of each way on test, as an error in points, without and with a decision."""
    found, base = {}, 1 if metric.higher_is_better else 0
    for way in WAYS:
        z, unseen = trained(way, split, metric, seed, iterations, batch)
        decision = la.Decision.fit(z, split[1][1], metric)
        for name, each in ((way, unseen), (f"{way} + decision", decision(unseen))):
            found[name] = 100 * (base + float(error(metric, metric(each, split[2][1]))))
    return found


def measure(sources, seeds):
    """Errors by data and metric: a list over seeds for each way."""
    cells = {}
    for name, (split, iterations, batch) in sources.items():
        for seed in seeds:
            data, started = prepared(split(seed)), time.perf_counter()
            classes = int(data[0][1].max()) + 1
            all_metrics = {**metrics(classes, seed), "plain error": ErrorRate()}
            for title in KEPT:
                if name == "digits" and title != "plain error":
                    continue
                for way, value in errors(data, all_metrics[title], seed, iterations, batch).items():
                    cells.setdefault((name, title), {}).setdefault(way, []).append(value)
            print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
    return cells


def compared(values, others):
    """Paired differences of errors over seeds."""
    return paired(np.array(values), np.array(others), higher_is_better=False)


def shown(row, bold):
    """A cell of the differences."""
    text = f"{row.difference:+.2f} ± {row.half_width:.2f}".replace("-", "−")
    return f"**{text}**" if bold and row.difference + row.half_width < 0 else text


def tables(cells):
    """Means of every way, and what the Aligner gains over the best rival, as rows of text."""
    ways = [name for way in WAYS for name in (way, f"{way} + decision")]
    rivals_ = [name for name in ways if "Aligner" not in name]
    means, gains, ranks = [], [], {way: [] for way in ways}
    for (data, title), found in cells.items():
        mean = {way: sum(found[way]) / len(found[way]) for way in ways}
        order = sorted(ways, key=lambda way: mean[way])
        means.append([f"{data}, {title}", *(f"{mean[way]:.2f}" for way in ways)])
        for way in ways:
            ranks[way].append(1 + order.index(way))
        best = min(rivals_, key=lambda way: mean[way])
        against = [
            shown(compared(found["Aligner + decision"], found[other]), bold=True)
            for other in (best, "logit adjustment")
        ]
        plain = shown(compared(found["Aligner"], found["cross-entropy"]), bold=False)
        gains.append([f"{data}, {title}", best, *against, plain])
    means.append(["mean rank", *(f"{sum(ranks[way]) / len(ranks[way]):.2f}" for way in ways)])
    return (
        {"columns": ["test error, points", *ways], "rows": means},
        {
            "columns": [
                "Aligner + decision",
                "best rival",
                "against it",
                "against logit adjustment",
                "without decision, against cross-entropy",
            ],
            "rows": gains,
        },
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=Path, help="folder of tables (.npz)")
    parser.add_argument("--seed", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=10_000, help="largest number of rows of a table")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sources = {"digits-lt": (digits, 1200, 32), "digits": (balanced_digits, 1200, 32)}
    for path in sorted(options.tables.glob("*.npz")) if options.tables else []:
        data = load_table(path)
        sources[path.stem.split("_")[-1]] = (partial(cut, data, options.rows), 1000, 128)
    cells = measure(sources, range(options.seed, options.seed + options.seeds))
    made = tables(cells)
    for one in made:
        for row in (one["columns"], *one["rows"]):
            print(" | ".join(row))
    content = {
        "schema": 1,
        "title": "One network in its own loop",
        "command": [f"python benchmarks/one_model.py --tables TABLES --seed {options.seed} --seeds {options.seeds}"],
        "transcribed": False,
        "date": date.today().isoformat(),
        "metric": "error in points, costs × 100",
        "higher_is_better": False,
        "split": "test",
        "seeds": options.seeds,
        "machine": "CPU",
        "note": "Intervals are over splits and not corrected for the number of cells.",
        "tables": list(made),
        "values": {f"{data} | {title}": found for (data, title), found in cells.items()},
    }
    if options.results:
        options.results.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({**facts("cpu"), "tables": list(made)}, ensure_ascii=False))


def cut(data, rows, seed):
    """Splits of a part of a table."""
    order = torch.randperm(len(data), generator=generator(seed, "rows"))[:rows]
    return table(data.subset(order), seed)


if __name__ == "__main__":
    main()
