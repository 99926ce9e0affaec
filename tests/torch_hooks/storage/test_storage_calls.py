"""The call in which a task is, from lines of /proc/<pid>/syscall as Linux 6.18 writes them."""

from __future__ import annotations

import platform

import pytest

from whyidle.ledger.syscalls import NAMES
from whyidle.torch_hooks.storage import calls
from whyidle.torch_hooks.storage.calls import Call, descriptor, parse

NUMBER = {name: number for number, name in NAMES.get(platform.machine(), {}).items()}
_REST = b"0x0 0x0 0x0 0x7ffd4a5c8f58 0x7f2d1b91a10c"


def line(name: str, *arguments: int) -> bytes:
    return b" ".join([str(NUMBER[name]).encode(), *(hex(one).encode() for one in arguments), _REST])


@pytest.mark.skipif(not NUMBER, reason="the numbers of this machine's system calls are not known")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", (5, 0x7F00, 1 << 20), Call(calls.READ, calls.FILE, 5, 0x7F00, 1 << 20)),
        ("pread64", (5, 0x7F00, 4096), Call(calls.READ, calls.FILE, 5, 0x7F00, 4096)),
        ("readv", (5, 0x7F00, 3), Call(calls.READ, calls.FILE, 5, 0x7F00, 0)),
        ("read", (5, 0x7F00, 1 << 40), Call(calls.READ, calls.FILE, 5, 0x7F00, 0x7FFFF000)),
        ("write", (6, 0x7F00, 77), Call(calls.WRITE, calls.FILE, 6, 0x7F00, 77)),
        ("fsync", (6, 0, 0), Call(calls.SYNC, calls.FILE, 6, 0, 0)),
        ("openat", (0xFFFFFF9C, 0x7F00, 0x80000), Call(calls.METADATA, calls.PATH_AT, 0xFFFFFF9C, 0x7F00, 0)),
        ("getdents64", (7, 0x7F00, 32768), Call(calls.METADATA, calls.FILE, 7, 0x7F00, 0)),
        ("futex", (0x7F00, 0x189, 0), Call(calls.LOCK, calls.NOTHING, 0x7F00, 0x189, 0)),
        ("nanosleep", (0x7F00, 0, 0), Call(calls.OTHER, calls.NOTHING, 0x7F00, 0, 0)),
    ],
)
def test_tells_the_call_and_its_first_arguments(name: str, arguments: tuple[int, ...], expected: Call) -> None:
    assert parse(line(name, *arguments)) == expected


@pytest.mark.parametrize("text", [b"running\n", b"", b"x 0x1 0x2 0x3", b"0 0x1", b"0 1 2 zz 3"])
def test_tells_nothing_of_a_task_that_runs_or_of_other_text(text: bytes) -> None:
    assert parse(text) is None


def test_a_task_that_is_blocked_outside_of_calls_may_be_in_a_page_fault() -> None:
    assert parse(b"-1 0x7ffd4a5c8f58 0x7f2d1b91a10c\n") == Call(calls.FAULT, calls.NOTHING, 0, 0, 0)


def test_a_descriptor_is_an_int() -> None:
    assert [descriptor(0xFFFFFFFFFFFFFF9C), descriptor(0xFFFFFF9C), descriptor(3)] == [-100, -100, 3]
