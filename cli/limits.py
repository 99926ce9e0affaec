"""The options of commands that judge a run: how long it must be."""

from __future__ import annotations

import argparse
import math
import sys

from ..verdict.enough import VARIABLES, BadLimit, Limits, limits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = Limits()
    about = "a run must have {} for a verdict and advice ({}; default: {})"
    parser.add_argument(
        "--least-steps",
        type=_steps,
        metavar="N",
        help=about.format("this many steps", f"${VARIABLES['steps']}", known.steps),
    )
    parser.add_argument(
        "--least-seconds",
        type=_number,
        metavar="S",
        help=about.format("trained for this long", f"${VARIABLES['seconds']}", f"{known.seconds:g}"),
    )
    parser.add_argument(
        "--most-spread",
        type=_number,
        metavar="SHARE",
        help="the largest standard error of a share of its time, from 0 to 1, with which a run is judged "
        f"(${VARIABLES['spread']}; default: {known.spread:g})",
    )


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0")
    return number


def _steps(text: str) -> int:
    number = _number(text)
    if number == math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of steps")
    return math.ceil(number)


def of(command: str, args: argparse.Namespace) -> Limits | None:
    """The limits of the options, then of the environment. None, after a message on stderr, if these are not valid."""
    try:
        set_already = limits()
    except BadLimit as error:
        print(f"whyidle {command}: {error}", file=sys.stderr)
        return None

    def either(given: float | None, otherwise: float) -> float:
        return otherwise if given is None else given

    return Limits(
        set_already.steps if args.least_steps is None else args.least_steps,
        either(args.least_seconds, set_already.seconds),
        either(args.most_spread, set_already.spread),
    )
