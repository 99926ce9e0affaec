"""`whyidle rules`: the recording rules and alerts for Prometheus."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

GENERATED = Path(__file__).resolve().parents[1] / "alerts" / "generated"
"""What `--check` compares with where no other place is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", help="write files there instead of printing")
    parser.add_argument(
        "--format",
        choices=("prometheus", "operator"),
        default="prometheus",
        help="files for rule_files, or PrometheusRule resources (default: %(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files are not up to date")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 if ``--check`` finds a difference."""
    from ..alerts.output import files, groups, to_yaml

    texts = files(format=args.format)
    if args.check:
        return _check(args.out or GENERATED, texts)
    if args.out is None:
        whole = to_yaml(groups()) if args.format == "prometheus" else "---\n".join(texts.values())
        print(whole, end="")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (args.out / name).write_text(text)
    return 0


def _check(directory: Path, texts: dict[str, str]) -> int:
    stale = [name for name, text in texts.items() if not _has(directory / name, text)]
    for name in stale:
        print(
            f"{directory / name} differs from what is generated: run `whyidle rules --out {directory}`", file=sys.stderr
        )
    return int(bool(stale))


def _has(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text
