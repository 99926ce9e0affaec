"""`whyidle bench storage PATH…`: measures how fast storage serves data loading and checkpoints."""

from __future__ import annotations

import argparse
import os
import sys

from ...quantities import in_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a directory on the storage to measure")


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 where a path cannot be used."""
    for path in args.paths:
        try:
            status = os.statvfs(path)
        except OSError as error:
            print(f"whyidle bench storage: {path}: {error.strerror}", file=sys.stderr)
            return 1
        print(f"{path}: {in_bytes(status.f_bavail * status.f_frsize)} free")
    return 0
