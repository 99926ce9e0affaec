"""How much memory a rank may use, on captured trees of both versions of control groups, and in a real group."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from whyidle.ledger.given import MEMORY_OF, TRAIL
from whyidle.ledger.layout import LEDGER_BYTES, WORD_AT
from whyidle.torch_hooks.given import groups, memory

GIB = 1 << 30
UNLIMITED = 9223372036854771712
V2_STAT = """anon 400000000
file 500000000
shmem 100000000
inactive_file {inactive}
active_file 100000000
slab_reclaimable 50000000
workingset_refault_file 7
"""
V1_STAT = """cache 500000000
inactive_file 1
active_file 1
hierarchical_memory_limit {limit}
total_cache 500000000
total_inactive_file {inactive}
total_active_file 100000000
"""


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").touch()
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def version2(folder: Path, current: int, limit: str = "max", inactive: int = 300000000) -> None:
    put(folder, memory_max=f"{limit}\n", memory_current=f"{current}\n", memory_stat=V2_STAT.format(inactive=inactive))


def look(monkeypatch: pytest.MonkeyPatch, root: Path, cgroup: str) -> dict[str, int | str]:
    (root / "cgroup.procs").touch()
    (root / "self").write_text(cgroup)
    monkeypatch.setattr(memory, "folders", lambda name: groups.folders(name, str(root), str(root / "self")))
    monkeypatch.setattr(memory, "of_node", lambda _: (10 * GIB, 64 * GIB))
    words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
    memory.MemoryProbe(words).look()
    found = {name: words[WORD_AT[f"memory_{name}"][0]] for name in ("used_bytes", "limit_bytes", "peak_bytes", "of")}
    return found | {"of": MEMORY_OF[found["of"]]}


def test_reclaimable_file_cache_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    version2(tmp_path / "job", current=900_000_000, limit="1000000000")
    found = look(monkeypatch, tmp_path, "0::/job\n")
    assert found == {"used_bytes": 450_000_000, "limit_bytes": 10**9, "peak_bytes": 450_000_000, "of": "group"}


def test_the_group_nearest_to_its_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    version2(tmp_path / "pod", current=3 * GIB, limit=str(3 * GIB))
    version2(tmp_path / "pod/container", current=GIB, limit=str(2 * GIB))
    found = look(monkeypatch, tmp_path, "0::/pod/container\n")
    assert (found["limit_bytes"], found["of"]) == (3 * GIB, "above")


def test_a_container_that_sees_only_its_own_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    version2(tmp_path, current=900_000_000, limit="1000000000")
    assert look(monkeypatch, tmp_path, "0::/\n")["of"] == "group"


@pytest.mark.parametrize("path", ["/docker/0123", "/../other"])
def test_a_container_whose_own_path_is_not_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str):
    put(
        tmp_path / "memory",
        memory_usage_in_bytes="900000000\n",
        memory_stat=V1_STAT.format(limit=10**9, inactive=300000000),
    )
    found = look(monkeypatch, tmp_path, f"4:memory:{path}\n1:cpu:{path}\n0::/\n")
    assert found == {"used_bytes": 500_000_000, "limit_bytes": 10**9, "peak_bytes": 500_000_000, "of": "group"}


def test_without_a_limit_the_node_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    version2(tmp_path / "job", current=GIB)
    (tmp_path / "job/memory.stat").write_text("garbage")
    found = look(monkeypatch, tmp_path, "0::/job\n")
    assert (found["used_bytes"], found["limit_bytes"], found["of"]) == (10 * GIB, 64 * GIB, "node")


def test_unlimited_group_of_version_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    put(tmp_path / "memory/job", memory_usage_in_bytes="9\n", memory_stat=V1_STAT.format(limit=UNLIMITED, inactive=0))
    assert look(monkeypatch, tmp_path, "4:memory:/job\n")["of"] == "node"


def test_a_node_short_of_memory_counts_beside_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    version2(tmp_path / "job", current=900_000_000, limit="1000000000")
    (tmp_path / "self").write_text("0::/job\n")
    monkeypatch.setattr(memory, "folders", lambda name: groups.folders(name, str(tmp_path), str(tmp_path / "self")))
    monkeypatch.setattr(memory, "of_node", lambda _: (63 * GIB, 64 * GIB))
    words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
    memory.MemoryProbe(words).look()
    assert words[WORD_AT["memory_limit_bytes"][0]] == 64 * GIB


def test_groups_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert look(monkeypatch, tmp_path, "nonsense\n")["of"] == "node"
    assert look(monkeypatch, tmp_path, "0::/gone\n")["of"] == "node"


@pytest.mark.parametrize(
    ("cgroup", "folder", "file", "text"),
    [
        ("0::/job\n", "job", "memory_events", "low 0\nhigh 0\nmax 812\noom 1\noom_kill {}\noom_group_kill 0\n"),
        ("4:memory:/job\n", "memory/job", "memory_oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
def test_counts_what_the_kernel_killed(
    cgroup: str, folder: str, file: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(tmp_path / folder, **{file: text.format(2)})
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "self").write_text(cgroup)
    monkeypatch.setattr(memory, "folders", lambda name: groups.folders(name, str(tmp_path), str(tmp_path / "self")))
    words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
    probe = memory.MemoryProbe(words)
    probe.look()
    put(tmp_path / folder, **{file: text.format(5)})
    probe.count_kills()
    found = {name: words[WORD_AT[name][0]] for name in ("oom_kills_before", "oom_kills", "memory_group_id")}
    assert found == {"oom_kills_before": 3, "oom_kills": 6, "memory_group_id": (tmp_path / folder).stat().st_ino}


@pytest.mark.parametrize(
    ("used_of", "readings"),
    [
        (lambda second: 10 << 20, 6),  # two at first, then one in four seconds
        (lambda second: 70 << 20, 20),
        (lambda second: (7 * second) << 20, 17),
    ],
)
def test_reads_seldom_while_the_limit_is_far(
    used_of: Callable[[int], int], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, used, read = 0, 0, []
    monkeypatch.setattr(memory, "folders", lambda _: [])
    monkeypatch.setattr(memory.time, "monotonic_ns", lambda: at)
    monkeypatch.setattr(memory, "of_node", lambda _: read.append(at) or (used, 100 << 20))
    probe = memory.MemoryProbe(memoryview(bytearray(LEDGER_BYTES)).cast("q"))
    for second in range(1, 21):
        at, used = second * 1_000_000_000, used_of(second)
        probe.look()
    assert len(read) == readings


def test_keeps_how_the_memory_grew_over_the_whole_life(monkeypatch: pytest.MonkeyPatch) -> None:
    at, used = 0, 0
    monkeypatch.setattr(memory, "_FAR_SECONDS", 1.0)
    monkeypatch.setattr(memory, "folders", lambda _: [])
    monkeypatch.setattr(memory.time, "monotonic_ns", lambda: at)
    monkeypatch.setattr(memory, "of_node", lambda _: (used, 64 * GIB))
    words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
    probe = memory.MemoryProbe(words)
    for second in range(1, 301):
        at, used = second * 1_000_000_000, second << 20
        probe.look()
    times, sizes = (
        words[WORD_AT[name][0] : WORD_AT[name][0] + TRAIL] for name in ("memory_trail_ns", "memory_trail_bytes")
    )
    kept = [ns // 1_000_000_000 for ns in times if ns]
    assert (kept[0], len(kept)) == (1, 10)
    assert {b - a for a, b in pairwise(kept)} == {32}
    assert [size >> 20 for size in sizes[: len(kept)]] == kept


def test_this_machine():
    words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
    memory.MemoryProbe(words).look()
    assert 0 < words[WORD_AT["memory_used_bytes"][0]] <= words[WORD_AT["memory_limit_bytes"][0]]
