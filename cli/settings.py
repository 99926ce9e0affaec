"""The settings that `whyidle rules` and `whyidle dashboards` share: one file for both."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..alerts.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a YAML file of settings; settings that are not in it keep their defaults",
    )
    parser.add_argument("--print-config", action="store_true", help="print all settings with their explanations")


def load(args: argparse.Namespace, command: str) -> Config | None:
    """The configuration that the arguments name. None, after a message on stderr, if the file is not valid."""
    from ..alerts import alerting, settings
    from ..alerts.config import DEFAULT

    if args.config is None:
        return DEFAULT
    try:
        return settings.load(args.config, frozenset(alert.name for alert in alerting.alerts(DEFAULT)))
    except settings.SettingsError as error:
        print(f"whyidle {command}: {error}", file=sys.stderr)
        return None


def show(config: Config) -> int:
    """Prints all settings. Returns exit status 0."""
    from ..alerts import settings

    print(settings.as_yaml(config), end="")
    return 0
