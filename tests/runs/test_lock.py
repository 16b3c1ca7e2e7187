"""One process at a time holds a run folder; what a killed process left is no lock."""

import os
import platform
import signal
import subprocess
import sys

import pytest

from lossalign import fit
from lossalign.core import RunFolderError
from lossalign.runs import Listener
from lossalign.runs.lock import LOCK, locked

SMALL = {"iterations": 40, "children": 2, "methods": "fixed"}
HOLDS = "import sys, time; from pathlib import Path; from lossalign.runs.lock import locked\n"
HOLDS += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_second_process_is_refused_with_the_first_ones_pid_and_host(tmp_path, holder, existing):
    sentence = f"in use by process {holder.pid} on host '{platform.node()}'; wait until"
    with pytest.raises(RunFolderError, match=sentence):
        fit("digits-lt", out=tmp_path / "run", existing=existing, **SMALL)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_the_lock_of_a_killed_process_is_none(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).exists()
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_run_is_locked_while_it_trains(tmp_path):
    class Second(Listener):
        def stepped(self, population, record, arms):
            with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
                fit("digits-lt", out=tmp_path / "run", existing="resume", **SMALL)

    fit("digits-lt", out=tmp_path / "run", listener=Second(), **SMALL)


def test_a_folder_is_locked_again_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "run"):
        raise ZeroDivisionError
    assert not (tmp_path / "run").exists()
    with locked(tmp_path / "run"):
        pass


def test_a_lock_file_with_anything_in_it_is_no_reason_to_stop(tmp_path):
    (tmp_path / LOCK).write_text("\0 not JSON")
    with locked(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
