"""`whyidle dashboards`: the Grafana dashboards, as files to import or as ConfigMaps for Grafana's sidecar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import settings
from .generated import stale, write

COMMITTED = Path(__file__).resolve().parents[1] / "dashboards" / "generated"
"""The folder that `--check` compares with by default."""
OF_CHART = COMMITTED.parent / "chart"
"""The dashboards of the chart. They are in a separate folder, because Grafana reads every file in a folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    settings.add_arguments(parser)
    parser.add_argument("--out", metavar="DIR", type=Path, help="the directory to write to, one file per dashboard")
    parser.add_argument("--configmaps", action="store_true", help="write ConfigMaps for Grafana's sidecar, not JSON")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files are not up to date")


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if ``--check`` finds a difference; 2 if the settings are not valid."""
    config = settings.load(args, "dashboards")
    if config is None:
        return 2
    if args.print_config:
        return settings.show(config)
    from ..dashboards import output

    if wrong := output.unfit(config):
        print(f"whyidle dashboards: {args.config}: {wrong}", file=sys.stderr)
        return 2
    if args.out is None and not args.check:
        maps = output.config_maps(config).values() if args.configmaps else ()
        print("---\n".join(maps) or _listed(output.rendered(config)), end="")
        return 0
    files = output.config_maps(config) if args.configmaps else output.files(config)
    folder = args.out or COMMITTED
    every = {folder: files, **({OF_CHART: output.chart_files()} if folder.resolve() == COMMITTED else {})}
    if args.check:
        return max(_check(where, texts) for where, texts in every.items())
    for where, texts in every.items():
        write(where, texts)
    print(f"{len(files)} dashboards in {args.out}")
    return 0


def _listed(dashboards: dict[str, dict[str, Any]]) -> str:
    return "".join(f"{uid}: {dashboard['description']}\n" for uid, dashboard in dashboards.items())


def _check(folder: Path, files: dict[str, str]) -> int:
    """Prints which files differ, are missing, or should not be in the folder. Returns the exit status."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wrong = sorted({*(there - files.keys()), *stale(folder, files)})
    for name in wrong:
        print(f"{folder / name} differs from what `whyidle dashboards` writes", file=sys.stderr)
    return 1 if wrong else 0
