"""The command line as a user meets it: what it prints, its exit codes, and that it never shows a traceback."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lossalign.cli.main import run_command
from lossalign.experiments import KEYS, configure, to_plain
from lossalign.runs.folder import FORMAT, SCHEMA

SMALL = ["--iterations", "40", "--children", "2", "--seeds", "2"]


def test_help_names_commands_and_tasks(capsys):
    assert run_command([]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("train", "compare", "list", "data", "policy", "digits-lt", "table:FILE"))


def test_help_of_a_task_shows_its_own_defaults(capsys):
    with pytest.raises(SystemExit) as leave:
        run_command(["compare", "digits-lt", "--help"])
    assert leave.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"--ratio NUMBER {KEYS['ratio'].doc} [20.0]" in said


def test_version(capsys):
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lossalign ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fly"], "command 'fly' is unknown"),
        (["train", "--children", "3"], "the task comes first"),
        (["train", "mnist"], "hoose from digits, digits-lt, cifar10"),
        (["train", "digits", "--children", "0"], "children=0: train at least 1"),
        (["train", "digits", "--every", "9999"], "every=9999"),
        (["train", "digits", "--metric", "luck"], "metric 'luck' is unknown"),
        (["train", "digits", "--model", "resnet9"], "6n + 2"),
        (["train", "digits", "--model", "nowhere:factory"], "nowhere"),
        (["train", "digits", "--loss", "hinge"], "loss 'hinge' is unknown"),
        (["train", "digits", "--preset", "best"], "preset='best'"),
        (["train", "digits", "--methods", "magic"], "method 'magic' is unknown"),
        (["train", "digits", "--methods", "post-hoc-offsets"], "add it to the methods"),
        (["train", "digits", "--horizon", "many"], "horizon=many: give a whole number"),
        (["train", "digits", "--switches", "horizon=1"], "every option of the preset is a key of its own"),
        (["train", "digits", "--reward-per-class", "5"], "it is now called --validation-per-class"),
        (["train", "digits", "--childen", "5"], "did you mean --children?"),
        (["train", "digits", "5"], "'5' belongs to no flag"),
        (["train", "digits", "--children"], "expected one argument"),
        (["list", "colours"], "list 'colours': choose from tasks, methods"),
        (["data", "burn"], "data 'burn' is unknown; choose from list, fetch, check"),
        (["policy", "burn"], "policy 'burn' is unknown; choose from show, export"),
        (["policy", "export", "run"], "--out"),
        (["train", "digits", "--policy", "nothing.safetensors"], "nothing.safetensors is not a file"),
        (["train", "digits", "--validation-per-class", "500"], "has 178 examples"),
        (["train", "digits", "--device", "abacus"], "device=abacus: give one of auto, cpu, cuda"),
        (["train", "digits", "--resume", "--overwrite"], "choose one of the two"),
        (["train", "cifar10", "--data", "nowhere"], "lossalign data fetch cifar10"),
        (["train", "digits", "--learning-rate", "1e30", *SMALL], "step 1: the training loss of child 0"),
        (["data", "check", "cifar10", "--data", "nowhere"], "cifar10"),
        (["data", "fetch", "mnist"], "mnist"),
        (["policy", "show", "nothing.safetensors"], "not a file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    assert run_command(args) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") or "\nerror: " in said
    assert message in said
    assert "Traceback" not in said


def test_train_shows_its_result_and_its_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["train", "digits-lt", *SMALL]) == 0
    said = capsys.readouterr()
    assert "balanced error (%) on the selection split" in said.out
    assert "runs/train-digits-lt/curves.png" in said.out
    assert "engine fused, float32 on cpu" in said.err
    assert (tmp_path / "runs/train-digits-lt/phi.png").exists()


def test_an_existing_run_is_refused_then_overwritten_then_resumed(tmp_path, capsys):
    args = ["train", "digits-lt", *SMALL, "--out", str(tmp_path / "run")]
    assert run_command(args) == 0
    assert run_command(args) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run_command([*args, "--overwrite"]) == 0
    assert run_command([*args, "--resume", "--final"]) == 0
    assert run_command([*args, "--resume", "--final"]) == 2
    assert "it can be scored once" in capsys.readouterr().err


def test_compare_prints_json_when_asked(tmp_path, capsys):
    args = ["compare", "digits-lt", *SMALL, "--out", str(tmp_path / "run"), "--json", "--final"]
    assert run_command(args) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["split"] == "test"
    assert set(result["rows"]) >= {"fixed", "ala", "random-walk", "post-hoc-offsets"}
    assert result["rows"]["ala"]["seeds"] == 2


@pytest.mark.parametrize("walk", ["random-walk", "random-walk:children=1"])
def test_compare_says_whether_ala_won_and_whether_there_is_anything_to_learn(walk, tmp_path, capsys):
    args = ["compare", "digits-lt", *SMALL, "--iterations", "200", "--out", str(tmp_path / "run")]
    args += ["--methods", "fixed", walk, "ala"]
    assert run_command(args) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "points against fixed:" in said
    assert "R² of reward on actions along the random walk" in said


def test_a_policy_is_shown_exported_and_used_again(tmp_path, capsys):
    run, exported = tmp_path / "run", tmp_path / "policies" / "mine.safetensors"
    assert run_command(["train", "digits-lt", *SMALL, "--out", str(run)]) == 0
    assert run_command(["policy", "export", str(run), "--seed", "1", "--out", str(exported)]) == 0
    assert exported.read_bytes() == (run / "policy-1.safetensors").read_bytes()
    assert run_command(["policy", "show", str(run)]) == 0
    assert "15 → 32 → 32 → 3" in capsys.readouterr().out
    again = ["train", "digits-lt", *SMALL, "--policy", str(exported), "--freeze", "--out", str(tmp_path / "again")]
    assert run_command(again) == 0
    assert run_command(["policy", "export", str(run), "--seed", "9", "--out", str(exported)]) == 2


def test_data_list_says_what_is_there(tmp_path, capsys):
    assert run_command(["data", "list", "--data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "digits: part of the package" in said
    assert "cifar10: not in" in said


@pytest.mark.filterwarnings("default:metric:UserWarning")
def test_own_table_own_model_own_metric(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    np.savez(tmp_path / "mine.npz", X=rng.normal(size=(300, 5)) + y[:, None], y=y)
    (tmp_path / "my_things.py").write_text(
        "import torch\n"
        "def model(input_shape, num_classes):\n"
        "    return torch.nn.Linear(input_shape[0], num_classes)\n"
        "def recall_of_class_2(outputs, targets):\n"
        "    return (outputs.argmax(-1) == 2)[targets == 2].float().mean()\n"
        "recall_of_class_2.higher_is_better = True\n"
    )
    monkeypatch.chdir(tmp_path)
    args = ["--model", "my_things:model", "--metric", "my_things:recall_of_class_2", "--learning-rate", "0.01"]
    assert run_command(["train", "table:mine.npz", *SMALL, *args, "--out", "run", "--json"]) == 0
    said = capsys.readouterr()
    assert 0.5 < json.loads(said.out)["rows"]["ala"]["mean"] <= 1
    assert "warning: metric 'recall_of_class_2' is called up to 24 times more" in said.err


@pytest.mark.parametrize(
    ("code", "flag", "message"),
    [
        ("def thing(:", "--model", "importing 'mine' failed: SyntaxError"),
        ("import nothing_like_it\ndef thing(): pass", "--model", "no module 'nothing_like_it'"),
        ("def thing(): raise KeyError('weights')", "--model", "the factory failed: KeyError: 'weights'"),
        ("def thing(outputs, targets): return 1 / 0\nthing.higher_is_better = True", "--metric", "ZeroDivisionError"),
        ("def thing(outputs, targets): return 'high'\nthing.higher_is_better = True", "--metric", "thing"),
        ("def thing(outputs, targets): return 1.0", "--metric", "higher_is_better"),
    ],
)
def test_mistakes_in_own_code_are_named(tmp_path, monkeypatch, capsys, code, flag, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(code)
    assert run_command(["train", "digits", flag, "mine:thing", *SMALL]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_what_nobody_foresaw_is_one_line_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lossalign.cli.main.train", lambda *args, **kwargs: 1 / 0)
    assert run_command(["train", "digits", *SMALL, "--out", str(tmp_path / "run")]) == 1
    assert "error: ZeroDivisionError: division by zero" in capsys.readouterr().err
    monkeypatch.setenv("LOSSALIGN_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run_command(["train", "digits", *SMALL, "--out", str(tmp_path / "run")])


@pytest.mark.skipif(os.name == "nt", reason="Unix signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_writes_a_checkpoint_and_leaves(tmp_path, number, code):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "lossalign", "train", "digits-lt", "--children", "2", "--out", str(out)]
    process = subprocess.Popen([*command, "--iterations", "30000"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (out / "metrics.jsonl").exists():
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "--resume" in said
    assert "Traceback" not in said
    assert (out / "checkpoint-mlp-16.pt").exists()


@pytest.mark.parametrize("as_module", [True, False])
def test_ctrl_c_while_importing_shows_no_traceback(tmp_path, as_module):
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    program = tmp_path / "bin" / "lossalign"
    program.parent.mkdir()
    program.write_text("from lossalign.cli.main import main\nmain()\n")
    command = ["-m", "lossalign"] if as_module else [str(program)]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, *command, "list"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr == ""


def test_an_ascii_terminal_and_locale_are_enough(tmp_path):
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = tmp_path / "[bold]run[/x]"
    command = [sys.executable, "-m", "lossalign", "train", "digits-lt", *SMALL, "--out", str(run)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[bold]run[/x]" in done.stdout
    shown = subprocess.run([*command[:3], "policy", "show", str(run)], env=env, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "[bold]run[/x]" in "".join(shown.stdout.split())  # the title wraps


@pytest.mark.parametrize("field", ["task", "metric", "model", "loss", "methods", "policy", "data"])
@pytest.mark.parametrize("command", ["--resume", "--overwrite"])
def test_a_run_folder_of_a_stranger_runs_no_code(tmp_path, monkeypatch, field, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    (tmp_path / "evil.py").write_text("open('was_here', 'w').close()")
    plain, evil = to_plain(configure("digits-lt")), "evil:thing"
    {
        "task": lambda: plain.update(task=evil),
        "metric": lambda: plain.update(metric=evil),
        "model": lambda: plain["model"].update(name=evil),
        "loss": lambda: plain["control"]["options"].update(loss=evil),
        "methods": lambda: plain["methods"].update(specs=[evil]),
        "policy": lambda: plain["control"].update(policy=evil),
        "data": lambda: plain["data"].update(folder=evil, source=evil),
    }[field]()
    (tmp_path / "run").mkdir()
    about = {"format": FORMAT, "schema": SCHEMA, "begun": "today", "run": plain, "data": {}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(about))
    (tmp_path / "run" / "checkpoint-mlp-16.pt").write_bytes(pickle.dumps(print))
    assert run_command(["train", "digits-lt", *SMALL, "--out", "run", command]) == (2 if command == "--resume" else 0)
    assert not (tmp_path / "was_here").exists()
    assert "evil" not in sys.modules
