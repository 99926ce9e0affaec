"""The `whyidle` command: a table of subcommands, each of which is imported only if it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from .. import __version__
from .terminal import print_anything


class Command(NamedTuple):
    """A subcommand. Its module has ``add_arguments(parser)`` and ``run(args) -> int``."""

    name: str
    module: str  # relative to this package
    help: str
    passes_on: bool = False  # what follows `--` is another program's command line


COMMANDS: tuple[Command, ...] = (
    Command("run", ".run", "run a training command with the hooks attached, without changing its code", passes_on=True),
    Command("inject", ".inject", "copy the hooks to a folder, for environments without whyidle"),
    Command("agent", ".agent", "serve this node's ranks and counters to Prometheus"),
    Command(
        "doctor", ".doctor", "show what an agent can see on this node, what it cannot see, and what to do about it"
    ),
    Command("report", ".report", "show where the time of a run went, and the verdict"),
    Command(
        "hang",
        ".hang",
        "say which rank keeps a run waiting and why, and collect what a ticket needs about it in a file",
    ),
    Command("traffic", ".traffic.command", "calculate how many bytes a training moves, and how fast its links must be"),
    Command("goodput", ".goodput", "show how much of a run was progress, and how often to save"),
    Command(
        "compare", ".compare.command", "say which of several runs is faster, by how much, and where that comes from"
    ),
    Command(
        "whatif", ".whatif", "predict how long a step of a run would take with a faster network, storage and so on"
    ),
    Command("advise", ".advise", "print the command that takes a slow node out of service, with the reason; or run it"),
    Command("bench", ".bench", "measure what a training gets: storage, network"),
    Command("dashboards", ".dashboards", "write the Grafana dashboards"),
    Command("rules", ".rules", "print the recording rules and alerts for Prometheus, or write them to files"),
    Command("demo", ".demo.command", "train a small model here, and show where its time went"),
)

EXTRAS: dict[str, str] = {
    "bcrypt": "agent",
    "prometheus_client": "agent",
    "psutil": "agent",
    "rich": "agent",
    "yaml": "agent",
    "grafanalib": "dashboards",
}
"""A module that may be missing -> the extra that brings it."""


class _Parser(argparse.ArgumentParser):
    """Complains about unknown arguments itself. argparse leaves that to the parser of `whyidle`, with its usage.

    Options may stand between the arguments of a list: `compare A --html FILE B`. argparse ends the list at an option.
    """

    complains = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        lists = [action.dest for action in self._actions if action.nargs == argparse.ONE_OR_MORE]
        if lists and not any(word.startswith("-") for word in unknown):
            getattr(found, lists[0]).extend(unknown)
            unknown = []
        if unknown and self.complains:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status. Words after `--` are passed on unchanged in ``args.rest``."""
    print_anything()
    words, rest = _split(list(sys.argv[1:] if argv is None else argv))
    try:
        args = _parse(words, rest)
        code = args.handler(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `whyidle report | head`
        _drop_output()
        return 141
    except OSError as error:  # a folder that cannot be written, a full disk
        if os.environ.get("WHYIDLE_DEBUG") == "1":
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"whyidle: {where}{error.strerror or error}", file=sys.stderr)
        if not error.filename:
            _drop_output()
        return 1
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(module)
        if extra is None:
            raise
        print(f"whyidle: this command needs {module}: pip install 'whyidle[{extra}]'", file=sys.stderr)
        return 2


def _drop_output() -> None:
    """Drops what stdout has not taken, because Python would try to write it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Cuts the words at the first `--`. The second part belongs to another program; None if there is no `--`."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parse(words: list[str], rest: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="whyidle", description="Why is my GPU idle?", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"whyidle {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        # The modules of other commands take time to import, and may need packages that are not installed.
        chosen = words[:1] == [command.name]
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            allow_abbrev=False,
        )
        # After an unknown option of `whyidle`, no command is chosen, and no command knows its arguments.
        subparser.complains = chosen
        if chosen:
            module = import_module(command.module, __package__)
            module.add_arguments(subparser)
            subparser.set_defaults(handler=module.run, rest=rest)
            if rest and not command.passes_on:
                subparser.error(f"this command takes no arguments after `--`: {' '.join(rest)}")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
