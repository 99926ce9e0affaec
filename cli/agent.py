"""`whyidle agent`: reads this node's ledgers and counters, and serves them to Prometheus."""

from __future__ import annotations

import argparse
import sys

from ..agent.log import FORMATS, LEVELS
from .durations import duration
from .node import add_node_arguments, collectors_of, directory_problem, roots_of

DEFAULT_ADDRESS = "127.0.0.1:9838"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--web.listen-address",
        dest="address",
        metavar="HOST:PORT",
        type=_address,
        default=DEFAULT_ADDRESS,
        help="address to listen on; port 0 selects a free port, :PORT listens on all interfaces (default: %(default)s)",
    )
    parser.add_argument(
        "--web.config.file",
        dest="web_config",
        metavar="FILE",
        help="TLS and passwords, in the format of Prometheus's exporters; the agent reads it again when it "
        "changes (default: neither)",
    )
    parser.add_argument(
        "--ledger.retention",
        dest="retention",
        metavar="TIME",
        type=duration,
        default="15m",
        help="how long to keep the series of a rank after its end (default: %(default)s)",
    )
    parser.add_argument(
        "--ledger.delete-after",
        dest="delete_after",
        metavar="TIME",
        type=duration,
        default="24h",
        help="when to remove the ledger of a rank after its end (default: %(default)s)",
    )
    parser.add_argument("--log.level", dest="level", choices=LEVELS, default="info")
    parser.add_argument("--log.format", dest="format", choices=FORMATS, default="logfmt")
    add_node_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from ..agent.exporter import Exporter
    from ..agent.files import raise_file_limit
    from ..agent.hang.page import HangPage
    from ..agent.ledgers import LedgerStore
    from ..agent.log import Log
    from ..agent.server import AgentServer
    from ..agent.service import few_arenas, hold_signals, serve
    from ..agent.web.errors import ConfigError
    from ..agent.web.file_gate import gate_of

    if problem := directory_problem(args.directory):
        print(f"whyidle agent: {problem}", file=sys.stderr)
        return 1
    few_arenas()
    hold_signals()
    raise_file_limit()
    log = Log(args.level, args.format)
    ledgers = LedgerStore(args.directory, args.retention, log, roots_of(args))
    exporter = Exporter(collectors_of(args, ledgers), log, args.deadline)
    host, port = args.address
    try:
        gate = gate_of(args.web_config, log)
        hang = HangPage(ledgers, args.procfs, lambda: exporter.scrape().decode(), args.rootfs)
        server = AgentServer(host, port, exporter, lambda: ledgers.ready, log, gate, hang)
    except ConfigError as error:
        print(f"whyidle agent: cannot use the web configuration {args.web_config}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"whyidle agent: cannot listen on {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 1
    log.info("listening", address=server.address, directory=args.directory, tls=gate.encrypted)
    serve(server, ledgers, args.delete_after, log)
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: write HOST:PORT, such as {DEFAULT_ADDRESS}")
    return host.removeprefix("[").removesuffix("]"), int(port)
