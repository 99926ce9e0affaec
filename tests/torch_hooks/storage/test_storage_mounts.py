"""The mounts of this process, as descriptors, paths and mapped files name them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_ledgers import until

from whyidle.ledger.mounts import MOUNTS
from whyidle.linux.mountinfo import Mount
from whyidle.linux.syscalls import ADDRESS, FILE, READ, SYNC, WRITE, Call
from whyidle.torch_hooks import proc
from whyidle.torch_hooks.storage.mounts import Mounts, store
from whyidle.torch_hooks.storage.readers import Finder, Place, Reader, Seen

DISK = Mount("/mnt/data", "ext4", "/dev/sdb1", "8:17")


@pytest.fixture
def labels() -> dict[str, str]:
    return {}


@pytest.fixture
def mounts(labels: dict[str, str]) -> Mounts:
    return Mounts(labels.__setitem__)


def test_an_open_file_is_at_its_mount_and_pipes_and_sockets_are_at_none(mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ends = os.pipe()
    with open(tmp_path / "file") as file, socket.socket() as connection:
        found, path = mounts.of_descriptor("/proc/self", file.fileno())
        assert found is not None
        assert os.stat(found.point).st_dev == os.stat(tmp_path).st_dev
        assert path == str(tmp_path / "file")
        for number in (*ends, connection.fileno(), 4000):
            assert mounts.of_descriptor("/proc/self", number) == (None, "")
    for end in ends:
        os.close(end)


def test_a_copy_from_one_mount_to_another_is_a_guess_and_one_to_a_pipe_says_nothing(
    mounts: Mounts, tmp_path: Path
) -> None:
    ends = os.pipe()
    with open(tmp_path / "from", "w") as source, open(tmp_path / "to", "w") as beside, open("/proc/self/stat") as other:
        mount, path = mounts.of_descriptor("/proc/self", source.fileno())
        for number, expected in (
            (beside.fileno(), Place(mount, path)),
            (other.fileno(), Place(mount, path, True)),
            (ends[1], Place()),
        ):
            call = Call(READ, FILE, source.fileno(), number, 0, "sendfile")
            assert Finder(mounts)._place(Reader("/proc/self", "/proc/self"), call) == expected
    for end in ends:
        os.close(end)


def test_a_path_is_followed_through_symbolic_links_that_the_kernel_has_in_its_caches(
    mounts: Mounts, tmp_path: Path
) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = tmp_path / "link" / "deep" / "unknown" / "file"
    (tmp_path / "link" / "deep").stat()
    fd = proc.cached_directory(os.fsencode(tmp_path / "link" / "deep"))
    if fd < 0:
        pytest.skip("this kernel does not open a directory by its caches alone")
    os.close(fd)
    mount, real = mounts.of_path(str(path))
    assert real == str(tmp_path / "real" / "deep" / "unknown" / "file")
    assert mount is not None
    assert os.stat(mount.point).st_dev == os.stat(tmp_path).st_dev


def test_mounts_that_are_not_storage_have_no_place(mounts: Mounts, labels: dict[str, str]) -> None:
    mount, path = mounts.of_path("/proc/self/status")
    assert mount is not None
    assert mounts.slot(mount, path) == -1
    assert labels == {}


def test_names_the_first_directory_only_while_all_files_are_in_it(mounts: Mounts, labels: dict[str, str]) -> None:
    assert mounts.slot(DISK, "/mnt/data/train/a/1.jpg") == 0
    assert mounts.slot(DISK, "/mnt/data/train/b/2.jpg") == 0
    assert labels == {"mount0": "/mnt/data train ext4 /dev/sdb1"}
    assert mounts.slot(DISK, "") == 0
    assert labels == {"mount0": "/mnt/data train ext4 /dev/sdb1"}
    assert mounts.slot(DISK, "/mnt/data/test/3.jpg") == 0
    assert mounts.slot(DISK, "/mnt/data/train/a/1.jpg") == 0
    assert labels == {"mount0": "/mnt/data - ext4 /dev/sdb1"}


def test_a_file_name_is_never_written(mounts: Mounts, labels: dict[str, str]) -> None:
    mounts.slot(DISK, "/mnt/data/secret.tar")
    mounts.slot(store("10.0.0.7:9000"), "")
    assert labels == {"mount0": "/mnt/data - ext4 /dev/sdb1", "mount1": "10.0.0.7:9000 - tcp -"}


def test_names_of_files_are_written_if_they_are_allowed(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYIDLE_FILES", "1")
    mounts = Mounts(labels.__setitem__)
    for path, known in (
        ("train/a/one.tar", "train/a/one.tar"),
        ("train/a/one.tar (deleted)", "train/a/one.tar"),
        ("train/a/two.tar", "train/a"),
        ("train/ab/1", "train"),
        ("test/1", "-"),
        ("train/a/one.tar", "-"),
    ):
        assert mounts.slot(DISK, f"/mnt/data/{path}") == 0
        assert labels == {"mount0": f"/mnt/data {known} ext4 /dev/sdb1"}


def test_a_long_label_keeps_its_start(mounts: Mounts, labels: dict[str, str]) -> None:
    mounts.slot(DISK._replace(point="/" + "ü" * 80), "")
    assert labels["mount0"].startswith("/ü")
    assert len(labels["mount0"].encode()) <= 112


def test_a_long_path_leaves_room_for_the_type_and_the_source(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYIDLE_FILES", "1")
    Mounts(labels.__setitem__).slot(DISK, f"/mnt/data/train/{'ü' * 20}/{'x' * 60}")
    assert labels["mount0"] == f"/mnt/data train/{'ü' * 20} ext4 /dev/sdb1"


def test_other_mounts_than_the_first_have_no_place(mounts: Mounts) -> None:
    found = [mounts.slot(DISK._replace(point=f"/mnt/{number}"), "") for number in range(MOUNTS + 1)]
    assert found == [*range(MOUNTS), -1]


def test_mapped_files_are_at_a_mount_only_if_nearly_all_of_them_are() -> None:
    mounts = Mounts(lambda *_: None)
    other = Mount("/", "ext4", "/dev/sda1", "8:1")
    mounts._known = {1: other, 2: DISK}
    mounts._read_ns = 1 << 62
    assert mounts.mapped({"/mnt/data/a": 100, "/mnt/data/b": 200, "/etc/c": 20}) == (DISK, "/mnt/data/b")
    assert mounts.mapped({"/mnt/data/a": 100, "/home/b": 50}) == (None, "")
    assert mounts.mapped({}) == (None, "")


# -- servers, and files that a mapping writes


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that never reads what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def call_of(work: Callable[[socket.socket], object], server: socket.socket, finder: Finder, **of: bool) -> Seen | None:
    """What a look finds of a thread that is blocked in this call on a connection to a server."""
    with socket.create_connection(server.getsockname()) as connection:

        def works() -> None:
            with contextlib.suppress(OSError):
                work(connection)

        thread = threading.Thread(target=works, daemon=True)
        thread.start()
        folder = f"/proc/self/task/{thread.native_id}"
        calls = ("sendto", "sendmsg", "write", "writev", "poll", "ppoll", "recvfrom", "epoll_wait", "epoll_pwait")
        reader = Reader(folder, "/proc/self")
        until(lambda: (call := reader.call()) is not None and call.name in calls)
        of_files = None if not of else lambda kind: of["writes"] and kind == WRITE
        seen = until(lambda: finder.look(reader, of_files)[1])  # it may run for a moment
        connection.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()
    return seen


def with_timeout(connection: socket.socket) -> None:
    connection.settimeout(60)
    connection.sendall(bytes(1 << 24))


def in_a_loop(connection: socket.socket) -> None:
    with selectors.EpollSelector() as selector:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection.send(bytes(1 << 20))
        selector.select()


SENDS: dict[str, Callable[[socket.socket], object]] = {
    "send": lambda connection: connection.sendall(bytes(1 << 24)),
    "sendmsg": lambda connection: connection.sendmsg([bytes(1 << 24)]),
    "write": lambda connection: os.write(connection.fileno(), bytes(1 << 24)),
    "writev": lambda connection: os.writev(connection.fileno(), [bytes(1 << 24)]),
    "poll": with_timeout,
    "epoll": in_a_loop,
}


@pytest.mark.parametrize("way", SENDS)
def test_a_thread_that_sends_is_blocked_at_the_server(way: str, mounts: Mounts, server: socket.socket) -> None:
    assert call_of(SENDS[way], server, Finder(mounts)) == Seen(0, WRITE)
    assert mounts.used[0].mount == store("127.0.0.1:{1}".format(*server.getsockname()))


def test_a_thread_that_waits_for_an_answer_reads(mounts: Mounts, server: socket.socket) -> None:
    def waits(connection: socket.socket) -> None:
        connection.settimeout(60)
        connection.recv(1)

    assert call_of(waits, server, Finder(mounts)) == Seen(0, READ)
    assert call_of(lambda connection: connection.recv(1), server, Finder(mounts)) == Seen(0, READ)


def test_who_asks_for_changes_alone_asks_for_all_of_them(mounts: Mounts, server: socket.socket) -> None:
    """Loops of events do so for each of their connections, also of those from which they only read."""

    def waits(connection: socket.socket) -> None:
        changes = select.epoll()
        changes.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        changes.poll()  # it may write
        changes.poll(60)

    assert call_of(waits, server, Finder(mounts)) == Seen(0, READ)


def test_a_server_that_is_not_storage_has_no_place(mounts: Mounts, server: socket.socket) -> None:
    port = server.getsockname()[1]
    for finder, of in ((Finder(mounts), {"writes": False}), (Finder(mounts, lambda: port), {"writes": True})):
        seen = call_of(SENDS["send"], server, finder, **of)
        assert seen is not None
        assert seen.slot == -1
    assert mounts.used == []


def test_a_mapping_that_is_written_names_its_file(mounts: Mounts, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(8192))
    finder, reader = Finder(mounts), Reader("/proc/self", "/proc/self")
    with contextlib.ExitStack() as stack:
        for name in "ab":
            file = stack.enter_context(open(tmp_path / name, "r+b"))
            mapped = stack.enter_context(mmap.mmap(file.fileno(), 8192))
            pin = ctypes.c_char.from_buffer(mapped, 4096)
            call = Call(SYNC, ADDRESS, ctypes.addressof(pin), 4096, 0, "msync")
            del pin
            found = finder._place(reader, call)
            assert found.mount is not None
            assert os.stat(found.mount.point).st_dev == os.stat(tmp_path).st_dev
            assert found.path == str(tmp_path / name)
    assert finder._place(reader, Call(SYNC, ADDRESS, 4096, 4096, 0, "msync")) == Place()
