"""Finds the Pythons of this machine that whyidle supports.

python tools/pythons.py        lists them
python tools/pythons.py 3.12   prints the path of one
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

OLDEST = (3, 10)
_TELL = "import sys; print(*sys.version_info[:2], sys.implementation.name, sys.prefix == sys.base_prefix)"


def pythons() -> dict[str, Path]:
    """Version such as "3.12" -> its interpreter, sorted by version. PATH has precedence over pyenv and uv."""
    found: dict[tuple[int, int], Path] = {}
    for candidate in _candidates():
        try:
            done = subprocess.run([candidate, "-I", "-c", _TELL], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        major, minor, kind, own = done.stdout.split() if done.returncode == 0 else ("0", "0", "", "")
        # Skip the Pythons of virtual environments: their venv module would use the underlying Python anyway.
        if (int(major), int(minor)) >= OLDEST and (kind, own) == ("cpython", "True"):
            found.setdefault((int(major), int(minor)), candidate)
    return {f"{major}.{minor}": path for (major, minor), path in sorted(found.items())}


def _candidates() -> Iterator[Path]:
    for folder in os.environ["PATH"].split(os.pathsep):
        yield from sorted(Path(folder or ".").glob("python3.[0-9]*[0-9]"))
    for pyenv in _pyenvs():
        yield from sorted(pyenv.glob("versions/*/bin/python3.[0-9]*[0-9]"))
    yield from sorted(Path.home().glob(".local/share/uv/python/*/bin/python3.[0-9]*[0-9]"))


def _pyenvs() -> Iterator[Path]:
    yield Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # Its programs on PATH set PYENV_ROOT themselves, so it may be unset here, with another home.
    yield from (Path(folder).parent for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).name == "shims")


def main(words: Sequence[str]) -> int:
    found = pythons()
    if not words:
        print("".join(f"{version}\t{path}\n" for version, path in found.items()), end="")
    elif words[0] in found:
        print(found[words[0]])
    else:
        print(f"Python {words[0]} is not installed; found: {', '.join(found) or 'none'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
