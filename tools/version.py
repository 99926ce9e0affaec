"""The version of whyidle. It is set in one place, `__init__.py`, and other files repeat it.

    python tools/version.py               prints it
    python tools/version.py --check       fails if a file has another version
    python tools/version.py --set 0.2.0   changes it everywhere

Package, image and chart have one version. It is X.Y.Z without a suffix: Helm and PyPI write pre-releases differently.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ("__init__.py", r'^__version__ = "(\S+)"$')
IMAGE = r"registry\.example\.com/whyidle:(\S+)"
PLACES = (
    SOURCE,
    ("helm/whyidle/Chart.yaml", r"^version: (\S+)$"),
    ("helm/whyidle/Chart.yaml", r"^appVersion: (\S+)$"),
    ("deploy/compose/compose.yaml", IMAGE),
    ("deploy/image/Dockerfile", IMAGE),
    ("docs/kubernetes.md", r"whyidle-([0-9.]+)\.tgz"),
    ("examples/job.yaml", IMAGE),
    ("examples/jobset.yaml", IMAGE),
    ("examples/pytorchjob.yaml", IMAGE),
    ("CHANGELOG.md", r"\A# Changelog\n\n## (\S+)"),
)
"""File and pattern. The group of the pattern is the version. The first section of CHANGELOG.md has this version."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="print, check or set the version of whyidle")
    parser.add_argument("--check", action="store_true", help="fail if a file has another version")
    parser.add_argument("--set", metavar="X.Y.Z", help="write this version into every file that has one")
    asked = parser.parse_args(words)
    if asked.set:
        if not re.fullmatch(r"\d+\.\d+\.\d+", asked.set):
            parser.error(f"--set {asked.set}: a version is X.Y.Z")
        write(ROOT, asked.set)
        print(
            f"Now describe {asked.set} in CHANGELOG.md, "
            "and run WHYIDLE_UPDATE_GOLDEN=1 pytest tests/helm/test_helm_chart.py"
        )
    elif asked.check:
        wrong = list(differences(ROOT))
        print("".join(f"{line}\n" for line in wrong), end="", file=sys.stderr)
        return 1 if wrong else 0
    else:
        print(current(ROOT))
    return 0


def current(root: Path) -> str:
    [(_, version)] = found(root, *SOURCE)
    return version


def found(root: Path, path: str, pattern: str) -> Iterator[tuple[int, str]]:
    """Line number and version of each match of the pattern in a file."""
    text = (root / path).read_text()
    for match in re.finditer(pattern, text, re.MULTILINE):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


def differences(root: Path) -> Iterator[str]:
    version = current(root)
    for path, pattern in PLACES:
        lines = list(found(root, path, pattern))
        if not lines:
            yield f"{path}: no version where {pattern} should match"
        yield from (f"{path}:{line}: is {there}, must be {version}" for line, there in lines if there != version)


def write(root: Path, version: str) -> None:
    """Sets the version in all files. CHANGELOG.md gets a new section, which a person must fill."""
    for path, pattern in PLACES:
        text = (root / path).read_text()
        if path == "CHANGELOG.md":
            if f"\n## {version}" not in text:
                text = text.replace("\n## ", f"\n## {version} — unreleased\n\n## ", 1)
        else:
            text = re.sub(pattern, lambda match: replaced(match, version), text, flags=re.MULTILINE)
        (root / path).write_text(text)


def replaced(match: re.Match[str], version: str) -> str:
    start, end = (place - match.start() for place in match.span(1))
    return match[0][:start] + version + match[0][end:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
