"""The options for the Prometheus that a command asks, and for its credentials. These come only from files and the
environment, because other users can see command lines."""

from __future__ import annotations

import argparse
import base64
import os
import urllib.parse

from ..durations import duration
from .client import NoAnswer, Prometheus

URL_VARIABLE = "WHYIDLE_PROMETHEUS"
TOKEN_VARIABLE = "WHYIDLE_PROMETHEUS_TOKEN"
BASIC_VARIABLE = "WHYIDLE_PROMETHEUS_BASIC_AUTH"
ENDED_SECONDS = 30 * 86400.0
"""How long ago a run may have ended about which a command asks."""


def add_arguments(parser: argparse.ArgumentParser, since: str) -> None:
    """``since``: the default of --since."""
    options = parser.add_argument_group("runs of other nodes")
    options.add_argument(
        "--prometheus",
        type=_url,
        metavar="URL",
        default=os.environ.get(URL_VARIABLE, ""),
        help=f"ask this Prometheus, not the ledgers in --dir (default: ${URL_VARIABLE}; '' asks the ledgers)",
    )
    options.add_argument(
        "--since", type=_time, default=since, metavar="TIME", help="how far to look back there (default: %(default)s)"
    )
    options.add_argument("--cluster", help="the run's cluster, if several clusters send to one Prometheus")
    options.add_argument(
        "--prometheus-token-file",
        dest="token_file",
        metavar="FILE",
        help=f"a bearer token to ask it with (default: ${TOKEN_VARIABLE})",
    )
    options.add_argument(
        "--prometheus-basic-auth-file",
        dest="basic_file",
        metavar="FILE",
        help=f"user:password to ask it with (default: ${BASIC_VARIABLE})",
    )
    options.add_argument("--prometheus-ca-file", dest="authority", metavar="FILE", help="CA certificates for https")
    options.add_argument(
        "--prometheus-timeout",
        dest="answer_timeout",
        type=_time,
        default="60s",
        metavar="TIME",
        help="for how long to wait for an answer (default: %(default)s)",
    )


def _time(text: str) -> float:
    """Reads a duration of at least one second, in seconds."""
    if (seconds := duration(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1s")
    return seconds


def _url(text: str) -> str:
    """Checks an address. Raises argparse.ArgumentTypeError, whose message does not contain a password."""
    if not text:
        return ""
    try:
        parts = urllib.parse.urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise argparse.ArgumentTypeError("the address of Prometheus is not valid; write http://HOST:9090") from None
    if "@" in parts.netloc:
        raise argparse.ArgumentTypeError(
            f"the address must not contain a user or a password: use --prometheus-basic-auth-file or ${BASIC_VARIABLE}"
        )
    if not known or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is not the address of a Prometheus; write http://HOST:9090")
    return text


def server(args: argparse.Namespace) -> Prometheus:
    """The Prometheus that the options name. Raises NoAnswer."""
    return Prometheus(args.prometheus, _credentials(args), args.answer_timeout, args.authority)


def _credentials(args: argparse.Namespace) -> dict[str, str]:
    token = _secret(args.token_file, TOKEN_VARIABLE)
    basic = _secret(args.basic_file, BASIC_VARIABLE)
    if args.token_file and args.basic_file:
        raise NoAnswer("give a token or a user with a password, not both")
    if token and (args.token_file or not args.basic_file):
        return {"Authorization": f"Bearer {token}"}
    if basic:
        user, colon, _ = basic.partition(":")
        if not colon or not user:
            raise NoAnswer(f"{args.basic_file or f'${BASIC_VARIABLE}'} must have the form user:password")
        return {"Authorization": f"Basic {base64.b64encode(basic.encode()).decode()}"}
    return {}


def _secret(path: str | None, variable: str) -> str:
    """The only line of a file, or without a file the environment variable. Raises NoAnswer."""
    if path is None:
        found, where = os.environ.get(variable, ""), f"${variable}"
    else:
        try:
            with open(path, encoding="utf-8") as file:
                found, where = file.read(1 << 16), path
        except (OSError, UnicodeDecodeError) as error:
            raise NoAnswer(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    found = found.strip()
    if path is not None and not found:
        raise NoAnswer(f"{path} is empty")
    if not found.isprintable():
        raise NoAnswer(f"{where} must be one line")
    return found
