"""Twenty small commands give the numbers that version 0.1 gave, before its rooms, config and names were changed.

``runs.json`` was recorded by that version (commit 3a3d1ee) and is never written again. ``runs-changed.json`` holds what
differs since then, with the reason; ``python tests/golden/test_runs.py REASON`` adds today's differences to it.
Results, Φ, policies, best weights and curves are compared bit for bit. Another processor may round differently: where
``probe`` is not the recorded one, the test is skipped.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

HERE = Path(__file__).parent
OLD, CHANGED = HERE / "runs.json", HERE / "runs-changed.json"
SMALL = "--seeds 2 --children 4 --iterations 200"
TINY = "--seeds 2 --children 3 --iterations 100"
DEFAULT = "fixed deferred-reweighting logit-adjustment proportional-rule post-hoc-offsets random-walk evolution ala"
RETRIEVAL = "fixed triplet margin contrastive multi-similarity random-walk evolution ala random-phi best-of-random"
LOSSES = "fixed focal label-smoothing ldam-drw l-softmax pairwise smooth-ap random-matrix confusion-matrix"
COSTS = "fixed cost-weighted bayes-decision post-hoc-validation best-of-fixed ala best-of-ala"
VARIANTS = "fixed ala ala:horizon=1,weight_average=2 ala:groups=weights,offsets,inherit_every=0 random-walk"
CASES = {
    "default": f"compare digits-lt --methods {DEFAULT} {SMALL}",
    "macro-f1": f"compare digits-lt --metric macro-f1 --methods fixed ala post-hoc-ala {SMALL}",
    "worst-recall": f"compare digits-lt --metric worst-recall --methods fixed ala population-based survival {SMALL}",
    "guard-refit": f"train digits-lt --guard --refit {SMALL}",
    "validation-as-training": "compare digits-lt --final --methods fixed logit-adjustment fixed+val "
    f"logit-adjustment+val ala {SMALL}",
    "losses": f"compare digits-lt --methods {LOSSES} inverse-frequency class-balanced ala {SMALL}",
    "options": f"compare digits-lt --methods {VARIANTS} --inherit-share 0.5 {SMALL}",
    "loss-ranking": f"compare digits --loss ranking --metric aucpr --methods cross-entropy fixed ala {SMALL}",
    "table": "compare table:table.npz --methods fixed logit-adjustment ala post-hoc-offsets --seeds 2 --children 4 "
    "--iterations 400",
    "table-paper-switch": "compare table:table.npz --preset paper --evaluation minibatch --methods fixed ala --seeds 2 "
    "--children 3 --iterations 200",
    "retrieval-triplet": f"compare digits-retrieval --methods {RETRIEVAL} {TINY}",
    "retrieval-margin": "compare digits-retrieval --framework margin --methods fixed ala sharp-focal light-mixture "
    f"paper-mixture {TINY}",
    "retrieval-focal": "compare digits-retrieval --loss focal-weighting --start paper --methods fixed ala --final "
    f"{TINY}",
    "paper": "compare digits-lt --preset paper --methods fixed ala evolution --seeds 2 --children 3 --iterations 60",
    "costs": f"compare digits --metric mean-cost:costs.csv --methods {COSTS} {SMALL}",
    "pretrained": f"compare digits-lt --policy pretrained --freeze --methods fixed ala {SMALL}",
    "recipe": "compare recipe.toml --seeds 2",
    "images": "compare images:images --model small-cnn --image-size 16 --ratio 4 --methods fixed ala --seeds 1 "
    "--children 2 --iterations 100 --every 10 --batch-size 16 --engine sequential",
    "own-tail": "compare digits-lt --validation-of-train 0.2 --largest 110 --ratio 10 --methods fixed ala refit-ala "
    f"{SMALL}",
    "two-ranks": "train digits-lt --seeds 1 --children 4 --iterations 200",
}
RECIPE = """task = "digits-lt"
methods = ["fixed", "ala"]
children = 3
iterations = 200
horizon = 3
metric = "macro-f1"
"""


def sha(*arrays):
    """Sixteen digits of the SHA-256 of the arrays' bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def probe():
    """A fingerprint of how this machine rounds."""
    x = torch.linspace(-2, 2, 64 * 33).reshape(64, 33)
    y = (x @ x.T).softmax(-1).log().sum(0)
    z = torch.nn.functional.conv2d(x[:, :32].reshape(2, 4, 16, 16), x[:36, 1].reshape(1, 4, 3, 3))
    return sha(y.numpy(), z.numpy(), x.exp().std(0).numpy())


