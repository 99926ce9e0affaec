"""Chooses the run of a command, with the same arguments and messages in all commands that read ledgers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import NamedTuple

from ..ledger.directory import Problem, Run, ledger_dir, read_directory, sentences
from ..ledger.reader import Ledger
from ..ledger.text import as_stored
from ..verdict.report import runs


class Choice(NamedTuple):
    """A run, and all ledgers of the directory, read with their steps."""

    run: Run
    ledgers: list[Ledger]
    problems: list[Problem]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", metavar="DIR", default=ledger_dir(), help="the directory with the ledgers (default: %(default)s)"
    )
    parser.add_argument("--run", dest="run_name", metavar="RUN", help=argparse.SUPPRESS)
    # A default would undo --run.
    parser.add_argument(
        "run_name", metavar="RUN", nargs="?", default=argparse.SUPPRESS, help="which run (default: the newest)"
    )
    parser.add_argument("--owner", help="the owner, if several owners have a run with this name")


def choose(command: str, args: argparse.Namespace) -> Choice | None:
    """The run that the arguments name. None if no run or several runs match, after a message on stderr."""

    def say(sentence: str) -> None:
        print(f"whyidle {command}: {sentence}", file=sys.stderr)

    ledgers, problems = read_directory(args.dir, steps=True)
    found = runs(ledgers)
    meant = [run for run in found if _is_meant(run, args)]
    if not meant:
        what = f"there is no ledger of {_wanted(args)}" if args.run_name or args.owner else "no ledgers"
        known = f", but there are ledgers of {_names(found)}" if found else ""
        say(f"{what} in {args.dir}{known}")
        for sentence in sentences(problems):
            say(sentence)
        return None
    if args.run_name and len(meant) > 1:
        owners = ", ".join(sorted(owner for owner, _ in meant))
        say(f"several owners have a run {args.run_name}: {owners}. Choose one with --owner.")
        return None
    if len(meant) > 1:
        say(f"showing {_names(meant[:1])}; also here: {_names(meant[1:])}")
    return Choice(meant[0], ledgers, problems)


def _is_meant(run: Run, args: argparse.Namespace) -> bool:
    given = {"owner": args.owner, "run": args.run_name}
    if args.owner is None and args.run_name == name_of(run):  # as reports print it
        return True
    return all(
        text is None or as_stored(field, text) == own for (field, text), own in zip(given.items(), run, strict=True)
    )


def _wanted(args: argparse.Namespace) -> str:
    run = f"run {args.run_name}" if args.run_name else "a run"
    return f"{run} of owner {args.owner}" if args.owner else run


def _names(runs: Iterable[Run]) -> str:
    return ", ".join(name_of(run) for run in runs)


def name_of(run: Run) -> str:
    """The name of a run with its owner, as owner/name."""
    owner, name = run
    return f"{owner}/{name}" if owner else name
