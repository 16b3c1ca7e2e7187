"""``Decision`` against doing nothing, fitted offsets and, for costs, the Bayes decision.

    python benchmarks/decision.py --tables FOLDER [--seed 4000] [--seeds 12] [--results results/decision.json]

Long-tailed digits and every table (.npz) of a folder; a small MLP of scikit-learn is trained on each split. All methods
get the same validation outputs: all of them, or four of each class. In the second case the test samples are cut to as
many of each class, so that both have the same class balance. Prints a table and one line of JSON.
"""

import argparse
import json
import sys
import time
import warnings
from datetime import date
from pathlib import Path

import numpy as np
import torch
from common import facts
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

import lossalign as la
from lossalign.core import generator
from lossalign.data import load_table
from lossalign.data.registry import SourceSettings, load_source
from lossalign.decision import calibrate, expected_costs, fit_offsets
from lossalign.evaluation.statistics import paired
from lossalign.experiments import configure
from lossalign.experiments.kinds import KINDS
from lossalign.metrics import BalancedError, MacroF1, MeanCost, TotalsMetric, WorstClassRecall, error, score_children

ROWS = 30_000  # of a table, drawn for each split
FEW = 4
METHODS = ("none", "fitted offsets", "Bayes decision", "Decision")
SIZES = {"full": "all validation samples", "few": f"{FEW} validation samples a class"}


class GMean(TotalsMetric):
    """Geometric mean of the recalls, each at least 0.01."""

    name, higher_is_better = "G-mean", True

    def from_totals(self, totals):
        return (totals.correct / totals.truths).clamp_min(0.01).log().nanmean(-1).exp()


class PrecisionRecallMix(TotalsMetric):
    """Geometric mean of F_2 of classes 0, 2, … and F_½ of classes 1, 3, …, each at least 0.01."""

    name, higher_is_better = "F2–F½ mix", True

    def from_totals(self, totals):
        weight = torch.where(torch.arange(totals.correct.shape[-1]) % 2 == 1, 0.25, 4.0)
        f_beta = (1 + weight) * totals.correct / (weight * totals.truths + totals.predictions)
        return f_beta.clamp_min(0.01).log().mean(-1).exp()


def metrics(classes, seed):
    """The six metrics; the costs are drawn for each split, and their mean is 1."""
    costs = torch.randn(classes, classes, generator=generator(seed, "costs")).exp().fill_diagonal_(0)
    dense = MeanCost(costs * classes * (classes - 1) / costs.sum())
    return {
        "balanced error": BalancedError(),
        "1 − macro F1": MacroF1(),
        "1 − G-mean": GMean(),
        "1 − worst recall": WorstClassRecall(),
        "dense random costs": dense,
        "1 − F2–F½ mix": PrecisionRecallMix(),
    }


def digits(seed):
    """Train, validation (with the selection split) and test of one seed of digits-lt: inputs and labels."""
    config = configure("digits-lt", {})
    splits = KINDS[config.kind].split(config, load_source("digits", SourceSettings()).examples, None, seed)
    parts = [getattr(splits, name).load() for name in ("train", "validation", "selection", "test")]
    x, y = [part.inputs.flatten(1).numpy() for part in parts], [part.targets.numpy() for part in parts]
    return (x[0], y[0]), (np.concatenate(x[1:3]), np.concatenate(y[1:3])), (x[3], y[3])


def table(data, seed):
    """40 % train, 15 % validation and 45 % test of rows drawn from a table."""
    order = np.random.default_rng(seed).permutation(len(data))[:ROWS]
    parts = np.split(order, [int(0.4 * len(order)), int(0.55 * len(order))])
    return [(data.inputs[part].numpy(), data.targets[part].numpy()) for part in parts]


