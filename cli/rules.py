"""`whyidle rules`: the recording rules and alerts for Prometheus."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import settings
from .generated import stale, write

GENERATED = Path(__file__).resolve().parents[1] / "alerts" / "generated"
"""The folder that `--check` compares with by default. The chart takes its rules and their settings from there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    settings.add_arguments(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the directory to write files to, instead of printing them"
    )
    parser.add_argument(
        "--format",
        choices=("prometheus", "operator"),
        default="prometheus",
        help="prometheus: files for rule_files; operator: PrometheusRule resources (default: %(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files are not up to date")


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if ``--check`` finds a difference; 2 if the settings are not valid."""
    from ..alerts import chart
    from ..alerts.output import files, groups, to_yaml

    config = settings.load(args, "rules")
    if config is None:
        return 2
    if args.print_config:
        return settings.show(config)
    texts = files(config, args.format)
    if (args.out or GENERATED).resolve() == GENERATED:
        texts |= chart.files(config)
    if args.check:
        return _check(args.out or GENERATED, texts)
    if args.out is None:
        whole = to_yaml(groups(config), config=config) if args.format == "prometheus" else _documents(texts)
        print(whole, end="")
        return 0
    write(args.out, texts)
    return 0


def _documents(texts: dict[str, str]) -> str:
    return "---\n".join(text for name, text in texts.items() if name.endswith(".yaml"))


def _check(directory: Path, texts: dict[str, str]) -> int:
    wrong = stale(directory, texts)
    for name in wrong:
        print(
            f"{directory / name} differs from what is generated: run `whyidle rules --out {directory}`", file=sys.stderr
        )
    return 1 if wrong else 0
