"""`whyidle bench`: measures storage or network of this machine as trainings use them. One subcommand for each."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import NamedTuple


class Bench(NamedTuple):
    """A subcommand. Its module has ``add_arguments(parser)`` and ``run(args) -> int``, and imports no torch."""

    name: str
    module: str  # relative to this package
    help: str


BENCHES: tuple[Bench, ...] = (
    Bench("storage", ".storage.command", "measure how fast storage serves data loading and checkpoints"),
    Bench("network", ".network.command", "measure how fast ranks reach each other, and which link or node is slow"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(title="benches", metavar="WHAT", required=True)
    for bench in BENCHES:
        subparser = subparsers.add_parser(
            bench.name,
            help=bench.help,
            description=bench.help[0].upper() + bench.help[1:] + ".",
            allow_abbrev=False,
        )
        module = import_module(bench.module, __package__)
        module.add_arguments(subparser)
        subparser.set_defaults(bench=module.run)


def run(args: argparse.Namespace) -> int:
    return args.bench(args)
