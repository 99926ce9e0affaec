"""What confirms that the kernel killed a rank for its memory: its log and the counts of groups, on captured trees."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, children, ended

from whyidle.agent.files import Roots
from whyidle.agent.kernel import oom_kills
from whyidle.agent.kernel.oom_kills import oom_kills_of
from whyidle.agent.ledgers import LedgerStore
from whyidle.ledger.deaths import OomKill, note_death, note_of, note_oom
from whyidle.ledger.reader import Ledger, read_ledger

LIMIT = 64 << 30
JOB = "/slurm/job_7/step_0"
V2 = "low 0\nhigh 0\nmax 812\noom 1\noom_kill {kills}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


class Node:
    """The files of a node. ``version``: of control groups."""

    def __init__(self, root: Path, version: int = 2):
        self.roots = Roots("/proc", str(root / "sys"), str(root))
        self.top = root / "sys/fs/cgroup" / ("memory" if version == 1 else "")
        self.file, self.text = ("memory.oom_control", V1) if version == 1 else ("memory.events", V2)
        self.kmsg = root / "dev/kmsg"

    def group(self, path: str, kills: int) -> int:
        folder = self.top / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file).write_text(self.text.format(kills=kills))
        return os.stat(folder).st_ino

    def log(self, monkeypatch: pytest.MonkeyPatch, *killed: tuple[int, str, str], node: bool = False) -> None:
        """``killed``: (pid, name, group). A file is not read record by record, as the kernel's log is."""
        at = time.monotonic_ns() // 1000
        lines = [f"4,1,{at},-;python invoked oom-killer: gfp_mask=0x1"]
        if not node:
            lines.append(f"6,2,{at},-;memory: usage {LIMIT // 1024}kB, limit {LIMIT // 1024}kB, failcnt 9")
        for pid, name, group in killed:
            where = "CONSTRAINT_NONE" if node else "CONSTRAINT_MEMCG"
            of = "global_oom" if node else f"oom_memcg={group}"
            who = "Out of memory" if node else "Memory cgroup out of memory"
            lines.append(f"6,3,{at},-;oom-kill:constraint={where},{of},task_memcg={group},task={name},pid={pid},uid=0")
            lines.append(f"3,4,{at},-;{who}: Killed process {pid} ({name}) total-vm:1kB, anon-rss:1kB")
        monkeypatch.setattr(oom_kills, "records", lambda path: [line.encode() for line in lines])


def killed(folder: Path, **words: int) -> Ledger:
    with children(folder, Spec(words=words)) as [child]:
        child.kill()
        return read_ledger(child.path)


def look(ledger: Ledger, node: Node, pid: int = 0) -> OomKill | None:
    return oom_kills_of([ledger], node.roots, {ledger.path: pid} if pid else None).get(ledger.path)


def test_the_log_names_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.log(monkeypatch, (4242, "python", JOB))
    assert look(killed(tmp_path / "l"), node, 4242) == OomKill("log", True, LIMIT)


def test_the_log_says_that_the_node_had_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.log(monkeypatch, (4242, "python", JOB), node=True)
    assert look(killed(tmp_path / "l"), node, 4242) == OomKill("log", True, 0, True)


@pytest.mark.parametrize("version", [1, 2])
def test_the_log_names_another_process_of_the_group(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, version)
    ledger = killed(tmp_path / "l", memory_group_id=node.group(JOB, 4), oom_kills=3 + 1, oom_kills_before=3 + 1)
    node.log(monkeypatch, (6, "before", JOB), (7, "pt_data_worker", JOB), (8, "python", "/other"))
    assert look(ledger, node, 4242) == OomKill("log", False, LIMIT, False, ("pt_data_worker (pid 7)",))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("kills", "confirmed"), [(3, False), (4, True)])
def test_the_count_of_the_group_has_grown(version: int, kills: int, confirmed: bool, tmp_path: Path) -> None:
    node = Node(tmp_path, version)
    ledger = killed(tmp_path / "l", memory_group_id=node.group(JOB, kills), oom_kills=3 + 1, oom_kills_before=1)
    assert look(ledger, node) == (OomKill("count", False) if confirmed else None)


def test_a_count_that_is_read_late_confirms_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    words = {"memory_group_id": node.group(JOB, 9), "oom_kills": 1}
    with children(tmp_path / "l", Spec(idle=600.0, words=words)) as [child]:
        child.kill()
        assert look(read_ledger(child.path), node) is None


def test_without_the_log_and_the_group_nothing_is_known(tmp_path: Path) -> None:
    assert look(killed(tmp_path / "l", memory_group_id=77, oom_kills=1), Node(tmp_path)) is None


def test_a_pid_of_another_namespace_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, ledger = Node(tmp_path), killed(tmp_path / "l")
    node.log(monkeypatch, (ledger.pid, "python", JOB))
    assert look(ledger, node) == OomKill("log", True, LIMIT)
    monkeypatch.setattr(oom_kills, "_FIRST_NAMESPACE", 1)
    assert look(ledger, node) is None


def test_the_agent_notes_it_beside_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "node")
    with children(tmp_path / "l", Spec()) as [child]:
        store = LedgerStore(str(tmp_path / "l"), 900.0, roots=node.roots)
        store.look()
        store.pids[child.path] = 4242
        child.kill()
        node.log(monkeypatch, (4242, "python", JOB))
        [rank] = store.look().ranks
        assert rank.newest.oom == OomKill("log", True, LIMIT)
        found_dead = rank.newest.found_dead_ns
        node.log(monkeypatch)  # the log has forgotten it
        [rank] = LedgerStore(str(tmp_path / "l"), 900.0, roots=node.roots).look().ranks
        assert rank.newest.oom == OomKill("log", True, LIMIT)
        assert abs((rank.newest.found_dead_ns or 0) - (found_dead or 0)) < 1e9
        assert store.look().ranks[0].newest.oom is not None


def test_a_rank_that_ended_itself_is_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(tmp_path / "l", Spec())
    monkeypatch.setattr("whyidle.agent.ledgers.oom_kills_of", lambda *_: pytest.fail("asked"))
    LedgerStore(str(tmp_path / "l"), 900.0).look()


GOOD: dict[str, Any] = {"evidence": "log", "itself": True, "limit": 1, "of_node": False, "others": []}


@pytest.mark.parametrize(
    "change",
    [
        {"evidence": "magic"},
        {"itself": 1},
        {"limit": -1},
        {"limit": True},
        {"limit": 1e9},
        {"others": ["x"] * 5},
        {"others": ["a\nb"]},
        {"others": ["x" * 99]},
        {"others": [7]},
    ],
)
def test_a_note_that_is_nonsense_says_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    path = killed(tmp_path).path
    note_death(path, os.geteuid())
    for words, found in ((GOOD, OomKill("log", True, 1)), (GOOD | change, None)):
        Path(note_of(path)).write_text(json.dumps(words))
        assert read_ledger(path).oom == found
    Path(note_of(path)).write_text("{")
    assert read_ledger(path).oom is None


def test_a_note_is_not_written_through_a_link(tmp_path: Path) -> None:
    path = killed(tmp_path).path
    (tmp_path / "target").write_text("kept")
    os.symlink(tmp_path / "target", note_of(path))
    with pytest.raises(OSError, match="symbolic"):
        note_oom(path, OomKill("log", True))
    assert (tmp_path / "target").read_text() == "kept"
