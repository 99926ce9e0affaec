"""`whyidle hang` names the right rank and reason, while real ranks hang in many ways."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support_forks import Forks
from support_hangs import dossier, dossier_of_hang, hanging, hanging_processes, no_network, nodes, unplug
from support_long import long_unless

# kind -> ranks, kind of the reason, and words of the sentence
HANGS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "sleep": (2, "sleep", ("its training thread sleeps",)),
    "die": (3, "killed", ("was killed, or crashed",)),
    "stop": (2, "stopped", ("is stopped by a signal",)),
    "lock": (2, "lock", ("waits for a lock or for another thread",)),
    "recv": (3, "message", ("for a message from rank 0, which does not send it",)),
    "elsewhere": (3, "elsewhere", ("is in another collective", "of 2 ranks, where it waits for rank 0")),
    "save": (2, "checkpoint", ("is in a save", "pipe_write")),
    "worker": (2, "worker", ("waits for a batch", "is stopped by a signal")),
    "worker-sleeps": (2, "data", ("waits for a batch", ": its worker ", ", which owes the batch, sleeps")),
}
USUAL = ("stop", "recv", "save")
SIGN_SECONDS = 4.0
"""How old the last sign of a killed rank may be."""


@pytest.mark.parametrize("kind", long_unless(USUAL, HANGS))
def test_names_the_rank_that_hangs_and_the_reason(kind: str, tmp_path: Path, forks: Forks) -> None:
    ranks, reason, words = HANGS[kind]
    with hanging(forks, kind, tmp_path, ranks):
        found = dossier_of_hang(tmp_path)
    print(found["sentence"])
    assert found["hung"], found
    assert [(one["rank"], one["kind"]) for one in found["culprits"]] == [(ranks - 1, reason)], found["sentence"]
    for word in words:
        assert word in found["sentence"]
    collective = found["collective"]
    assert collective["group"] == "world"
    assert [one["rank"] for one in collective["in"]] == list(range(ranks - 1))
    assert ranks - 1 in collective["not_in"]


@pytest.mark.parametrize("kind", long_unless(("sleep",), HANGS))
def test_names_the_rank_after_all_were_killed(kind: str, tmp_path: Path, forks: Forks) -> None:
    """As the launcher does after a time limit. What the kernel knew of the processes is gone."""
    ranks = HANGS[kind][0]
    with hanging(forks, kind, tmp_path, ranks) as processes:
        dossier_of_hang(tmp_path)
        time.sleep(SIGN_SECONDS)
        for one in processes:
            one.kill()
        found = dossier(tmp_path)
    print(found["sentence"])
    assert found["hung"], found
    assert found["sentence"].startswith("The run has ended. Before its end: ")
    assert [one["rank"] for one in found["culprits"]] == [ranks - 1], found["sentence"]


@pytest.mark.parametrize(
    ("kind", "place", "after"),
    [
        ("startup", "call 1 of group world", "startup"),
        pytest.param("meeting", "a collective of an unknown group", "no_ledger", marks=pytest.mark.long),
    ],
)
def test_names_a_rank_that_has_not_begun(kind: str, place: str, after: str, tmp_path: Path) -> None:
    """A rank has a ledger from when it begins to meet the others. They wait for it in a collective, or to meet it."""
    with hanging_processes(kind, tmp_path, 2, hooks=True) as processes:
        found = dossier_of_hang(tmp_path)
        time.sleep(SIGN_SECONDS)
        for one in processes:
            one.kill()
            one.wait()
        afterwards = dossier(tmp_path)
    assert found["hung"], found
    assert [(one["rank"], one["kind"]) for one in found["culprits"]] == [(1, "startup")], found["sentence"]
    assert "has not begun its first step" in found["sentence"]
    assert "its training thread sleeps" in found["sentence"]
    assert f"Rank 0 has been in {place} for" in found["sentence"]
    assert afterwards["sentence"].startswith("The run has ended. Before its end: "), afterwards["sentence"]
    assert [(one["rank"], one["kind"]) for one in afterwards["culprits"]] == [(1, after)]


# kind -> kind of the reason, and words of the sentence
UNHOOKED: dict[str, tuple[str, tuple[str, ...]]] = {
    "sleep": ("odd", ("nanosleep",)),
    "die": ("gone", ("has no process on this node",)),
    "stop": ("stopped", ("is stopped by a signal",)),
    "save": ("odd", ("pipe_write",)),
    "worker": ("worker", ("is stopped by a signal",)),
}


@pytest.mark.parametrize("kind", long_unless(("stop",), UNHOOKED))
def test_names_the_rank_that_hangs_without_hooks(kind: str, tmp_path: Path) -> None:
    """Only by the processes: the ranks have no ledgers."""
    reason, words = UNHOOKED[kind]
    with hanging_processes(kind, tmp_path, 3, hooks=False) as [first, *_]:
        found = dossier_of_hang(tmp_path, "--pid", str(first.pid))
    print(found["sentence"])
    assert found["hung"], found
    assert [(one["rank"], one["kind"]) for one in found["culprits"]] == [(2, reason)], found["sentence"]
    for word in words:
        assert word in found["sentence"]


@pytest.mark.long
def test_names_the_rank_behind_a_broken_link(tmp_path: Path) -> None:
    if why := no_network():
        pytest.skip(why)
    with nodes(3) as names, hanging_processes("link", tmp_path, 3, hooks=True, names=names):
        unplug(2)
        found = dossier_of_hang(tmp_path)
    print(found["sentence"])
    assert found["hung"], found
    assert [(one["rank"], one["kind"]) for one in found["culprits"]] == [(2, "link")], found["sentence"]
    assert "10.219.0.3" in found["sentence"]


def test_a_run_that_goes_on_does_not_count_as_a_hang(tmp_path: Path, forks: Forks) -> None:
    with hanging(forks, "link", tmp_path, 2):  # nobody unplugs anything
        time.sleep(3)
        for _ in range(3):
            found = dossier(tmp_path, after="3s")  # on busy cores, a step may take longer than a second
            assert not found["hung"], found["sentence"]
            assert not found["culprits"]


@pytest.mark.long
def test_processes_that_go_on_do_not_count_as_a_hang(tmp_path: Path) -> None:
    with hanging_processes("link", tmp_path, 2, hooks=False) as [first, *_]:
        for _ in range(3):
            assert not dossier(tmp_path, "--pid", str(first.pid))["hung"]
