"""The text of benchmarks/study.py: the source of Python's own standard library, as shards of tokens."""

from __future__ import annotations

import os
import sysconfig
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import torch
from study_model import CONTEXT
from torch import Tensor
from torch.utils.data import Dataset

SHARDS = 16
SHARD_TOKENS = 1 << 19
TOKEN_BYTES = 2
"""Tokens are stored as 16-bit numbers, as usual for larger vocabularies."""
_LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "idlelib"}


class TooLittleText(RuntimeError):
    """The message says what is missing."""


def standard_library() -> Iterator[bytes]:
    """The source files of this Python's standard library, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not _LEFT_OUT & set(path.relative_to(root).parts):
            yield path.read_bytes()


def write_shards(folder: Path, texts: Iterator[bytes], shards: int = SHARDS) -> None:
    """Writes this many shards of SHARD_TOKENS tokens, one for each byte of text. Raises TooLittleText."""
    folder.mkdir(parents=True)
    left = bytearray()
    for number in range(shards):
        while len(left) < SHARD_TOKENS:
            text = next(texts, None)
            if text is None:
                raise TooLittleText(
                    f"needs {shards * SHARD_TOKENS} bytes of Python's own source files: there are fewer"
                )
            left += text
        tokens = array("H", iter(left[:SHARD_TOKENS]))
        (folder / f"{number:03}.tokens").write_bytes(tokens.tobytes())
        del left[:SHARD_TOKENS]


class Windows(Dataset[tuple[Tensor, float]]):
    """Windows of CONTEXT + 1 tokens, and the seconds that reading one took. Each is read without the page cache."""

    def __init__(self, folder: Path):
        self.files = sorted(folder.iterdir())
        self.windows = (self.files[0].stat().st_size // TOKEN_BYTES - 1) // CONTEXT
        """In each file."""
        self.opened: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.files) * self.windows

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        began = time.monotonic()
        number, window = divmod(index, self.windows)
        if number not in self.opened:
            self.opened[number] = os.open(self.files[number], os.O_RDONLY)
        file = self.opened[number]
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        read = os.pread(file, (CONTEXT + 1) * TOKEN_BYTES, window * CONTEXT * TOKEN_BYTES)
        seconds = time.monotonic() - began
        return torch.frombuffer(bytearray(read), dtype=torch.uint16).long(), seconds
