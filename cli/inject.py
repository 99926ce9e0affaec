"""`whyidle inject DIR`: copies the hooks to a folder, for Python environments without whyidle.

An init container does this for a training image that should not be rebuilt. On a cluster, a folder that all nodes share
works as well. Only the hooks, and the modules that `whyidle.signals()` needs, are copied. They need nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
STARTER = "whyidle/torch_hooks/autoload"
"""The directory below the folder that must be on PYTHONPATH. Its code appends the folder to ``sys.path`` for
``import whyidle``. If the folder came first, it would hide a complete installation of whyidle."""
MARK = f"{STARTER}/injected"

RUN = """\
#!/bin/sh
# Becomes a command, with whyidle's hooks in every Python below it, as `whyidle run -- CMD` does where it is installed.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exec "$@"
if [ "${WHYIDLE:-}" != 0 ]; then
    WHYIDLE=1
    PYTHONPATH=$here/%s${PYTHONPATH:+:$PYTHONPATH}
    export WHYIDLE PYTHONPATH
fi
exec "$@"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", help="the directory to copy to; it is created, and an earlier copy in it is replaced"
    )
    parser.add_argument(
        "--never-fail",
        action="store_true",
        help="exit with 0 even if copying fails, so that a pod trains without the hooks instead of not at all",
    )


def run(args: argparse.Namespace) -> int:
    folder = Path(os.path.abspath(args.folder))
    try:
        inject(folder)
    except OSError as error:
        print(f"whyidle inject: {error.filename or folder}: {error.strerror or error}", file=sys.stderr)
        return 0 if args.never_fail else 1
    print(f"WHYIDLE=1 PYTHONPATH={python_path(folder)}")
    return 0


def python_path(folder: Path) -> str:
    """The entry of PYTHONPATH that makes a Python load the hooks from the folder. It comes before existing entries."""
    return str(folder / STARTER)


def inject(folder: Path) -> None:
    """Copies the hooks to ``folder/whyidle`` and the script ``run`` beside it. Raises OSError.

    Each file is replaced atomically, so that processes that start meanwhile find either the old or the new one.
    """
    for source in hooks():
        _place(folder / "whyidle" / source.relative_to(PACKAGE), source.read_bytes(), 0o644)
    _place(folder / MARK, b"", 0o644)
    _place(folder / "run", (RUN % STARTER).encode(), 0o755)


def hooks() -> Iterator[Path]:
    """The files that a training process needs."""
    yield PACKAGE / "__init__.py"
    for folder in ("linux", "ledger", "torch_hooks", "verdict", "advisor"):
        yield from sorted((PACKAGE / folder).rglob("*.py"))


def _place(target: Path, content: bytes, mode: int) -> None:
    """Writes a file that every user can read, whatever the umask, because the training often has another user."""
    missing = [parent for parent in (target.parent, *target.parent.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        parent.chmod(0o755)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.chmod(mode)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
