"""A reference for tables: scikit-learn's gradient boosting on the splits that ``lossalign compare`` uses.

    python benchmarks/boosting.py TABLE.npz [--metric aucpr-binary] [--seed 0] [--seeds 5] [--fraction 0.2]

Trains on the train split only, as the children do, with scikit-learn's defaults; scores the test split of every seed.
"""

import argparse

import numpy as np
import torch
from common import table
from sklearn.ensemble import HistGradientBoostingClassifier

from lossalign.data.registry import SourceSettings, load_source
from lossalign.experiments import configure
from lossalign.experiments.kinds import KINDS
from lossalign.metrics import metric_named


def scored(config, examples, seed):
    """The metric of gradient boosting on one seed's test split."""
    splits = KINDS[config.kind].split(config, examples, None, seed)
    train, test = splits.train.load(), splits.test.load()
    model = HistGradientBoostingClassifier(random_state=seed)
    model.fit(train.inputs.numpy(), train.targets.numpy())
    logits = torch.tensor(np.log(model.predict_proba(test.inputs.numpy()) + 1e-12))
    return float(metric_named(config.metric, examples.num_classes)(logits, test.targets))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("--metric", default="aucpr-binary")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fraction", type=float, default=0.2)
    given = parser.parse_args()
    config = configure(f"table:{given.table}", {"metric": given.metric, "held_out_fraction": given.fraction})
    examples = load_source("table", SourceSettings(folder=given.table)).examples
    seeds = range(given.seed, given.seed + given.seeds)
    values = [scored(config, examples, seed) for seed in seeds]
    rows = [("mean", f"{100 * np.mean(values):.2f}")]
    rows += [(seed, f"{100 * value:.2f}") for seed, value in zip(seeds, values, strict=True)]
    table(f"{given.metric} % of gradient boosting on the test split", rows)


if __name__ == "__main__":
    main()
