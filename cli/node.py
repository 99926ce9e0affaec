"""The options of the commands that read a node: `agent` and `doctor`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from ..agent.collector import COLLECTORS, Collector, Options, create_collectors
from ..agent.files import Roots
from ..agent.ledgers import LedgerStore
from ..ledger.directory import ledger_dir
from .advice import of_directory
from .durations import some_time

PATHS = (("procfs", "/proc", "procfs"), ("sysfs", "/sys", "sysfs"), ("rootfs", "/", "root file system"))


class Switch(argparse.Action):
    """An option with its negation, such as `--collector.gpu` and `--no-collector.gpu`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any):
        [option] = option_strings
        super().__init__([option, f"--no-{option[2:]}"], dest, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ledger.dir",
        dest="directory",
        metavar="DIR",
        type=_given,
        default=ledger_dir(),
        help="the directory with the ranks' ledgers (default: %(default)s, from WHYIDLE_DIR)",
    )
    for name, default, what in PATHS:
        parser.add_argument(
            f"--path.{name}",
            dest=name,
            metavar="DIR",
            type=_root,
            default=default,
            help=f"where the node's {what} is (default: %(default)s)",
        )
    group = parser.add_argument_group("collectors", "Switch a collector off with --no-collector.gpu and so on.")
    group.add_argument(
        "--collector.deadline",
        dest="deadline",
        metavar="TIME",
        type=some_time,
        default="2s",
        help="how long each collector may take in a scrape (default: %(default)s)",
    )
    for entry in COLLECTORS:
        group.add_argument(
            f"--collector.{entry.name}",
            dest=f"collector_{entry.name}",
            action=Switch,
            default=True,
            help=f"read {entry.reads} (default: yes)",
        )


def collectors_of(args: argparse.Namespace, ledgers: LedgerStore) -> dict[str, Collector]:
    """The collectors that the options select."""
    names = [entry.name for entry in COLLECTORS if getattr(args, f"collector_{entry.name}")]
    return create_collectors(Options(ledgers, roots_of(args), of_directory), names)


def roots_of(args: argparse.Namespace) -> Roots:
    return Roots(args.procfs, args.sysfs, args.rootfs)


def directory_problem(directory: str) -> str | None:
    """Why the ledger directory cannot be read; None if it can. It may be missing, because the first rank creates it."""
    try:
        with os.scandir(directory):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read the ledger directory {directory}: {error.strerror}"


def _given(text: str) -> str:
    if not text:  # such as from an environment variable that is not set
        raise argparse.ArgumentTypeError("the name of the directory is empty")
    return text


def _root(text: str) -> str:
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return text.rstrip("/") or "/"
