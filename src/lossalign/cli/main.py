"""``lossalign train | compare | list | data | policy``. Errors are one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout

from rich.console import Console

from lossalign.api import train
from lossalign.cli import data, listing, policy
from lossalign.cli.flags import Asked, parse
from lossalign.cli.launch import is_first, joined, launched, leave, take_gpu
from lossalign.cli.progress import ProgressListener
from lossalign.cli.tables import print_result
from lossalign.core import VERSION, InputError, Interrupted, LossalignError, RankError
from lossalign.experiments import TASKS, write_recipe

USAGE = f"""usage: lossalign COMMAND …

  train TASK    train networks on a task with a loss that is adapted to the metric
  compare TASK  compare methods on paired seeds: a table with 95 % intervals
  list          tasks, methods, metrics, losses, models, policies
  data          list, fetch or check data sets
  policy        show a learned policy, or export it

TASK is one of {", ".join(TASKS)},
table:FILE (.npz with X and y, or .csv), images:FOLDER (one folder for each class),
or a recipe FILE.toml that names its task and any flags.
`lossalign COMMAND TASK --help` lists every flag with the task's defaults.
`torchrun --nproc-per-node N -m lossalign train TASK …` spreads the networks over N processes or GPUs.
"""


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for Φ
    try:
        code = run_command(sys.argv[1:])
    except SystemExit as asked:  # help was shown, or a flag is wrong
        code = asked.code if isinstance(asked.code, int) else 0 if asked.code is None else 1
    except Exception:  # only with LOSSALIGN_TRACEBACK
        traceback.print_exc()
        code = 1
    leave(code)


def run_command(args: list[str]) -> int:
    """Run one command and return its exit code. An error is printed as one sentence, by the first rank only."""
    messages = Console(stderr=True, quiet=not is_first())

    def say(message: Warning | str, *where: object, **more: object) -> None:
        messages.print(f"warning: {message}", highlight=False, markup=False, soft_wrap=True)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = say
            return _dispatch(args, messages)
    except Interrupted as interrupted:
        again = shlex.join([*(arg for arg in args if arg not in ("--overwrite", "--resume")), "--resume"])
        command = f"torchrun … -m lossalign {again}" if launched() else f"lossalign {again}"
        messages.print(f"{interrupted} Command: {command}", highlight=False, markup=False, soft_wrap=True)
        return 128 + interrupted.signal
    except LossalignError as error:
        if isinstance(error, RankError):
            messages.quiet = False  # the first rank may be the one that does not answer
        messages.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        return 2
    except BrokenPipeError:
        sys.stdout = None  # the reader of a pipe has exited
        return 1
    except OSError as error:
        messages.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        messages.print("stopped at once; the last checkpoint is in the run folder, if one was written.")
        return 130
    except Exception as error:  # an error of a user's model or metric, or a bug
        if "LOSSALIGN_TRACEBACK" in os.environ:
            raise
        what = f"error: {type(error).__name__}: {error}"
        messages.quiet = False  # other ranks may not have raised it
        messages.print(
            f"{what}\nSet LOSSALIGN_TRACEBACK=1 to see where.", highlight=False, markup=False, soft_wrap=True
        )
        return 1


def _dispatch(args: list[str], messages: Console) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if args[0] == "--version":
        print(f"lossalign {VERSION}")
        return 0
    command, rest = args[0], args[1:]
    if command == "data":
        return data.main(rest, Console(markup=False))
    if command == "policy":
        return policy.main(rest, Console(markup=False))
    if command == "list":
        return listing.main(rest, Console(markup=False))
    if command not in ("train", "compare"):
        raise InputError(f"command {command!r} is unknown; choose from train, compare, list, data, policy.")
    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if rest[0].startswith("-"):
        raise InputError(f"{command}: the task comes first, e.g. `lossalign {command} digits-lt {rest[0]} …`.")
    return _train(command, rest[0], rest[1:], messages)


def _train(command: str, task: str, args: list[str], messages: Console) -> int:
    listener = ProgressListener(messages)
    with joined() as ranks, listener.running():
        asked = ranks.guarded(lambda: _parse(command, task, args))
        if asked.print_config:
            if ranks.first:
                print(write_recipe(asked.config), end="")
            return 0
        ranks.wait_at_most(asked.config.compute.rank_timeout)
        ranks.guarded(lambda: take_gpu(asked.config.compute.device))
        result = train(asked.config, asked.out, existing=asked.existing, final=asked.final, listener=listener)
    if not ranks.first:
        return 0
    if asked.json:
        print(json.dumps(result.to_json()))
    else:
        print_result(result, Console(markup=False))
    return 0


def _parse(command: str, task: str, args: list[str]) -> Asked:
    """The parsed flags; only the first rank shows help."""
    if is_first():
        return parse(command, task, args)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return parse(command, task, args)
