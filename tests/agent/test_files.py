"""Reading files: which files stay open and for how long, and the reason for each kind of error."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.agent import files
from whyidle.agent.counters import Accumulator, Wrapping
from whyidle.agent.files import REASONS, KeptFiles, Unreadable, number, raise_file_limit, read, word

INVALID = Path("/sys/class/net/lo/speed")
"""The kernel returns EINVAL to every reader."""


def reason(look: Callable[[], object]) -> str:
    with pytest.raises(Unreadable) as caught:
        look()
    assert caught.value.reason in REASONS
    return caught.value.reason


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


WAYS: dict[str, Callable[[KeptFiles, str], object]] = {
    "attribute": KeptFiles.attribute,
    "number": KeptFiles.number,
    "text": KeptFiles.text,
    "read": lambda kept, path: read(path),
}


@pytest.mark.parametrize("way", WAYS)
def test_unreadable_files_have_a_reason(way: str, tmp_path: Path) -> None:
    kept, look = KeptFiles(), WAYS[way]
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_text("1")
    os.mkfifo(pipe)
    before = open_files()
    for _ in range(3):
        assert reason(lambda: look(kept, str(tmp_path / "none"))) == "missing"
        assert reason(lambda: look(kept, str(file / "below"))) == "missing"
        assert reason(lambda: look(kept, str(tmp_path / "a\0b"))) == "missing"
        assert reason(lambda: look(kept, str(tmp_path))) == "io"
        assert reason(lambda: look(kept, str(pipe))) == "io", "and it must not hang"
        if INVALID.exists():
            assert reason(lambda: look(kept, str(INVALID))) == "invalid"
    assert open_files() == before


def test_a_file_without_permission_is_denied(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("1")
    file.chmod(0)
    assert _in_a_child(lambda: reason(lambda: KeptFiles().attribute(str(file))) == "denied", uid=65534, sees=tmp_path)


def _in_a_child(look: Callable[[], bool], uid: int = 0, sees: Path | None = None) -> bool:
    """The result of ``look`` in a separate process, without root's rights if ``uid`` is given."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            for folder in (sees, *sees.parents) if sees and uid and not os.geteuid() else ():
                if not os.stat(folder).st_mode & 0o001:
                    folder.chmod(0o755)  # pytest's own directories, which no other user may enter
            if uid and not os.geteuid():
                os.setuid(uid)
            status = int(not look())
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def test_files_of_an_ended_process_are_gone() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    kept, path = KeptFiles(), f"/proc/{pid}/stat"
    assert kept.text(path).startswith(str(pid).encode())
    os.waitpid(pid, 0)
    assert reason(lambda: kept.text(path)) == "gone"
    assert reason(lambda: kept.text(path)) == "missing"


def test_a_file_is_opened_once_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "counter"
    kept = KeptFiles()
    before = open_files()
    for value in (1, 22, 3):
        file.write_text(f"{value}\n")
        assert kept.attribute(str(file)) == f"{value}\n".encode()
        assert kept.number(str(file)) == value
        assert kept.text(str(file)) == f"{value}\n".encode()
        assert open_files() == before + 1
    file.write_text("")
    assert kept.attribute(str(file)) == b""
    assert reason(lambda: kept.number(str(file))) == "empty"
    kept.drop(str(file))
    kept.drop(str(file))
    assert open_files() == before


def test_rejects_a_huge_file_at_every_read(tmp_path: Path) -> None:
    attribute, text = tmp_path / "attribute", tmp_path / "text"
    kept = KeptFiles()
    for _ in range(2):
        attribute.write_bytes(b"1" * files.ATTRIBUTE_BYTES)
        assert len(kept.attribute(str(attribute))) == files.ATTRIBUTE_BYTES
        attribute.write_bytes(b"1" * (files.ATTRIBUTE_BYTES + 1))
        assert reason(lambda: kept.attribute(str(attribute))) == "huge"
        text.write_bytes(b"1" * 200_000)
        assert len(kept.text(str(text), limit=200_000)) == 200_000
        assert reason(lambda: kept.text(str(text), limit=199_999)) == "huge"
    assert reason(lambda: read(str(text), limit=1000)) == "huge"


def test_number_of_open_files_is_bounded(tmp_path: Path) -> None:
    for name in range(10):
        (tmp_path / str(name)).write_text(f"{name}\n")
    kept = KeptFiles(most=4)
    before = open_files()
    for _ in range(3):
        assert [kept.number(str(tmp_path / str(name))) for name in range(10)] == list(range(10))
        assert open_files() == before + 4
    kept.close()
    assert open_files() == before
    assert kept.number(str(tmp_path / "1")) == 1
    del kept
    assert open_files() == before


