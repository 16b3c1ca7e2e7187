"""torchrun restarts a run whose rank was killed, and nothing of the result shows it."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from lossalign import fit

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds ranks by /proc")]

SETTINGS = {"iterations": 1500, "children": 3, "engine": "sequential", "device": "cpu"}


def rank_of(agent, rank):
    """The process id of one of the ranks that ``agent`` started."""
    with open(f"/proc/{agent}/task/{agent}/children") as file:
        children = file.read().split()
    for child in children:
        with open(f"/proc/{child}/environ") as file:
            if f"RANK={rank}" in file.read().split("\0"):
                return int(child)
    raise LookupError(rank)


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process with all children, left alone."""
    return fit("digits-lt", out=tmp_path_factory.mktemp("alone") / "run", **SETTINGS).folder


@pytest.mark.parametrize(("killed", "how"), [(0, "standalone"), (1, "static")])
def test_a_killed_rank_leaves_the_run_of_one_process(alone, tmp_path, killed, how):
    """``static`` is torchrun without flags: it gives the run no name of its own, and keeps its store over restarts."""
    where = ["--standalone"] if how == "standalone" else ["--master-port", free_port()]
    flags = ["--iterations", "1500", "--children", "3", "--engine", "sequential", "--device", "cpu"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [*launcher, "-m", "lossalign", "train", "digits-lt", *flags, "--out", str(tmp_path / "run")]
    steps = tmp_path / "run" / "metrics.jsonl"
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not steps.exists() or steps.read_text().count("\n") < 20):
            time.sleep(0.05)
        os.kill(rank_of(agent.pid, killed), signal.SIGKILL)
        said, _ = agent.communicate(timeout=120)
    finally:
        agent.kill()
    assert agent.returncode == 0, said
    assert (tmp_path / "run" / "environment.jsonl").read_text().count("\n") == 2  # it was started twice
    for name in ("metrics.jsonl", "policy-0.safetensors", "best.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (alone / name).read_bytes()
