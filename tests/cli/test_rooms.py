"""The free space of mounts, and the rates that a bench keeps beside the ledgers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended
from support_mounts import mount

from whyidle.cli import rooms
from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger
from whyidle.linux.mountinfo import mount_of, mounts

NOT_HERE = ("/nowhere", "", "nfs4", "filer:/export")


def own(path: Path) -> tuple[str, str, str]:
    """The mount of a path of this machine."""
    place = mount_of(str(path), mounts(Path("/proc/self/mountinfo").read_bytes())[0])
    assert place is not None
    return place.point, place.fstype, place.source


def ledgers_of(folder: Path, *places: tuple[str, str, str, str]) -> list[Ledger]:
    ended(folder, Spec(world_size=1, steps=1, step={"compute": 0.1}, mounts=[mount(place) for place in places]))
    return read_directory(str(folder))[0]


def measured(name: str, rate: float | None) -> dict[str, Any]:
    return {"name": name, "bytes_per_second": rate}


def test_knows_the_free_space_of_mounts_that_are_mounted_here(tmp_path: Path) -> None:
    point, fstype, source = own(tmp_path)
    found = rooms.of_ledgers(ledgers_of(tmp_path, (point, "", fstype, source), NOT_HERE))
    assert found.keys() == {(point, fstype, source)}
    [room] = found.values()
    assert room.free > 0
    assert (room.point, room.read, room.write) == (point, None, None)


def test_a_bench_keeps_its_rates_by_mount(tmp_path: Path) -> None:
    measures = [
        measured("samples: loop", None),  # it came from the page cache
        measured("shards: read in order", 9e8),
        measured("torch.save: save and fsync", 4e8),
        measured("safetensors: save and fsync", 3e8),
    ]
    rooms.save(str(tmp_path), [{"path": str(tmp_path), "measures": measures}])
    [room] = rooms.of_ledgers(ledgers_of(tmp_path)).values()
    assert (room.read, room.write) == (9e8, 3e8)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("tmp")]


def test_a_bench_of_other_parts_leaves_what_was_measured_before(tmp_path: Path) -> None:
    for name, rate in (("samples: loop", 9e8), ("torch.save: save and fsync", 4e8), ("dataset: load", 5e8)):
        rooms.save(str(tmp_path), [{"path": str(tmp_path), "measures": [measured(name, rate)]}])
    [room] = rooms.of_ledgers(ledgers_of(tmp_path)).values()
    assert (room.read, room.write) == (9e8, 4e8)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", '[["/", "ext4"]]', "[[1, 2, 3, 4, 5]]", "[" * 100_000, json.dumps([["/", "x", "y", "z", -1]])],
)
def test_ignores_a_file_that_is_not_its_own(content: str, tmp_path: Path) -> None:
    (tmp_path / rooms.FILE).write_text(content)
    assert rooms.of_ledgers(ledgers_of(tmp_path)) == {}


def test_follows_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "ledgers"
    folder.mkdir()
    (tmp_path / "other").write_text(json.dumps([[*own(tmp_path), 9e8, 9e8]]))
    (folder / rooms.FILE).symlink_to(tmp_path / "other")
    assert rooms.of_ledgers(ledgers_of(folder)) == {}
