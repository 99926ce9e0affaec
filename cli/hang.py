"""`whyidle hang`: which rank keeps a run waiting and why, in one sentence and one file for a ticket."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from pathlib import Path

from ..agent.hang import dossier, ras, text
from ..ledger.directory import read_directory
from ..ledger.text import printable
from ..verdict.diagnosis import AFTER_SECONDS
from . import choice, exposition
from .agent import DEFAULT_ADDRESS
from .durations import duration
from .progress import open_progress

_MOST_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choice.add_arguments(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the dossier to this file, as text with the JSON at its end, and print only the sentence",
    )
    parser.add_argument("--json", action="store_true", help="print or write only JSON")
    parser.add_argument(
        "--after",
        metavar="TIME",
        type=duration,
        default=AFTER_SECONDS,
        help=f"shorter waits do not count as a hang (default: {AFTER_SECONDS:.0f}s)",
    )
    parser.add_argument(
        "--pid",
        metavar="PID",
        type=int,
        default=0,
        help="a process of the run, if the run has no ledgers (default: the run with most ranks on this node)",
    )
    parser.add_argument(
        "--agent",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help="which agent to ask for GPUs, XIDs and errors of links (default: %(default)s)",
    )
    parser.add_argument(
        "--ras",
        metavar="HOST:PORT",
        default=ras.default_address(),
        help="where NCCL's RAS service of the run listens (default: %(default)s)",
    )
    parser.add_argument("--no-stacks", dest="stacks", action="store_false", help="take no stacks of Python with py-spy")
    parser.add_argument(
        "--no-dumps",
        dest="dumps",
        action="store_false",
        help="do not ask torch's flight recorder for dumps. Otherwise ranks with a pipe for that are asked once",
    )
    parser.epilog = (
        "Run it on the node of the rank that is missing, as root or as the user of the training, while the run hangs. "
        "A run without ledgers is found by the environment of its processes: RANK and WORLD_SIZE, or the variables of "
        "srun, Flux or MPI."
    )


def run(args: argparse.Namespace) -> int:
    ledgers, _ = read_directory(args.dir)
    chosen = choice.choose("hang", args) if ledgers or args.run_name or args.owner else None
    if chosen is None and (ledgers or args.run_name or args.owner):
        return 1
    with open_progress("hang") as progress:
        wanted = dossier.Wanted(
            after=args.after,
            pid=args.pid,
            ras_address=args.ras,
            metrics=lambda: _exposition(args.agent),
            stacks=args.stacks,
            dumps=args.dumps,
            progress=progress.show if sys.stderr.isatty() else lambda part, done: None,
        )
        found = dossier.collect(chosen.run if chosen else None, chosen.ledgers if chosen else [], wanted)
    if not found["ranks"] and found["nccl"] is None:
        print(f"whyidle hang: no ledgers in {args.dir}, no process of a rank, and no answer of NCCL", file=sys.stderr)
        return 1
    whole = (
        json.dumps(found, indent=2) + "\n" if args.json else text.with_json(found) if args.out else text.render(found)
    )
    if args.out:
        Path(args.out).write_text(whole, encoding="utf-8", errors="backslashreplace")
        print(f"{found['sentence']}\nThe dossier is in {printable(args.out)}.")
    else:
        print(whole, end="")
    return 0


def _exposition(address: str) -> str:
    try:
        return exposition.fetch(address, exposition.TIMEOUT_SECONDS, _MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or reason
        raise exposition.NoAgent(f"no agent answers at {address} ({said})") from error
