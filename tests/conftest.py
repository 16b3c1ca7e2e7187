"""One torch thread a worker; properties are checked without a clock.

The profile ``steady`` checks the same examples every time; ``HYPOTHESIS_PROFILE=fresh`` draws new ones, which
``--hypothesis-seed`` repeats (`make test-slow` prints its seed).
"""

import os
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, database=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


for _name, _handler in (
    ("SIGINT", signal.default_int_handler),
    ("SIGTERM", signal.SIG_DFL),
    ("SIGHUP", signal.SIG_DFL),
):
    if hasattr(signal, _name):  # as in a terminal, even where what starts the tests ignores signals, as nohup does
        signal.signal(getattr(signal, _name), _handler)


AND_LEAVE = """
import datetime, os, runpy, sys
import torch
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
rank, count, meeting = sys.argv[1:4]
torch.set_num_threads(1)
minute = datetime.timedelta(minutes=1)
torch.distributed.init_process_group(
    "gloo", init_method="file://" + meeting, rank=int(rank), world_size=int(count), timeout=minute
)
runpy.run_path(sys.argv[0], run_name="__main__")
os._exit(0)
"""
"""Joins the ranks, runs a script and leaves at once: a group's threads now and then abort a busy process on its way."""


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory):
    """Run a script in several processes; it is told its rank, their number, a file to meet at, and the arguments."""

    def run(script, count, *args):
        meeting = tmp_path_factory.mktemp("ranks") / "meeting"
        told = [[str(part) for part in (script, rank, count, meeting, *args)] for rank in range(count)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", AND_LEAVE, *each], env=one_thread, stderr=subprocess.PIPE, text=True
            )
            for each in told
        ]
        try:
            said = [process.communicate(timeout=100)[1] for process in started]
        finally:
            for process in started:
                process.kill()
        assert all(process.returncode == 0 for process in started), "\n".join(said)

    return run
