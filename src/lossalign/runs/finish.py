"""The final files of a run: Φ history, policies, best weights, results, ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from lossalign.core import Ranks
from lossalign.evaluation import Chosen, Result, Scores, best_child, gallery, score, shown_children, summarise
from lossalign.experiments import Experiment
from lossalign.runs.environment import command
from lossalign.runs.folder import BEST, LEDGER, RESULTS, RETRIEVAL, RunFolder


def finish(
    folder: RunFolder, experiment: Experiment, *, final: bool, ranks: Ranks, say: Callable[[str], None]
) -> Result:
    """Score a trained experiment and write the final files, all at once; all ranks score, rank 0 writes.

    What pictures alone need comes afterwards: if it cannot be written, ``say`` is called, and the run is finished.
    """
    best = best_child(experiment)
    scores = score(experiment, final=final)
    result = ranks.on_first(lambda: _write(folder, experiment, best, scores, final))
    if not experiment.kind.embeds:
        return result
    shown = shown_children(experiment, best.arm)
    more = ranks.on_first(lambda: _write_gallery(folder, experiment, shown, final, say))
    return replace(result, files=(*result.files, *more))


def _write(folder: RunFolder, experiment: Experiment, best: Chosen, scores: Scores, final: bool) -> Result:
    rewards = {name: population.past.rewards for name, population in experiment.populations.items()}
    with folder.together() as stage:
        files = [
            stage.write_phi(name, *population.history_of(name), part.loss.spec)
            for population in experiment.populations.values()
            for name, part in population.parts.items()
        ]
        files += [*_write_policies(stage, experiment), _write_best(stage, experiment, best)]
        names = [*(file.name for file in files), RESULTS, *[LEDGER] * final]
        result = replace(
            summarise(experiment, scores, rewards, final=final),
            folder=folder.path,
            files=tuple(folder.path / name for name in names),
        )
        stage.write(RESULTS, result.to_json())
    if final:
        folder.enter(result.to_json(), command())
    return result


def _write_gallery(
    folder: RunFolder, experiment: Experiment, shown: list[Chosen], final: bool, say: Callable[[str], None]
) -> list[Path]:
    try:
        with folder.together() as stage:
            np.savez_compressed(stage.path / RETRIEVAL, **gallery(experiment, shown, final=final))
    except OSError as error:
        say(f"{folder.path / RETRIEVAL} cannot be written ({error}); without it no neighbours can be drawn.")
        return []
    return [folder.path / RETRIEVAL]


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
