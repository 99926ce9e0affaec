"""The call in which a task is, from lines of /proc/<pid>/syscall as Linux 6.18 writes them."""

from __future__ import annotations

import platform

import pytest

from whyidle.linux import syscalls
from whyidle.linux.syscalls import NAMES, Call, awaits_pipe, descriptor, parse

NUMBER = {name: number for number, name in NAMES.get(platform.machine(), {}).items()}
_REST = b"0x0 0x0 0x0 0x7ffd4a5c8f58 0x7f2d1b91a10c"


def line(name: str, *arguments: int) -> bytes:
    return b" ".join([str(NUMBER[name]).encode(), *(hex(one).encode() for one in arguments), _REST])


@pytest.mark.skipif(not NUMBER, reason="the numbers of this machine's system calls are not known")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", (5, 0x7F00, 1 << 20), Call(syscalls.READ, syscalls.FILE, 5, 0x7F00, 1 << 20, "read")),
        ("pread64", (5, 0x7F00, 4096), Call(syscalls.READ, syscalls.FILE, 5, 0x7F00, 4096, "pread64")),
        ("readv", (5, 0x7F00, 3), Call(syscalls.READ, syscalls.FILE, 5, 0x7F00, 0, "readv")),
        ("read", (5, 0x7F00, 1 << 40), Call(syscalls.READ, syscalls.FILE, 5, 0x7F00, 0x7FFFF000, "read")),
        ("write", (6, 0x7F00, 77), Call(syscalls.WRITE, syscalls.FILE, 6, 0x7F00, 77, "write")),
        ("sendfile", (6, 5, 0), Call(syscalls.READ, syscalls.FILE, 5, 6, 0, "sendfile")),
        ("splice", (5, 0, 6), Call(syscalls.READ, syscalls.FILE, 5, 0, 0, "splice")),
        ("fsync", (6, 0, 0), Call(syscalls.SYNC, syscalls.FILE, 6, 0, 0, "fsync")),
        ("msync", (0x7F00, 4096, 4), Call(syscalls.SYNC, syscalls.ADDRESS, 0x7F00, 4096, 0, "msync")),
        ("sendto", (6, 0x7F00, 77), Call(syscalls.SEND, syscalls.FILE, 6, 0x7F00, 0, "sendto")),
        (
            "openat",
            (0xFFFFFF9C, 0x7F00, 0x80000),
            Call(syscalls.METADATA, syscalls.PATH_AT, 0xFFFFFF9C, 0x7F00, 0, "openat"),
        ),
        ("getdents64", (7, 0x7F00, 32768), Call(syscalls.METADATA, syscalls.FILE, 7, 0x7F00, 0, "getdents64")),
        ("futex", (0x7F00, 0x189, 0), Call(syscalls.LOCK, syscalls.NOTHING, 0x7F00, 0x189, 0, "futex")),
        ("nanosleep", (0x7F00, 0, 0), Call(syscalls.SLEEP, syscalls.NOTHING, 0x7F00, 0, 0, "nanosleep")),
    ],
)
def test_tells_the_call_and_its_first_arguments(name: str, arguments: tuple[int, ...], expected: Call) -> None:
    assert parse(line(name, *arguments)) == expected


@pytest.mark.parametrize("text", [b"running\n", b"", b"x 0x1 0x2 0x3", b"0 0x1", b"0 1 2 zz 3"])
def test_tells_nothing_of_a_task_that_runs_or_of_other_text(text: bytes) -> None:
    assert parse(text) is None


def test_a_task_that_is_blocked_outside_of_calls_may_be_in_a_page_fault() -> None:
    assert parse(b"-1 0x7ffd4a5c8f58 0x7f2d1b91a10c\n") == Call(syscalls.FAULT, syscalls.NOTHING, 0, 0, 0, "")


def test_a_descriptor_is_an_int() -> None:
    assert [descriptor(0xFFFFFFFFFFFFFF9C), descriptor(0xFFFFFF9C), descriptor(3)] == [-100, -100, 3]


@pytest.mark.skipif(not NUMBER, reason="the numbers of this machine's system calls are not known")
def test_tells_the_file_that_a_call_uses() -> None:
    found = [parse(line(*words)) for words in (("ioctl", 3, 0, 0), ("futex", 3, 0, 0), ("read", 0xFFFFFF9C, 0, 0))]
    assert [call.file for call in found if call is not None] == [3, -1, -1]


@pytest.mark.parametrize(
    ("wchan", "awaits"),
    [
        (b"pipe_read", True),
        (b"anon_pipe_read", True),
        (b"pipe_wait", True),
        (b"wait_for_partner", True),
        (b"request_wait_answer", False),
        (b"folio_wait_bit_common", False),
        (b"0", False),
        (b"", False),
    ],
)
def test_a_task_awaits_a_pipe_by_the_function_of_the_kernel_that_it_is_in(wchan: bytes, awaits: bool) -> None:
    assert awaits_pipe(wchan) == awaits
