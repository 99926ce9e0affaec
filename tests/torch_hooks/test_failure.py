"""The exception that ended a rank: its type, what was used up, and the line. Never its message."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from whyidle.ledger.failures import Failure, failure_of
from whyidle.torch_hooks.failure import described

TORCH_SHM = "unable to write to file </torch_7_1_0>: No space left on device (28)"
TORCH_FILES = "unable to open shared memory object </torch_7_1_0> in read-write mode: Too many open files (24)"
TORCH_CPU = (
    "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
    " bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "torch.OutOfMemoryError",
            "gpu-memory",
        ),
        (RuntimeError("CUDA error: out of memory"), "RuntimeError", "gpu-memory"),
        (RuntimeError(TORCH_SHM), "RuntimeError", "shm"),
        (RuntimeError("DataLoader worker (pid 7) is killed. Workers are out of shared memory."), "RuntimeError", "shm"),
        (RuntimeError(TORCH_FILES), "RuntimeError", "files"),
        (RuntimeError("received 0 items of ancdata"), "RuntimeError", "files"),
        (RuntimeError(TORCH_CPU), "RuntimeError", "memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/secret"), "OSError", "files"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/secret"), "OSError", "space"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/secret"), "OSError", "shm"),
        (MemoryError(), "MemoryError", "memory"),
        (ValueError("secret: Too many open files"), "ValueError", ""),
        (subprocess.TimeoutExpired("secret", 1), "subprocess.TimeoutExpired", ""),
    ],
)
def test_the_type_and_what_was_used_up(error: BaseException, kind: str, reason: str) -> None:
    text = described(error, with_place=True)
    assert failure_of(text) == Failure(kind, reason, "")
    assert "secret" not in text


def test_the_line_is_the_innermost_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text("import json\n\ndef load(text):\n    return json.loads(text)\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = __import__("own")
    with pytest.raises(ValueError, match="Expecting") as raised:
        own.load("secret")
    assert failure_of(described(raised.value, True)) == Failure("json.JSONDecodeError", "", "own.py:4 load")
    assert failure_of(described(raised.value, False)) == Failure("json.JSONDecodeError", "", "")


def test_the_line_of_an_exception_in_a_data_worker_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "class Data:",
        "    def __len__(self): return 4",
        "    def __getitem__(self, at):",
        "        return {}['secret']",
    )
    (tmp_path / "samples.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    loader = torch.utils.data.DataLoader(__import__("samples").Data(), num_workers=1)
    with pytest.raises(KeyError) as raised:
        next(iter(loader))
    assert failure_of(described(raised.value, True)) == Failure("KeyError", "", "samples.py:4 __getitem__")
    message = '  File "/home/user/secret.py", line 7, in secret'
    assert "secret" not in described(ValueError(message), True)


def test_an_exit_in_a_handler_counts_by_what_was_handled() -> None:
    def fails() -> None:
        try:
            raise KeyError("secret")
        except KeyError:
            sys.exit(1)

    with pytest.raises(SystemExit) as raised:
        fails()
    assert described(raised.value, False) == "KeyError - -"
    assert described(SystemExit(1), True) == described(None, True) == ""


def test_an_exception_without_a_text_is_left_alone() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert described(Mute(), True) == ""


@pytest.mark.parametrize(
    ("before", "reason"),
    [(OSError(errno.ENOSPC, "x"), "space"), (RuntimeError("iostream error"), "write"), (None, "write")],
)
def test_a_save_that_could_not_be_written_has_the_reason_of_the_exception_before(
    before: Exception | None, reason: str
) -> None:
    """torch's own text is the same for each reason."""
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
    error.__context__ = before
    assert failure_of(described(error, False)) == Failure("RuntimeError", reason, "")
    other = ValueError("x")
    other.__context__ = before
    assert failure_of(described(other, False)) == Failure("ValueError", "", "")


@pytest.mark.parametrize("text", ["", "KeyError", "KeyError -", "KeyError secret -"])
def test_ignores_other_texts(text: str) -> None:
    assert failure_of(text) is None
