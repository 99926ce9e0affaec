"""Writes the files that a command generates, and finds those that are not up to date."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes ``files`` (name -> text). Creates the folder if necessary. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def stale(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The names of the files that are missing or have another text."""
    return [name for name, text in files.items() if not _has(folder / name, text)]


def _has(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() == text.encode()
