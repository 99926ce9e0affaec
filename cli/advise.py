"""`whyidle advise`: hands a slow node to a scheduler, as a command with our evidence as its reason."""

from __future__ import annotations

import argparse
import shlex
import shutil
import socket
import subprocess
import sys
import time

from ..advisor.advice.case import case_of
from ..advisor.handoff import LONGEST_REASON, UNDO, Blamed, NoHandOff, blamed, commands, one_node, reason
from ..ledger.text import printable
from . import choice, exposition, faults
from .agent import DEFAULT_ADDRESS
from .prometheus import culprits, options
from .prometheus.client import NoAnswer

SECONDS = 60.0
"""How long a scheduler's command may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="scheduler",
        choices=sorted(UNDO),
        required=True,
        help="which scheduler's commands to print: slurm drains the node, kubernetes cordons it",
    )
    parser.add_argument("--apply", action="store_true", help="run the commands (default: only print them)")
    parser.add_argument("--node", metavar="NAME", help="the node's name in the scheduler, if ledgers have another one")
    parser.add_argument(
        "--agent",
        metavar="HOST:PORT",
        help="the agent of that node, to ask for faults of its hardware (default: its usual port on that node)",
    )
    choice.add_arguments(parser)
    options.add_arguments(parser, since="30m")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if there is a node to hand off, and with --apply all commands have worked; otherwise 1."""
    try:
        looked = _recorded(args) if args.prometheus else _here(args)
        if looked is None:
            return 1
        name, found, faults_seen, why_none = looked
        confirmed = found.confirmed(faults_seen)
        if not confirmed:
            raise NoHandOff(
                f"node {found.node} of run {name} is suspected, but not confirmed: {found.sentence}. It was"
                f" {found.said}, and {why_none}"
            )
        node = one_node(found.node if args.node is None else args.node)
        words = commands(args.scheduler, node, reason(found, name, confirmed))
    except (NoHandOff, NoAnswer) as why:
        print(f"whyidle advise: nothing to hand off: {printable(str(why))}", file=sys.stderr)
        return 1
    print(f"# run {printable(name)}, node {printable(found.node)}: {printable(found.sentence)}")
    print(f"# confirmed: {printable(confirmed)}")
    print(f"# to undo: {UNDO[args.scheduler].format(node=node)}")
    for command in words:
        print(shlex.join(command), flush=True)
    return _apply(words) if args.apply else 0


Looked = tuple[str, Blamed, list[str], str]
"""The name of the run, the node, its faults, and words for the case that there are none."""


def _here(args: argparse.Namespace) -> Looked | None:
    """What the ledgers of a directory say. None if they do not have the run."""
    chosen = choice.choose("advise", args)
    if chosen is None:
        return None
    found = blamed(case_of(chosen.run, chosen.ledgers, time.monotonic_ns()))
    reading = exposition.read(args.agent or _agent_of(one_node(found.node)), *faults.NAMES)
    seen = reading.why_not or "its agent shows no fault of a GPU"
    return choice.name_of(chosen.run), found, faults.faults_of(reading.samples), seen


def _recorded(args: argparse.Namespace) -> Looked:
    """What a Prometheus says. Raises NoAnswer and NoHandOff."""
    server = options.server(args)
    run, found, alerts = culprits.blamed(server, args)
    return choice.name_of(run), found, alerts, "no alert on its GPUs is firing"


def _agent_of(node: str) -> str:
    if node == socket.gethostname():
        return DEFAULT_ADDRESS
    return f"{node}:{DEFAULT_ADDRESS.rpartition(':')[2]}"


def _apply(words: list[list[str]]) -> int:
    for done, command in enumerate(words):
        if problem := _problem(command):
            so_far = f" These commands have worked: {'; '.join(map(shlex.join, words[:done]))}." if done else ""
            print(f"whyidle advise: {problem}.{so_far}", file=sys.stderr)
            return 1
    print("# done")
    return 0


def _problem(command: list[str]) -> str:
    """Runs a command. Returns what went wrong; empty if it worked."""
    program = command[0]
    if shutil.which(program) is None:
        return f"{program} is not installed here: run the command above where it is"
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{program} has not answered for {SECONDS:.0f} s; whether it worked is not known"
    except OSError as error:
        return f"{program} cannot be started: {error.strerror or error}"
    if ended.returncode:
        said = printable((ended.stderr or ended.stdout).strip().replace("\n", " "))[:LONGEST_REASON]
        return f"{program} failed with status {ended.returncode}{f': {said}' if said else ''}"
    return ""
