"""Real loops whose files are on a disk of 8 MiB/s, and what their ledgers say about it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slow_mounts import GROUPS, Slow, forget, missing, throttled
from support_bottlenecks_disks import missing as missing_fuse
from support_bottlenecks_disks import slow_folder
from support_forks import Forks
from support_ledgers import until
from support_training import gather

from whyidle.ledger.doing import DOING
from whyidle.ledger.mounts import Mount
from whyidle.ledger.reader import Ledger
from whyidle.torch_hooks.storage.mounts import Mounts
from whyidle.torch_hooks.storage.readers import Finder, Reader

pytestmark = pytest.mark.xdist_group("storage-real")

RATE = 8 << 20
FILES = 24
SECOND = 1_000_000_000
Runs = Callable[..., Ledger]
OFTEN = {"WHYIDLE_WATCHER_SHARE": "0.01"}
"""On busy cores a look costs more, so that the usual budget allows one a second. What is waited after the last one is
not known."""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    if why := missing():
        pytest.skip(why)
    with throttled(tmp_path_factory.mktemp("mounts") / "slow", RATE) as slow:
        fill(slow.point / "shards", FILES, 1 << 20)
        yield slow


def fill(folder: Path, files: int, size: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"{number:04}.bin").write_bytes(os.urandom(size))


@pytest.fixture
def train(forks: Forks, tmp_path: Path) -> Runs:
    """Runs `mounts.py` with these arguments. Returns its ledger."""

    def run(*words: object, groups: str = "", **env: str) -> Ledger:
        folder = tmp_path / "run"
        process = forks.start(("mounts.py", *map(str, words)), folder, {GROUPS: groups, **OFTEN, **env})
        code = process.wait()
        stdout, stderr = (folder.joinpath(stream).read_text() for stream in ("stdout", "stderr"))
        assert code == 0, stderr
        [ledger] = gather(folder, code, stdout, stderr).ledgers
        assert ledger.faults == 0
        return ledger

    return run


def only(ledger: Ledger) -> Mount:
    [mount] = ledger.mounts
    return mount


def is_disk(mount: Mount, slow: Slow) -> bool:
    return mount.point == str(slow.point) and mount.fstype == "ext4" and mount.source.startswith("/dev/loop")


def rate(mount: Mount) -> float:
    return mount.bytes * SECOND / mount.measured_ns


@pytest.mark.parametrize("workers", [2, 0])
def test_names_the_slow_mount_of_two_and_its_rate_and_its_limit(
    workers: int, train: Runs, slow: Slow, tmp_path: Path
) -> None:
    fill(tmp_path / "fast", FILES, 1 << 20)
    forget(slow.point)
    ledger = train("read", workers, slow.point / "shards", tmp_path / "fast", groups=slow.groups)
    mount = only(ledger)
    assert is_disk(mount, slow)
    assert mount.first == "shards"
    assert mount.data_ns == pytest.approx(ledger.cause_ns["data_read"], rel=0.25)
    assert mount.data_ns <= ledger.cause_ns["data_read"]
    assert rate(mount) == pytest.approx(RATE, rel=0.25)
    assert (mount.counted, mount.limit) == (1, RATE)
    assert 0 < mount.looks <= ledger.words["mount_looks_all"][0]
    assert mount.calls_seen > 0
    assert mount.call_bytes / mount.calls_seen == pytest.approx(1 << 20, rel=0.01)
    assert (mount.guesses, mount.write_looks, mount.save_ns, mount.own_ns) == (0, 0, 0, 0)


@pytest.mark.parametrize("way", ["own", "program"])
def test_names_the_mount_of_files_that_the_loop_or_a_program_reads_in_no_loader(
    way: str, train: Runs, slow: Slow
) -> None:
    forget(slow.point)
    ledger = train(way, 0, slow.point / "shards", groups=slow.groups)
    mount = only(ledger)
    assert is_disk(mount, slow)
    assert mount.own_ns > ledger.cause_ns["host_blocked"] / 2
    assert mount.own_ns <= ledger.cause_ns["host_blocked"]
    assert rate(mount) == pytest.approx(RATE, rel=0.3)
    assert mount.data_ns == 0


def test_names_the_mount_of_a_program_whose_output_and_errors_a_worker_reads(train: Runs, slow: Slow) -> None:
    forget(slow.point)
    ledger = train("filter", 2, slow.point / "shards", groups=slow.groups)
    mount = only(ledger)
    assert is_disk(mount, slow)
    assert mount.data_ns > ledger.cause_ns["data_read"] / 2
    assert rate(mount) == pytest.approx(RATE, rel=0.3)
    looks = dict(zip(DOING, ledger.words["worker_looks"], strict=True))
    assert looks["network"] < looks["other"]


def test_names_the_mount_of_a_thread_that_makes_batches_without_a_loader(train: Runs, slow: Slow) -> None:
    forget(slow.point)
    ledger = train("thread", 0, slow.point / "shards", groups=slow.groups)
    mount = only(ledger)
    assert is_disk(mount, slow)
    assert mount.data_ns > ledger.cause_ns["data_read"] / 2
    assert mount.own_ns < mount.data_ns / 4


@pytest.mark.parametrize("workers", [1, 0])
def test_names_the_mount_of_a_mapped_file(workers: int, train: Runs, slow: Slow) -> None:
    forget(slow.point)
    mount = only(train("mapped", workers, slow.point / "shards", groups=slow.groups))
    assert is_disk(mount, slow)
    assert mount.fault_looks > 0


def test_names_the_mount_of_saves_and_tells_fsync_from_write(train: Runs, slow: Slow) -> None:
    ledger = train("save", 0, slow.point, groups=slow.groups)
    mount = only(ledger)
    assert is_disk(mount, slow)
    assert mount.save_ns == pytest.approx(ledger.cause_ns["checkpoint_write"], rel=0.25)
    assert rate(mount) == pytest.approx(RATE, rel=0.25)
    assert mount.sync_looks > mount.looks / 2
    assert (mount.data_ns, mount.counted, mount.limit) == (0, 1, RATE)


def test_small_files_on_a_mount_without_counters(train: Runs, tmp_path: Path) -> None:
    if why := missing_fuse():
        pytest.skip(why)
    fill(tmp_path / "below", 96, 16384)
    with slow_folder(tmp_path / "below", tmp_path / "at", read_ms=50, cached=False) as at:
        ledger = train("small", 2, at)
    mount = only(ledger)
    assert (mount.point, mount.fstype) == (str(at), "fuse.at-slow_fs")
    assert mount.data_ns > ledger.cause_ns["data_read"] / 2
    assert (mount.counted, mount.limit) == (0, 0)
    assert mount.readers > mount.looks
    assert mount.bytes > 0


def test_names_the_server_of_an_object_store(train: Runs) -> None:
    with serving() as address:
        ledger = train("store", 2, address)
    mount = only(ledger)
    assert (mount.point, mount.fstype, mount.source) == (address, "tcp", "")
    assert mount.data_ns > ledger.cause_ns["data_read"] / 2


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server that sends 1 MiB in 0.1 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=send, args=(connection,), daemon=True).start()

        def send(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                for _ in range(4):
                    time.sleep(0.025)
                    connection.sendall(bytes(1 << 18))

        threading.Thread(target=answer, daemon=True).start()
        yield "127.0.0.1:{1}".format(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)


def test_a_healthy_loop_has_no_mounts(train: Runs, tmp_path: Path) -> None:
    fill(tmp_path / "fast", FILES, 1 << 16)
    for path in (tmp_path / "fast").iterdir():
        path.read_bytes()
    ledger = train("read", 2, tmp_path / "fast")
    assert [mount for mount in ledger.mounts if mount.data_ns > SECOND // 20] == []


def test_no_mounts_are_looked_at_if_that_is_switched_off(train: Runs, slow: Slow) -> None:
    forget(slow.point)
    ledger = train("read", 2, slow.point / "shards", groups=slow.groups, WHYIDLE_WHERE="0")
    assert list(ledger.mounts) == []
    assert ledger.words["mount_looks_all"] == (0,)


# -- one reader


@pytest.fixture
def cat(slow: Slow) -> Iterator[int]:
    """A process that reads the slow disk: its pid."""
    forget(slow.point)
    words = [*slow.inside, "cat", *map(str, sorted((slow.point / "shards").iterdir()))]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "cat\n")
        yield process.pid
        process.kill()


@pytest.fixture
def mounts() -> Mounts:
    return Mounts(lambda *_: None)


def test_a_reader_whose_calls_may_not_be_seen_is_found_by_its_open_files(cat: int, mounts: Mounts, slow: Slow) -> None:
    reader = Reader(f"/proc/{cat}", f"/proc/{cat}")
    os.close(reader._syscall)
    reader._syscall = -1  # as if /proc/<pid>/syscall had not been opened
    finder = Finder(mounts)
    found = []
    for _ in range(20):
        time.sleep(0.05)
        found.append(finder.look(reader)[1])
    seen = [one for one in found if one is not None and one.slot >= 0]
    assert seen
    assert all(one.guess for one in seen)
    assert mounts.used[0].mount.point == str(slow.point)


LOOK = """
import sys
from whyidle.torch_hooks.storage.mounts import Mounts
from whyidle.torch_hooks.storage.readers import Finder, Reader
folder = f"/proc/{sys.argv[1]}"
reader = Reader(folder, folder)
seen = [Finder(Mounts(print)).look(reader) for _ in range(3)]
print([one[1].slot if one[1] is not None else None for one in seen])
"""


def test_of_a_reader_of_another_user_nothing_is_known(cat: int) -> None:
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", LOOK, str(cat)]
    done = subprocess.run(words, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("another user may not read this checkout")
    assert done.returncode == 0, done.stderr
    assert "mount" not in done.stdout
    assert set(done.stdout.strip("[]\n").split(", ")) <= {"-1", "None"}


def test_a_reader_that_has_ended_is_gone(mounts: Mounts) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        reader = Reader(f"/proc/{process.pid}", f"/proc/{process.pid}")
        process.kill()
    assert Finder(mounts).look(reader) == (None, None)
    assert reader.gone
