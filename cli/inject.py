"""`whyidle inject DIR`: puts the hooks into a folder, for Pythons that have no whyidle installed.

An init container does it for a training image that nobody wants to rebuild; on a cluster, a folder that all nodes
share serves as well. Only the hooks are copied, and what `whyidle.signals()` asks: the standard library is all they
need.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
STARTER = "whyidle/torch_hooks/autoload"
"""What has to be on PYTHONPATH, below the folder. The folder itself it puts last on ``sys.path``, for
``import whyidle``: first, it would hide a whole whyidle that is installed, command and all."""
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
        "folder", metavar="DIR", help="the folder to copy to; it is created, and an earlier copy in it is replaced"
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
    """The value of PYTHONPATH by which a Python finds what is in the folder; a value that it had comes behind it."""
    return str(folder / STARTER)


def inject(folder: Path) -> None:
    """Copies the hooks to ``folder/whyidle`` and the script ``run`` beside it. Raises OSError.

    Each file takes its place whole, so that processes which start meanwhile find the old one or the new one.
    """
    for source in hooks():
        _place(folder / "whyidle" / source.relative_to(PACKAGE), source.read_bytes(), 0o644)
    _place(folder / MARK, b"", 0o644)
    _place(folder / "run", (RUN % STARTER).encode(), 0o755)


def hooks() -> Iterator[Path]:
    """The files that a training process needs."""
    yield PACKAGE / "__init__.py"
    for folder in ("ledger", "torch_hooks", "verdict", "advisor"):
        yield from sorted((PACKAGE / folder).rglob("*.py"))


def _place(target: Path, content: bytes, mode: int) -> None:
    """Readable by every user, whatever the umask: the training process is seldom who copies."""
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
