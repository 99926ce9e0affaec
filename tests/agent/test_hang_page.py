"""The agent's page /hang, over real HTTP, and the file that `whyidle hang` writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support_agent import WHYIDLE, agent
from support_hangs import dossier
from support_ledgers import Spec, children, ended
from support_ras import communicator, listening, missing, rank, service, status

from whyidle.agent.hang.page import HangPage
from whyidle.agent.hang.text import MARK
from whyidle.agent.ledgers import LedgerStore


def spec(rank: int, phase: str, calls: int, slot: int) -> Spec:
    return Spec(
        run="hangs",
        rank=rank,
        steps=4,
        step={"compute": 0.1},
        phase=phase,
        idle=80.0 + rank,
        collectives=calls,
        slots=[{"key": 17, "size": 2, "calls": calls}],
        groups=[("world", {}, calls)],
        words={"open_slot": slot},
    )


HANG = (spec(0, "collective", 5, 0), spec(1, "host", 4, -1))


def test_the_agent_serves_the_dossier_of_its_node(tmp_path: Path) -> None:
    with children(tmp_path, *HANG) as ranks, agent(tmp_path) as running:
        code, headers, body = running.get("/hang.json")
        assert (code, headers["Content-Type"]) == (200, "application/json")
        [found] = json.loads(body)
        assert found["hung"], found["sentence"]
        assert [one["rank"] for one in found["culprits"]] == [1]
        assert (found["owner"], found["run"]) == ("lab", "hangs")
        assert (found["collective"]["group"], found["collective"]["sequence"]) == ("world", 5)
        assert {one["process"]["pid"] for one in found["ranks"]} == {child.process.pid for child in ranks}
        code, headers, body = running.get("/hang")
        assert (code, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert body.decode().startswith(found["sentence"][:20])
        assert b'href="hang"' in running.get("/")[2]


def test_the_page_of_a_node_without_ranks(tmp_path: Path) -> None:
    with agent(tmp_path) as running:
        assert json.loads(running.get("/hang.json")[2]) == []
        assert running.get("/hang")[2] == b"No run has a live rank on this node.\n"


def test_requests_share_a_collection_and_a_hung_one_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    def collect(self: HangPage) -> list[dict[str, Any]]:
        begun.append(time.monotonic())
        time.sleep(2)
        return []

    monkeypatch.setattr(HangPage, "_collect", collect)
    monkeypatch.setattr("whyidle.agent.hang.page.DEADLINE_SECONDS", 0.1)
    page = HangPage(LedgerStore(str(tmp_path), 60.0), "/proc", str)
    assert [page.answer(as_json=True).status for _ in range(3)] == [503, 503, 503]
    assert len(begun) == 1


def test_the_file_has_the_sentence_first_and_the_json_last(tmp_path: Path) -> None:
    out = tmp_path / "ticket.txt"
    with children(tmp_path / "ledgers", *HANG):
        words = [*WHYIDLE, "hang", "hangs", "--dir", str(tmp_path / "ledgers"), "--out", str(out)]
        done = subprocess.run([*words, "--ras", "127.0.0.1:1"], capture_output=True, text=True, check=True)
    sentence, _, *_ = done.stdout.splitlines()
    text, _, raw = out.read_text().partition(f"\n{MARK}\n")
    assert text.startswith(f"{sentence}\n")
    assert sentence.startswith("Hang: rank 1 runs its own code between two steps (for 8")
    found = json.loads(raw)
    assert found["sentence"] == sentence
    assert any("py-spy" in one or "stack" in one for one in found["absent"]) or found["ranks"][1]["stack"]
    assert any("NCCL" in one for one in found["absent"])
    assert "not available: " in text
    assert "collective  call 5 of group world (2 ranks)" in text


def test_a_later_attempt_without_ledgers_is_found_by_the_name_of_its_run(tmp_path: Path) -> None:
    """Its ranks hang before their first collective, such as in `init_process_group`."""
    ended(tmp_path / "ledgers", spec(0, "host", 4, -1))
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeps, env={**environ, "WHYIDLE_RUN": "hangs"}) as later:
        try:
            found = dossier(tmp_path)
        finally:
            later.kill()
    assert found["sentence"].startswith("Processes of this run are alive that have no ledgers")
    assert [one["process"]["pid"] for one in found["ranks"]] == [later.pid]


def test_says_what_is_missing_if_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    words = [*WHYIDLE, "hang", "other", "--dir", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no ledger of run other" in done.stderr


def test_nccl_names_the_missing_rank_without_ledgers(tmp_path: Path) -> None:
    lost = status(communicator([rank(0), rank(2)], [missing(1, dead=True)]))
    (tmp_path / "ledgers").mkdir()
    with listening(service(lost)) as address:
        found = dossier(tmp_path, "--ras", address)
    assert found["hung"]
    assert [(one["rank"], one["kind"]) for one in found["culprits"]] == [(1, "ras")]
    assert "is considered dead by NCCL" in found["sentence"]
    assert found["nccl"]["communicators"][0]["missing"][0]["pid"] == 4001


def test_nccl_names_the_rank_that_has_no_ledger_here(tmp_path: Path) -> None:
    lost = status(communicator([rank(0)], [missing(1)]))
    with children(tmp_path / "ledgers", HANG[0]), listening(service(lost)) as address:
        found = dossier(tmp_path, "--ras", address)
    assert found["hung"]
    assert [(one["rank"], one["kind"]) for one in found["culprits"]] == [(1, "ras")]
    assert found["collective"]["no_ledger_here"] == [1]
    assert found["seconds"] > 60


def test_nccl_counts_that_still_grow_do_not_count_as_a_hang(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    answers = iter(
        status(communicator([rank(0, counts={"AllReduce": count + 1}), rank(1, counts={"AllReduce": count})]))
        for count in range(20, 40)
    )
    with listening(lambda connection: service(next(answers))(connection)) as address:
        assert not dossier(tmp_path, "--ras", address)["hung"]
    still = status(communicator([rank(0, counts={"AllReduce": 21}), rank(1)]))
    with listening(service(still)) as address:
        found = dossier(tmp_path, "--ras", address)
    assert found["hung"]
    assert [one["rank"] for one in found["culprits"]] == [1]
