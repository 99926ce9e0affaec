"""`whyidle agent`: reads the ledgers of this node and serves them to Prometheus."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from ..agent.collector import COLLECTORS
from ..torch_hooks.ledger import ledger_dir
from .durations import duration

DEFAULT_ADDRESS = "127.0.0.1:9838"
PATHS = (("procfs", "/proc", "procfs"), ("sysfs", "/sys", "sysfs"), ("rootfs", "/", "root file system"))


class Switch(argparse.Action):
    """`--collector.gpu` and `--no-collector.gpu`."""

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--web.listen-address",
        dest="address",
        metavar="HOST:PORT",
        type=_address,
        default=DEFAULT_ADDRESS,
        help="where to serve; port 0 takes a free one, :PORT listens on every interface (default: %(default)s)",
    )
    parser.add_argument(
        "--ledger.dir",
        dest="directory",
        metavar="DIR",
        default=ledger_dir(),
        help="where the ranks keep their ledgers (default: %(default)s, from WHYIDLE_DIR)",
    )
    parser.add_argument(
        "--ledger.retention",
        dest="retention",
        metavar="TIME",
        type=duration,
        default="15m",
        help="how long the series of an ended rank stay (default: %(default)s)",
    )
    parser.add_argument(
        "--ledger.delete-after",
        dest="delete_after",
        metavar="TIME",
        type=duration,
        default="24h",
        help="when to remove the ledger of an ended rank (default: %(default)s)",
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
    parser.add_argument(
        "--collector.deadline",
        dest="deadline",
        metavar="TIME",
        type=duration,
        default="2s",
        help="how long each collector may take in a scrape (default: %(default)s)",
    )
    for entry in COLLECTORS:
        parser.add_argument(
            f"--collector.{entry.name}",
            dest=f"collector_{entry.name}",
            action=Switch,
            default=True,
            help=f"read {entry.reads} (default: yes; --no-collector.{entry.name} leaves it out)",
        )
    parser.add_argument("--log.level", dest="level", choices=("debug", "info", "warn", "error"), default="info")
    parser.add_argument("--log.format", dest="format", choices=("logfmt", "json"), default="logfmt")


def run(args: argparse.Namespace) -> int:
    from ..agent.collector import Options, create_collectors
    from ..agent.exporter import Exporter
    from ..agent.files import Roots, raise_file_limit
    from ..agent.ledgers import LedgerStore
    from ..agent.log import Log
    from ..agent.server import AgentServer
    from ..agent.service import hold_signals, serve

    if problem := _directory_problem(args.directory):
        print(f"whyidle agent: {problem}", file=sys.stderr)
        return 1
    hold_signals()
    log = Log(args.level, args.format)
    ledgers = LedgerStore(args.directory, args.retention, log)
    raise_file_limit()
    names = [entry.name for entry in COLLECTORS if getattr(args, f"collector_{entry.name}")]
    options = Options(ledgers, Roots(args.procfs, args.sysfs, args.rootfs))
    exporter = Exporter(create_collectors(options, names), log, args.deadline)
    host, port = args.address
    try:
        server = AgentServer(host, port, exporter, lambda: ledgers.ready, log)
    except OSError as error:
        print(f"whyidle agent: cannot listen on {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 1
    log.info("listening", address=server.address, directory=args.directory)
    serve(server, ledgers, args.delete_after, log)
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write HOST:PORT, such as {DEFAULT_ADDRESS}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _root(text: str) -> str:
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no directory here")
    return text.rstrip("/") or "/"


def _directory_problem(directory: str) -> str | None:
    """A directory that is not there yet is fine: the first rank makes it."""
    try:
        with os.scandir(directory):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read the ledger directory {directory}: {error.strerror}"