def test_a_listing_is_read_again_when_the_directory_changes(tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    ports.mkdir()
    (ports / "b").write_text("2")
    (tmp_path / "portsb").write_text("9")
    os.utime(ports, (0, 0))
    kept = KeptFiles()
    before = open_files()
    assert kept.names(str(ports)) == ("b",)
    assert (kept.number(str(ports / "b")), kept.number(str(tmp_path / "portsb"))) == (2, 9)
    assert kept.names(str(ports)) == ("b",)
    assert open_files() == before + 2
    replacement = tmp_path / "replacement"
    replacement.write_text("3")
    replacement.rename(ports / "b")  # another file with the same name: a device was removed and has returned
    assert kept.names(str(ports)) == ("b",)
    assert open_files() == before + 1, "only what is in the directory is closed"
    assert kept.number(str(ports / "b")) == 3
    (ports / "a").write_text("1")
    assert kept.names(str(ports)) == ("a", "b")
    for path in ports.iterdir():
        path.unlink()
    ports.rmdir()
    assert reason(lambda: kept.names(str(ports))) == "missing"
    assert open_files() == before + 1
    kept.close()


def test_a_listing_is_read_again_if_the_directory_may_have_changed_twice_within_a_tick_of_the_clock(
    tmp_path: Path,
) -> None:
    (tmp_path / "b").write_text("2")
    date = time.time_ns() + 3_600_000_000_000  # does not get old while the test runs
    os.utime(tmp_path, ns=(date, date))
    kept = KeptFiles()
    assert kept.names(str(tmp_path)) == ("b",)
    (tmp_path / "a").write_text("1")
    os.utime(tmp_path, ns=(date, date))
    assert kept.names(str(tmp_path)) == ("a", "b")
    kept.close()


def test_a_listing_is_read_again_after_a_while_despite_an_old_mtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LISTING_SECONDS", -1.0)
    (tmp_path / "b").write_text("2")
    kept = KeptFiles()
    assert kept.names(str(tmp_path)) == ("b",)
    date = os.stat(tmp_path).st_mtime_ns
    kept.number(str(tmp_path / "b"))
    before = open_files()
    (tmp_path / "a").write_text("1")
    os.utime(tmp_path, ns=(date, date))
    assert kept.names(str(tmp_path)) == ("a", "b")
    assert open_files() == before - 1
    kept.close()


NUMBERS: tuple[tuple[bytes, int | str], ...] = (
    *((b"0", 0), (b"18446744073709551615\n", 2**64 - 1), (b" 7 \n", 7), (b"007", 7)),
    *((b"", "empty"), (b"\n", "empty"), (b"N/A (no PMA)\n", "unsupported"), (b"N/A", "unsupported")),
    *((data, "garbage") for data in (b"18446744073709551616", b"-1", b"0x10", b"1.5", b"1 2", b"1\0", b"\xb2", b"1_0")),
    (b"9" * 4000, "garbage"),
)


def test_reads_numbers(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    for data, value in NUMBERS:
        Path(path).write_bytes(data)
        kept = KeptFiles()
        for look in (lambda data=data: number(data), *[lambda kept=kept: kept.number(path)] * 2):  # opened, and kept
            assert (look() if isinstance(value, int) else reason(look)) == value
    assert reason(lambda: number(b"9" * 100_000)) == "garbage"


@given(st.binary(max_size=40) | st.integers(-5, 2**65).map(lambda value: str(value).encode()))
def test_any_content_is_a_number_or_a_reason(data: bytes) -> None:
    try:
        assert 0 <= number(data) < 2**64
    except Unreadable as error:
        found = error.reason
    else:
        found = "garbage"
        assert data.strip().isdigit()
    assert found in ("empty", "unsupported", "garbage")


@given(st.binary(max_size=300))
def test_any_content_is_a_word_or_a_reason(data: bytes) -> None:
    try:
        line = word(data)
    except Unreadable as error:
        line, found = "x", error.reason
        assert found in ("empty", "unsupported", "garbage")
    assert line.isprintable()
    assert 0 < len(line) <= 256


def test_reads_words() -> None:
    assert word(b"4: ACTIVE \n\0") == "4: ACTIVE"
    assert word("Größe".encode()) == "Größe"
    assert reason(lambda: word(b"\0\n")) == "empty"
    assert reason(lambda: word(b"N/A\n")) == "unsupported"
    assert reason(lambda: word(b"\xff")) == "garbage"
    assert reason(lambda: word(b"a\nb")) == "garbage"
    assert reason(lambda: word(b"a" * 257)) == "garbage"


def test_raises_the_limit_of_open_files_to_the_hard_limit() -> None:
    def look() -> bool:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        raise_file_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 4 * files.KEPT_FILES), hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        raise_file_limit()
        return raised and resource.getrlimit(resource.RLIMIT_NOFILE) == (64, 64)

    assert _in_a_child(look)


# -- counters

GROWTH = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50)


@given(st.integers(0, 2**32 - 1), GROWTH)
def test_a_32_bit_counter_continues_after_wraps(start: int, growth: list[int]) -> None:
    wrapping: Wrapping[str] = Wrapping()
    true = start
    first = wrapping.value("a", start)
    for step in growth:
        true += step
        assert wrapping.value("a", true % 2**32) - first == true - start


def test_a_reset_counter_is_exported_unchanged() -> None:
    wrapping: Wrapping[str] = Wrapping()
    assert [wrapping.value("a", raw) for raw in (2**32 - 1, 5)] == [2**32 - 1, 2**32 + 5]
    assert wrapping.value("a", 3) == 3, "a fall within the lower half is a reset"
    assert [wrapping.value("b", raw) for raw in (2**40, 7)] == [2**40, 7], "a counter of 64 bits does not wrap here"
    wrapping.keep({"b"})
    assert wrapping.value("a", 1) == 1


def test_sums_only_grow() -> None:
    sums: Accumulator[str] = Accumulator()
    assert sums.get("a") is None
    assert (sums.add("a", 0), sums.add("a", 0.5), sums.add("b", 1)) == (0, 0.5, 1)
    with pytest.raises(ValueError, match="a counter cannot decrease"):
        sums.add("a", -0.1)
    assert sums.items() == [("a", 0.5), ("b", 1)]
    sums.keep(["b", "c"])
    assert (sums.get("a"), sums.get("b")) == (None, 1)
