"""`whyidle advise`: which node it hands to a scheduler, with which command, and when it does not."""

from __future__ import annotations

import json
import re
import shlex
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support_ledgers import Spec, write

from whyidle.advisor.handoff import LONGEST_REASON, NoHandOff, commands, one_node
from whyidle.alerts.recording.names import RANK_PLACE, RUN_RANKS, culprit, spent, verdict
from whyidle.cli.main import main

STEPS = 200
EVEN = {"compute": 0.05, "straggler": 0.04}
LATE = {"compute": 0.09}
REASON = "whyidle: run lab/tests: other ranks wait 33 % of the time for rank 3, because their compute takes longer; "


def job(folder: Path, **late: object) -> str:
    """Four ranks on two nodes, of which rank 3 on n2 is late. ``late`` changes that rank. Returns its directory."""
    spec = Spec(run="tests", world_size=4, steps=STEPS, words={"samples": STEPS})
    for rank in range(4):
        one = replace(spec, rank=rank, node=f"n{1 + rank // 2}", step=EVEN)
        if rank == 3:
            one = replace(one, step=LATE, late={"compute": 0.04 * STEPS}, late_steps=STEPS)
            one = replace(one, **late)  # pyright: ignore[reportArgumentType]
        write(str(folder), one).close()
    return str(folder)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for scontrol and kubectl, which record their arguments in `argv`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("scontrol", "kubectl"):
        stand_in(folder / name, f'printf "%s\\0" "$0" "$@" >> {folder}/argv; printf "\\n" >> {folder}/argv')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def stand_in(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def called(programs: Path) -> list[list[str]]:
    path = programs / "argv"
    if not path.exists():
        return []
    words = [line.split("\0")[:-1] for line in path.read_text().split("\n") if line]
    return [[Path(program).name, *rest] for program, *rest in words]


@pytest.fixture
def agent() -> Iterator[tuple[str, list[str]]]:
    """The address of an agent, and the lines that it answers."""
    lines: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write("".join(f"{line}\n" for line in lines).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}", lines
        server.shutdown()
        thread.join()


def advise(directory: str, *words: str, address: str = "127.0.0.1:1") -> int:
    return main(["advise", "--dir", directory, "--agent", address, *words])


# -- what it prints


def test_prints_the_command_for_slurm(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(job(tmp_path / "ledgers"), "--for", "slurm") == 0
    *comments, command = capsys.readouterr().out.splitlines()
    assert all(line.startswith("# ") for line in comments)
    assert "# confirmed: late in 200 of 200 steps" in comments
    assert "# to undo: scontrol update NodeName=n2 State=RESUME" in comments
    reason = f"Reason={REASON}confirmed: late in 200 of 200 steps"
    assert shlex.split(command) == ["scontrol", "update", "NodeName=n2", "State=DRAIN", reason]
    assert called(programs) == []  # a dry run


def test_prints_the_commands_for_kubernetes(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(job(tmp_path / "ledgers"), "--for", "kubernetes", "--node", "worker-2.example.com") == 0
    cordon, annotate = (shlex.split(line) for line in capsys.readouterr().out.splitlines()[-2:])
    assert cordon == ["kubectl", "cordon", "worker-2.example.com"]
    assert annotate[:5] == ["kubectl", "annotate", "node", "worker-2.example.com", "--overwrite"]
    assert annotate[5].startswith(f"whyidle/cordon-reason={REASON}")
    assert called(programs) == []


def test_applies_the_commands(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(job(tmp_path / "ledgers"), "--for", "kubernetes", "--apply") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "# done"
    assert called(programs) == [shlex.split(line) for line in printed[-3:-1]]


def test_ranks_that_are_late_in_the_same_steps_do_not_make_a_node_late_more_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ledgers"
    for rank in range(6):
        late: dict[str, Any] = {"step": EVEN} if rank < 4 else {"step": LATE, "late_steps": STEPS // 2}
        if rank >= 4:
            late["late"] = {"compute": 0.04 * STEPS}
        write(
            str(folder), Spec(run="tests", rank=rank, world_size=6, steps=STEPS, node=f"n{rank // 2}", **late)
        ).close()
    assert advise(str(folder), "--for", "slurm", "--apply") == 1
    assert "late in 100 of 200 steps" in capsys.readouterr().err


def test_the_reason_is_one_harmless_word(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x'; reboot; $(reboot) \"`reboot`\n"
    folder = tmp_path / "ledgers"
    for rank, step in enumerate((EVEN, LATE)):
        late = {"late": {"compute": 0.04 * STEPS}, "late_steps": STEPS} if rank else {}
        spec = Spec(run=evil, rank=rank, world_size=2, steps=STEPS, node=f"n{rank}", step=step)
        write(str(folder), replace(spec, **late)).close()  # pyright: ignore[reportArgumentType]
    assert advise(str(folder), "--for", "slurm", "--apply") == 0
    [words] = called(programs)
    assert words[:4] == ["scontrol", "update", "NodeName=n1", "State=DRAIN"]
    assert len(words) == 5
    assert len(words[4]) <= len("Reason=") + LONGEST_REASON
    assert not set(words[4]) & set("'\"\n")
    assert words == shlex.split(capsys.readouterr().out.splitlines()[-2])


@pytest.mark.parametrize("name", ["n[1-9]", "n1,n2", "all", "ALL", "-A", "--all", "", "n 1", "n;1", "../n", "n1\n"])
def test_rejects_names_that_are_not_one_node(name: str) -> None:
    with pytest.raises(NoHandOff, match="not the name of one node"):
        one_node(name)


def test_a_ledger_cannot_name_several_nodes(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(job(tmp_path / "ledgers", node="n[1-9]"), "--for", "slurm", "--apply") == 1
    assert "'n[1-9]' is not the name of one node" in capsys.readouterr().err
    assert called(programs) == []


# -- when there is nothing to hand off


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ({"step": EVEN, "late": {}, "late_steps": 0}, "late ranks"),
        ({"node": "n1"}, "late in 200 of 200"),  # n1 has it then
        ({"late_steps": 120}, "node n2 of run lab/tests is suspected, but not confirmed"),
        ({"late_steps": 20}, "because of what they do"),
        ({"words": {"samples": 3 * STEPS}}, "rank 3 takes 3.0 times as many samples"),
        ({"device": "cuda:0"}, "too few looks asked whether the GPU of rank 3 had work"),
    ],
)
def test_an_uncertain_node_is_not_handed_off(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str], late: dict[str, object], said: str
) -> None:
    status = advise(job(tmp_path / "ledgers", **late), "--for", "slurm", "--apply")
    captured = capsys.readouterr()
    assert said in captured.err + captured.out
    assert (status, bool(called(programs))) == ((0, True) if late.get("node") else (1, False))


def test_an_empty_name_is_not_the_name_in_the_ledgers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is not set gives an empty name."""
    assert advise(job(tmp_path), "--for", "slurm", "--node", "") == 1
    assert "is not the name of one node" in capsys.readouterr().err


def test_one_node_is_never_handed_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, step in enumerate((EVEN, LATE)):
        spec = Spec(run="tests", rank=rank, world_size=2, steps=STEPS, step=step)
        late = {"late": {"compute": 0.04 * STEPS}, "late_steps": STEPS} if rank else {}
        write(str(tmp_path), replace(spec, **late)).close()  # pyright: ignore[reportArgumentType]
    assert advise(str(tmp_path), "--for", "slurm") == 1
    assert "on one node" in capsys.readouterr().err


def test_a_short_run_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write(str(tmp_path), Spec(run="tests", rank=rank, world_size=2, steps=10, step=LATE, node=f"n{rank}")).close()
    assert advise(str(tmp_path), "--for", "slurm") == 1
    assert "too short to judge" in capsys.readouterr().err


def test_a_run_without_a_verdict_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYIDLE_LEAST_STEPS", str(STEPS + 1))
    assert advise(job(tmp_path / "ledgers"), "--for", "slurm") == 1
    assert "too short to judge" in capsys.readouterr().err


def test_there_may_be_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(str(tmp_path), "--for", "slurm") == 1
    assert "no ledgers" in capsys.readouterr().err


# -- faults of the hardware confirm


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['whyidle_gpu_lost{gpu="1",uuid="u"} 1'], "GPU 1 is lost"),
        (['whyidle_gpu_xid_events_total{gpu="1",uuid="u",xid="79"} 2'], "GPU 1 reported XID 79"),
        (
            [
                'whyidle_gpu_throttled_seconds_total{gpu="0",uuid="u",reason="hw_thermal",evidence="counter"} 50',
                'whyidle_gpu_observed_seconds_total{gpu="0",uuid="u",source="nvml"} 100',
            ],
            "GPU 0 ran with lowered clocks for 50 % (hw_thermal)",
        ),
        (['whyidle_gpu_ecc_errors_total{gpu="0",uuid="u",kind="uncorrected",since="volatile"} 3'], "3 memory errors"),
        (['whyidle_gpu_lost{gpu="1",uuid="u"} 0'], ""),
        (['whyidle_gpu_xid_events_total{gpu="1",uuid="u",xid="13"} 2'], ""),  # of a program
        (['whyidle_gpu_ecc_errors_total{gpu="0",uuid="u",kind="corrected",since="volatile"} 3'], ""),
    ],
)
def test_faults_of_its_gpus_confirm_a_suspected_node(
    tmp_path: Path, agent: tuple[str, list[str]], capsys: pytest.CaptureFixture[str], lines: list[str], said: str
) -> None:
    address, answer = agent
    answer += lines
    status = advise(job(tmp_path, late_steps=120), "--for", "slurm", address=address)
    captured = capsys.readouterr()
    assert status == (0 if said else 1)
    assert said in captured.out if said else "its agent shows no fault of a GPU" in captured.err


# -- commands that fail


def test_says_that_the_command_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert advise(job(tmp_path / "ledgers"), "--for", "slurm", "--apply") == 1
    captured = capsys.readouterr()
    assert "scontrol is not installed here" in captured.err
    assert "scontrol update NodeName=n2" in captured.out


def test_says_what_a_failing_command_said(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(programs / "scontrol", 'echo "slurm_update error: Invalid user id" >&2; exit 1')
    assert advise(job(tmp_path / "ledgers"), "--for", "slurm", "--apply") == 1
    assert "scontrol failed with status 1: slurm_update error: Invalid user id" in capsys.readouterr().err


def test_says_which_commands_have_worked(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(programs / "kubectl", '[ "$1" = cordon ] || { echo forbidden >&2; exit 3; }')
    assert advise(job(tmp_path / "ledgers"), "--for", "kubernetes", "--apply") == 1
    said = capsys.readouterr().err
    assert "kubectl failed with status 3: forbidden. These commands have worked: kubectl cordon n2." in said


def test_commands_are_lists_of_words() -> None:
    assert json.dumps(commands("slurm", "n1", "a b")) == json.dumps(
        [["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=a b"]]
    )


# -- a Prometheus, for runs of other nodes


Series = tuple[dict[str, str], list[list[Any]]]


@dataclass
class Fleet:
    """What a Prometheus has recorded about a run of four ranks, of which rank 3 on n2 is late."""

    family: str = "straggler"
    corroboration: str = "none_needed"
    minutes: int = 30
    late: int = 28
    """In how many minutes."""
    nodes: tuple[str, ...] = ("n1", "n1", "n2", "n2")
    moved: tuple[str, int] = "", 0
    """To which node rank 3 has moved, and how many minutes ago."""
    until: int = 0
    """How many minutes ago it was late for the last time."""
    alerts: list[dict[str, str]] = field(default_factory=list)

    def answer(self, path: str, asked: dict[str, list[str]]) -> dict[str, Any]:
        run = {"owner": "lab", "run": "big"}
        if path.endswith("/series"):
            return {"data": [{**run, "__name__": spent("run_node_cause")}]}
        query = asked["query"][0]
        if path.endswith("/query_range"):
            end, step = float(asked["end"][0]), float(asked["step"][0])
            labels = {**run, "family": self.family}
            if query.startswith(verdict("5m")):
                labels["corroboration"] = self.corroboration
                return self._matrix((labels, self._points(end, step, 0, self.minutes, "0.3")))
            if query.startswith(culprit("5m")):
                points = self._points(end, step, self.until, self.until + self.late, "1.2")
                return self._matrix(({**labels, "rank": "3"}, points))
            assert query.startswith(f"last_over_time({RANK_PLACE}")
            return self._matrix(*self._places(end, step, run))
        assert re.match(f"{RUN_RANKS}|ALERTS", query), query
        if query.startswith(RUN_RANKS):
            return self._vector([run], "4")
        return self._vector([one for one in self.alerts if f'instance="{one["instance"]}"' in query], "1")

    def _places(self, end: float, step: float, run: dict[str, str]) -> Iterator[Series]:
        node, ago = self.moved
        for rank, home in enumerate(self.nodes):
            labels = {**run, "rank": str(rank)}
            left = max(0, ago - 5) if rank == 3 else 0  # the window of a verdict is five minutes
            yield {**labels, "node": home, "instance": f"{home}:9838"}, self._points(end, step, left, self.minutes, "1")
            if rank == 3 and node:
                yield {**labels, "node": node, "instance": f"{node}:9838"}, self._points(end, step, 0, ago, "1")

    def _points(self, end: float, step: float, first: int, last: int, value: str) -> list[list[Any]]:
        return [[end - step * at, value] for at in reversed(range(first, last))]

    def _matrix(self, *found: Series) -> dict[str, Any]:
        result = [{"metric": labels, "values": values} for labels, values in found if values]
        return {"data": {"resultType": "matrix", "result": result}}

    def _vector(self, labels: list[dict[str, str]], value: str) -> dict[str, Any]:
        return {"data": {"resultType": "vector", "result": [{"metric": one, "value": [0, value]} for one in labels]}}


def ask(fleet: Fleet, *words: str) -> int:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            text = json.dumps({"status": "success", **fleet.answer(self.path, asked)}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            return main(["advise", "--for", "slurm", "--prometheus", url, *words])
        finally:
            server.shutdown()
            thread.join()


def test_a_prometheus_names_the_node(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(Fleet(), "--apply") == 0
    [words] = called(programs)
    assert words[:4] == ["scontrol", "update", "NodeName=n2", "State=DRAIN"]
    assert "28 % of the time for rank 3" in words[4]  # 1.2 of 4 ranks, in 28 of 30 minutes
    assert "confirmed: late in 28 of 30 minutes" in words[4]


def test_a_rank_that_has_moved_blames_the_node_that_it_was_on(programs: Path) -> None:
    assert ask(Fleet(late=25, moved=("n3", 5), until=5), "--apply") == 0
    assert called(programs)[0][2] == "NodeName=n2"


def test_an_alert_on_its_gpus_confirms_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    alerts = [
        {"alertname": "WhyidleGpuThrottled", "instance": "n2:9838", "gpu": "5"},
        {"alertname": "WhyidleGpuLost", "instance": "n1:9838", "gpu": "0"},  # of another node
    ]
    assert ask(Fleet(late=10, alerts=alerts)) == 0
    assert "# confirmed: WhyidleGpuThrottled fires for GPU 5\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        (Fleet(late=10), "suspected, but not confirmed"),
        (Fleet(minutes=5, late=5), "suspected, but not confirmed"),
        (Fleet(minutes=0, late=0), "no verdict was recorded"),
        (Fleet(late=0), "not about one rank"),
        (Fleet(family="network"), "not about one rank"),
        (Fleet(nodes=("n1",) * 4), "all ranks are on one node"),
        (Fleet(nodes=("n1", "n1", "n2")), "not known on which node"),
        (Fleet(late=5, moved=("n3", 10), until=5), "on more than one node"),
        (Fleet(family="storage", corroboration="unconfirmed"), "counters confirm the verdict storage in 0 of 28"),
    ],
)
def test_a_prometheus_may_have_nothing_to_hand_off(
    programs: Path, capsys: pytest.CaptureFixture[str], fleet: Fleet, said: str
) -> None:
    assert ask(fleet, "--apply") == 1
    assert said in capsys.readouterr().err
    assert called(programs) == []


def test_a_confirmed_verdict_of_storage_is_handed_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(Fleet(family="storage", corroboration="confirmed")) == 0
    assert "their storage is slower" in capsys.readouterr().out


def test_says_that_prometheus_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--for", "slurm", "--prometheus", "http://127.0.0.1:1"]) == 1
    assert "no Prometheus answers" in capsys.readouterr().err
