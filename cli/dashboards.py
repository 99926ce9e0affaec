"""`whyidle dashboards`: the Grafana dashboards, as files to import or as ConfigMaps for Grafana's sidecar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .generated import stale, write

COMMITTED = Path(__file__).resolve().parents[1] / "dashboards" / "generated"
"""What `--check` compares with where no other place is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", type=Path, help="write one file per dashboard there")
    parser.add_argument("--configmaps", action="store_true", help="as ConfigMaps for Grafana's sidecar, not as JSON")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files are not up to date")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 if a check found a difference."""
    from ..dashboards import output

    files = output.config_maps() if args.configmaps else output.files()
    if args.check:
        return _check(args.out or COMMITTED, files)
    if args.out is None:
        print("---\n".join(files.values()) if args.configmaps else _listed(output.rendered()), end="")
        return 0
    write(args.out, files)
    print(f"{len(files)} dashboards in {args.out}")
    return 0


def _listed(dashboards: dict[str, dict[str, Any]]) -> str:
    return "".join(f"{uid}: {dashboard['description']}\n" for uid, dashboard in dashboards.items())


def _check(folder: Path, files: dict[str, str]) -> int:
    """Says which files differ, are missing, or are there and should not be."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wrong = sorted({*(there - files.keys()), *stale(folder, files)})
    for name in wrong:
        print(f"{folder / name} is not what `whyidle dashboards` writes", file=sys.stderr)
    return 1 if wrong else 0
