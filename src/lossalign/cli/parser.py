"""Argument parsers that raise ``InputError``: one sentence, exit code 2."""

from __future__ import annotations

import argparse
import textwrap
from typing import NoReturn

from lossalign.core import InputError

WIDTH = 100


class Help(argparse.RawDescriptionHelpFormatter):
    """Help that keeps names such as ``logit-adjustment`` on one line."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that keeps only the flags that were given and raises ``InputError``."""

    def __init__(self, prog: str, description: str, *, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            formatter_class=lambda prog: Help(prog, 2, 36, WIDTH),
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise InputError(f"{message[0].lower()}{message[1:]}; see `{self.prog} --help`.")


def choose(command: str, verbs: dict[str, str], args: list[str]) -> tuple[str, Parser, list[str]] | None:
    """The verb that ``args`` begin with, a parser for the rest, and the rest; None if help was shown.

    Args:
        command: the command in front of the verb.
        verbs: the verbs, each with its help.
        args: the arguments after the command.
    """
    if not args or args[0] in ("-h", "--help"):
        print(f"usage: lossalign {command} {' | '.join(verbs)}\n")
        for verb, about in verbs.items():
            print(f"  {verb:8}  {about}")
        return None
    if args[0] not in verbs:
        raise InputError(f"{command} {args[0]!r} is unknown; choose from {', '.join(verbs)}.")
    return args[0], Parser(f"lossalign {command} {args[0]}", verbs[args[0]]), args[1:]
