"""The final files of a run: Φ history, policies, best weights, results, ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from lossalign.core import Ranks
from lossalign.evaluation import Chosen, Result, Scores, best_child, gallery, score, shown_children, summarise
from lossalign.experiments import Experiment
from lossalign.runs.environment import command
from lossalign.runs.folder import BEST, LEDGER, RESULTS, RETRIEVAL, RunFolder


def finish(folder: RunFolder, experiment: Experiment, *, final: bool, ranks: Ranks) -> Result:
    """Score a trained experiment and write the final files; all ranks score, rank 0 writes."""
    best = best_child(experiment)
    files = ranks.on_first(lambda: _write_learned(folder, experiment, best))
    scores = score(experiment, final=final)
    shown = shown_children(experiment, best.arm) if experiment.kind.embeds else []
    return ranks.on_first(lambda: _write_results(folder, experiment, scores, shown, files, final))


def _write_learned(folder: RunFolder, experiment: Experiment, best: Chosen) -> list[Path]:
    histories = [
        folder.write_phi(name, *population.history_of(name), part.loss.spec)
        for population in experiment.populations.values()
        for name, part in population.parts.items()
    ]
    return [*histories, *_write_policies(folder, experiment), _write_best(folder, experiment, best)]


def _write_results(
    folder: RunFolder, experiment: Experiment, scores: Scores, shown: list[Chosen], files: list[Path], final: bool
) -> Result:
    if shown:
        np.savez_compressed(folder.path / RETRIEVAL, **gallery(experiment, shown, final=final))
    rewards = {name: folder.logged(name, "reward") for name in experiment.populations}
    more = [RETRIEVAL] * bool(shown) + [RESULTS] + [LEDGER] * final
    result = replace(
        summarise(experiment, scores, rewards, final=final),
        folder=folder.path,
        files=(*files, *(folder.path / name for name in more)),
    )
    if final:
        _enter_ledger(folder, experiment, result)
    folder.write(RESULTS, result.to_json())
    return result


def _enter_ledger(folder: RunFolder, experiment: Experiment, result: Result) -> None:
    folder.append(
        LEDGER,
        {
            "begun": folder.identity,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": command(),
            "task": experiment.config.task,
            "metric": result.metric,
            "scores": {name: row.mean for name, row in result.rows.items()},
        },
    )


def _write_policies(folder: RunFolder, experiment: Experiment) -> list[Path]:
    files = []
    for arm in experiment.arms:
        policy = experiment.policy(arm)
        if arm.spec.role == "learner" and policy is not None:
            method = "" if arm.spec.plain else arm.method
            files.append(policy.save(folder.policy(arm.seed, method)))
    return files


def _write_best(folder: RunFolder, experiment: Experiment, best: Chosen) -> Path:
    """Write the weights, and in the same file the normalisation of inputs: (inputs · scale − mean) / std."""
    path = folder.path / BEST
    data = experiment.data[best.arm.seed]
    described = {
        "format": "lossalign-weights",
        "version": 1,
        "method": best.arm.method,
        "seed": best.arm.seed,
        "child": best.child,
        "model": experiment.families[best.arm.family].model,
        "input_shape": list(data.train.input_shape),
        "class_names": list(data.train.class_names),
        "scale": data.transform.scale,
        "mean": data.transform.mean.tolist(),
        "std": data.transform.std.tolist(),
    }
    save_file(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in best.weights.items()},
        path,
        metadata={"lossalign": json.dumps(described)},
    )
    return path