def outputs(split, seed, epochs, batch):
    """Logits of a small MLP, and labels, of validation and test."""
    (x, y), *others = split
    scaler = StandardScaler().fit(x)
    model = MLPClassifier((32,), max_iter=epochs, random_state=seed, batch_size=batch, learning_rate_init=3e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(scaler.transform(x), y)
    logits = [np.log(model.predict_proba(scaler.transform(x)).clip(1e-12)) for x, _ in others]
    return [(torch.tensor(z).float(), torch.tensor(y)) for z, (_, y) in zip(logits, others, strict=True)]


def cut(data, number, draw):
    """``number`` samples of each class."""
    logits, labels = data
    kept = [(labels == c).nonzero().flatten() for c in range(logits.shape[1])]
    kept = torch.cat([each[torch.randperm(len(each), generator=draw)[:number]] for each in kept])
    return logits[kept], labels[kept]


def few(validation, test, seed):
    """Four validation samples of each class, and as many test samples of each class as there can be."""
    draw = generator(seed, "few")
    return cut(validation, FEW, draw), cut(test, int(test[1].bincount().min()), draw)


def errors(validation, test, metric):
    """The metric of each method on test, as an error in points; and the seconds that ``Decision.fit`` took."""
    (z, y), (unseen, truth) = validation, test

    def wrong(logits, labels):
        return error(metric, score_children(metric, logits, labels.expand(len(logits), -1)))

    started = time.perf_counter()
    decision = la.Decision.fit(z, y, metric)
    seconds = time.perf_counter() - started
    decided = {"none": unseen, "fitted offsets": unseen + fit_offsets(z, y, wrong), "Decision": decision(unseen)}
    if isinstance(metric, MeanCost):
        scale, bias = calibrate(z, y)
        decided["Bayes decision"] = -expected_costs(scale * unseen + bias, metric.costs)
    base = 1 if metric.higher_is_better else 0
    found = {name: 100 * (base + float(error(metric, metric(each, truth)))) for name, each in decided.items()}
    return found, seconds, decision.chosen


def measure(sources, seeds):
    """Errors by size, data and metric: a list over seeds for each method."""
    cells, seconds, chosen = {}, [], {}
    for name, (split, epochs, batch) in sources.items():
        for seed in seeds:
            validation, test = outputs(split(seed), seed, epochs, batch)
            for size, data in (("full", (validation, test)), ("few", few(validation, test, seed))):
                for metric_name, metric in metrics(validation[0].shape[1], seed).items():
                    found, took, kept = errors(*data, metric)
                    cell = cells.setdefault((size, name, metric_name), {})
                    for method, value in found.items():
                        cell.setdefault(method, []).append(value)
                    seconds.append(took)
                    chosen.setdefault(size, []).append(kept)
        print(f"{name}: done", file=sys.stderr)
    return cells, seconds, chosen


def difference(cell, method, other):
    """Mean paired difference and half its 95 % interval, in points."""
    row = paired(np.array(cell[method]), np.array(cell[other]), higher_is_better=False)
    return row.difference, row.half_width


def shown(found):
    return f"{found[0]:+.2f} ± {found[1]:.2f}".replace("-", "−")


def best_rival(cell):
    return min((name for name in METHODS[:3] if name in cell), key=lambda name: np.mean(cell[name]))


def cells_table(cells, size):
    """One row for each data set and metric."""
    rows, last = [], None
    for (at, name, metric), cell in cells.items():
        if at != size:
            continue
        rival = best_rival(cell)
        values = [f"{np.mean(cell[method]):.2f}" if method in cell else "–" for method in METHODS]
        ends = [shown(difference(cell, "Decision", "none")), f"{shown(difference(cell, 'Decision', rival))} ({rival})"]
        rows.append([name if name != last else "", metric, *values, *ends])
        last = name
    return {"columns": ["data", "error", *METHODS, "Decision − none", "Decision − best rival"], "rows": rows}


def summary(cells, size):
    """Mean rank of every method and how the cells ended, for one size."""
    mine = [cell for (at, *_), cell in cells.items() if at == size]
    ranks = {method: [] for method in METHODS if method != "Bayes decision"}
    for cell in mine:
        means = {method: round(float(np.mean(cell[method])), 6) for method in ranks}
        for method, value in means.items():
            below, level = (sum(test(other) for other in means.values()) for test in (value.__gt__, value.__eq__))
            ranks[method].append(below + (level + 1) / 2)
    against = {"none": ["none"] * len(mine), "the best rival": [best_rival(cell) for cell in mine]}
    rows = []
    for name, rivals in against.items():
        found = [difference(cell, "Decision", rival) for cell, rival in zip(mine, rivals, strict=True)]
        better, worse = (sum(sign * d > h for d, h in found if h) for sign in (-1, 1))
        rows.append((name, better, worse, max(d for d, _ in found)))
    return {method: float(np.mean(each)) for method, each in ranks.items()}, rows


def summary_table(cells):
    ranks = {size: summary(cells, size) for size in SIZES}
    names = [f"mean rank of {method}" for method in next(iter(ranks.values()))[0]]
    columns = ["validation", *names]
    columns += [f"cells surely better / worse than {name}, worst mean" for name, *_ in ranks["full"][1]]
    rows = []
    for size, (means, ends) in ranks.items():
        said = [f"{better} / {worse} of 36, {worst:+.2f}".replace("-", "−") for _, better, worse, worst in ends]
        rows.append([SIZES[size], *(f"{mean:.2f}" for mean in means.values()), *said])
    count = sum(1 for size, *_ in cells if size == "full")
    return {"columns": columns, "rows": [[cell.replace("of 36", f"of {count}") for cell in row] for row in rows]}


def entry(cells, seeds, command):
    """A result file of ``docs/make_tables.py``."""
    tables = [summary_table(cells)]
    tables += [{"title": f"Decisions, {SIZES[size]}", **cells_table(cells, size)} for size in SIZES]
    return {
        "schema": 1,
        "title": "Decisions",
        "command": [command],
        "transcribed": False,
        "date": date.today().isoformat(),
        "metric": "error in points, costs × 100",
        "higher_is_better": False,
        "split": "test",
        "seeds": len(seeds),
        "machine": "CPU",
        "tables": tables,
        "note": "One MLP for each split. Intervals are over splits and not corrected for the number of cells; ranks "
        "are among methods that take any metric.",
        "values": {
            " | ".join(key): {method: [round(value, 4) for value in values] for method, values in cell.items()}
            for key, cell in cells.items()
        },
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=Path, help="folder of .npz tables")
    parser.add_argument("--seed", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--results", type=Path, help="write a result file for the docs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.seed, given.seed + given.seeds)
    sources = {"digits-lt": (digits, 150, 32)}
    for path in sorted(given.tables.glob("*.npz")) if given.tables else ():
        data = load_table(path)
        sources[path.stem.split("_")[-1]] = (lambda seed, data=data: table(data, seed)), 20, 128
    cells, seconds, chosen = measure(sources, seeds)
    command = f"python benchmarks/decision.py --tables TABLES --seed {given.seed} --seeds {given.seeds}"
    found = entry(cells, seeds, command)
    for each in found["tables"]:
        print("\n".join(" | ".join(row) for row in [each["columns"], *each["rows"]]))
    if given.results:
        given.results.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    kept = {size: {name: names.count(name) for name in sorted(set(names))} for size, names in chosen.items()}
    fit = {"median": float(np.median(seconds)), "max": max(seconds)}
    print(json.dumps({**facts("cpu"), "seconds of a fit": fit, "chosen": kept, "seeds": [*seeds]}))


if __name__ == "__main__":
    main()
