"""Fetches programs of another Debian release into a folder, for tests with another version of them. Installs nothing.

    python tools/packages.py FOLDER RELEASE PACKAGE ...

RELEASE is a suite such as bookworm, trixie or sid. A package whose name ends in `?` is left out if the release does not
have it: older releases have its programs in another package. apt-get downloads the packages from the mirror that this
machine uses. Its lists, its cache and its sources are in FOLDER. The last line on stdout is the folder of the programs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
OPTIONAL = "?"


class Failed(Exception):
    """The message says what is missing and why."""


def main(words: Sequence[str]) -> int:
    if len(words) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, release, *packages = words
    try:
        print(programs(Path(folder).absolute(), release, packages))
    except Failed as error:
        print(f"packages: {error}", file=sys.stderr)
        return 1
    return 0


def programs(folder: Path, release: str, packages: Sequence[str]) -> Path:
    """The folder with the programs of the packages. They are fetched again only if the release has newer ones."""
    apt = Apt(folder / release, release)
    wanted: list[str] = []
    for package in packages:
        name = package.removesuffix(OPTIONAL)
        version = apt.version(name)
        if version:
            wanted.append(f"{name}={version}")
        elif name == package:
            raise Failed(f"Debian {release} has no package {name}")
    root, stamp = folder / release / "root", folder / release / "fetched"
    if not (stamp.is_file() and stamp.read_text().split() == wanted):
        stamp.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        apt.unpack(wanted, root)
        stamp.write_text("\n".join(wanted))
    print(f"Debian {release}: {', '.join(wanted).replace('=', ' ')}", file=sys.stderr)
    return root / "usr" / "bin"


class Apt:
    """apt-get for one release, with lists and a cache below ``folder``."""

    def __init__(self, folder: Path, release: str):
        self.folder, self.release = folder, release
        for path in ("state/lists/partial", "cache/archives/partial"):
            (folder / path).mkdir(parents=True, exist_ok=True)
        signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
        (folder / "sources.list").write_text(f"deb {signed}{mirror()} {release} main\n")
        self.options = [
            *("-o", f"Dir::State={folder / 'state'}", "-o", "Dir::State::status=/dev/null"),
            *("-o", f"Dir::Cache={folder / 'cache'}", "-o", f"Dir::Etc::sourcelist={folder / 'sources.list'}"),
            *("-o", "Dir::Etc::sourceparts=-", "-o", "Dir::Etc::preferences=-", "-o", "Dir::Etc::preferencesparts=-"),
            *("-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=1"),
        ]
        self._do("apt-get", "-qq", "update", "--error-on=any")

    def version(self, package: str) -> str:
        """The version in the release; empty if it has no such package."""
        found = re.search(r"Candidate: (\S+)", self._do("apt-cache", "policy", package))
        return "" if found is None or found[1] == "(none)" else found[1]

    def unpack(self, packages: Sequence[str], into: Path) -> None:
        """Downloads packages and unpacks them into a folder."""
        downloads = self.folder / "downloads"
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir()
        self._do("apt-get", "-qq", "download", *packages, cwd=downloads)
        for package in sorted(downloads.glob("*.deb")):
            _do(["dpkg-deb", "-x", str(package), str(into)])
        shutil.rmtree(downloads)

    def _do(self, command: str, *words: str, cwd: Path | None = None) -> str:
        return _do([command, *self.options, *words], cwd, f"Debian {self.release} cannot be read")


def mirror() -> str:
    """The mirror of Debian that this machine's own sources name."""
    known = _do(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"])
    named = [line.split("|") for line in known.splitlines()]
    # Before the first `apt-get update`, origins are not known, only addresses.
    own = [uri for origin, label, uri in named if (origin, label) == ("Debian", "Debian")]
    like = [uri for _, _, uri in named if uri.rstrip("/").endswith("/debian")]
    return next(iter([*own, *like, MIRROR])).rstrip("/")


def _do(words: Sequence[str], cwd: Path | None = None, failed: str = "") -> str:
    try:
        done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Failed(f"needs {words[0]}, which only Debian and its relatives have") from None
    if done.returncode:
        raise Failed(f"{failed or words[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