def make_inputs(folder):
    """A table, a folder of images, costs and a recipe."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.zeros(300, int), np.ones(90, int), np.full(60, 2)])
    x = rng.normal(size=(450, 6)).astype(np.float32)
    x[:, 0] += y
    x[:, 1] -= 0.7 * y
    np.savez(folder / "table.npz", X=x, y=y)
    (folder / "recipe.toml").write_text(RECIPE)
    shutil.copy(HERE.parents[1] / "recipes/digits-costs.csv", folder / "costs.csv")
    for c in range(3):
        of_class = folder / "images" / f"c{c}"
        of_class.mkdir(parents=True)
        for i in range(40):
            pixels = (rng.integers(0, 160, (16, 16, 3)) + 30 * c).astype(np.uint8)
            Image.fromarray(pixels).save(of_class / f"{i:03}.png")


def run(case, folder):
    """Run a command in ``folder`` and return what it gave, in short."""
    make_inputs(folder)
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"] if case == "two-ranks" else []
    words = [*CASES[case].split(), "--device", "cpu", "--out", "run"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *ranks, "lossalign", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return digest(folder / "run")


def digest(run):
    """Scores as they are; of arrays a fingerprint and the last mean Φ."""
    result = json.loads((run / "results.json").read_text())
    found = {key: result[key] for key in ("seeds", "train_error", "failed", "collapsed", "kept", "learnable")}
    found["rows"] = {
        name: [row[key] for key in ("mean", "difference", "half_width", "p")] for name, row in result["rows"].items()
    }
    found["phi"] = {}
    for file in sorted(run.glob("phi-*.npz")):
        phi = np.load(file)["phi"]
        last = [round(float(value), 5) for value in phi[-1].mean(0)][:12]
        found["phi"][file.stem] = {"sha": sha(phi), "last": last}
    weights = {file.stem: load_file(file) for file in run.glob("*.safetensors")}
    fingerprints = {name: sha(*(each[key] for key in sorted(each))) for name, each in sorted(weights.items())}
    found["best"] = fingerprints.pop("best")
    found["policy"] = fingerprints
    found["curves"] = curves(run, list(result["roles"]))
    return found


def curves(run, methods):
    """A fingerprint of the curves, family by family in the order of the ``methods``, as they were trained then."""
    arms = json.loads((run / "arms.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    own = {
        name: [arm for arm in arms if arm["family"] == name] for name in dict.fromkeys(arm["family"] for arm in arms)
    }
    first = {name: min(methods.index(arm["method"]) for arm in own[name]) for name in own}
    digest = hashlib.sha256()
    for name in sorted(own, key=lambda name: (name.endswith("-refit"), first[name])):
        start, end = own[name][0]["start"], own[name][-1]["start"] + own[name][-1]["children"]
        for row in lines:
            if row["population"] == own[name][0]["population"]:
                values = [row[key][start:end] for key in ("loss", "metric", "selection")]
                digest.update(json.dumps([name, row["step"], *values]).encode())
    return digest.hexdigest()[:16]


def leaves(value, path=""):
    """Nested dicts as one dict of leaves."""
    if not isinstance(value, dict):
        return {path: value}
    return {name: leaf for key, part in value.items() for name, leaf in leaves(part, f"{path}/{key}").items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_command_gives_what_it_gave(case, tmp_path):
    recorded = json.loads(OLD.read_text())
    if recorded["probe"] != probe():
        pytest.skip("this processor rounds differently from the one that recorded runs.json")
    expected = leaves(recorded[case])
    for reason in json.loads(CHANGED.read_text()).values():
        expected |= reason.get(case, {})
    assert leaves(run(case, tmp_path)) == expected


def record_changes(reason):
    """Add today's differences to ``runs-changed.json``."""
    recorded, changed = json.loads(OLD.read_text()), json.loads(CHANGED.read_text()) if CHANGED.exists() else {}
    for case in CASES:
        expected = leaves(recorded[case])
        for known in changed.values():
            expected |= known.get(case, {})
        with tempfile.TemporaryDirectory() as folder:
            now = leaves(run(case, Path(folder)))
        assert now.keys() == expected.keys(), case
        if differs := {name: value for name, value in now.items() if value != expected[name]}:
            changed.setdefault(reason, {})[case] = differs
    CHANGED.write_text(json.dumps(changed, indent=1) + "\n")


if __name__ == "__main__":
    record_changes(sys.argv[1])
