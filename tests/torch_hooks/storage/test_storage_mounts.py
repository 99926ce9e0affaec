"""The mounts of this process, as descriptors, paths and mapped files name them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from whyidle.ledger.mounts import MOUNTS
from whyidle.linux.mountinfo import Mount
from whyidle.linux.syscalls import FILE, READ, Call
from whyidle.torch_hooks import proc
from whyidle.torch_hooks.storage.mounts import Mounts, store
from whyidle.torch_hooks.storage.readers import Finder, Reader

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
            (beside.fileno(), (mount, path, False)),
            (other.fileno(), (mount, path, True)),
            (ends[1], (None, "", False)),
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


def test_a_long_label_keeps_its_start(mounts: Mounts, labels: dict[str, str]) -> None:
    mounts.slot(DISK._replace(point="/" + "ü" * 80), "")
    assert labels["mount0"].startswith("/ü")
    assert len(labels["mount0"].encode()) <= 112


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
