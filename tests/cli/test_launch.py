"""Ranks that cannot meet say so within a minute, and who is missing."""

import os
import socket
import subprocess
import sys

import pytest
from torch.distributed import TCPStore

SCRIPT = """
import sys
from datetime import timedelta
from lossalign.cli import launch
from lossalign.cli.main import run_command
assert launch.JOINING <= timedelta(minutes=1)
launch.JOINING = timedelta(seconds=3)
launch.leave(run_command(["train", "digits-lt"]))
"""


def launched(tmp_path, rank, port, **more):
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    env = {**os.environ, **where, **more, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_missing_rank_is_said(tmp_path, port):
    done = launched(tmp_path, 0, port)
    assert done.returncode == 2
    assert "rank 0 cannot meet the others" in done.stderr
    assert "1/2 clients joined" in done.stderr


def test_a_missing_rank_is_named_where_torchrun_keeps_the_store(tmp_path, port):
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    done = launched(tmp_path, 0, store.port, TORCHELASTIC_USE_AGENT_STORE="True")
    assert done.returncode == 2
    assert f"error: 1 of 2 ranks have not come to 127.0.0.1:{port} within 3 seconds (1); start" in done.stderr


def test_a_missing_first_rank_is_said_by_the_others(tmp_path, port):
    done = launched(tmp_path, 1, port)
    assert done.returncode == 2
    assert f"error: rank 1 cannot meet the others at 127.0.0.1:{port}; start all ranks" in done.stderr


def test_a_port_in_use_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = launched(tmp_path, 0, taken.getsockname()[1])
    assert done.returncode == 2
    assert "check that the port is free" in done.stderr
    assert not (tmp_path / "runs").exists()
