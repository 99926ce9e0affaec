"""The demo: a real job on this machine with a known fault must get the verdict that names the fault."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support_demo import DEADLINE, Demo, machine, names_what_was_injected, sums_are_whole
from support_long import long_unless
from support_signals import ignoring

from whyidle.cli.demo.faults import FAULTS
from whyidle.cli.demo.injection import KINDS, choose
from whyidle.cli.demo.places import NoRoom, _check_room
from whyidle.cli.demo.scrape import RankView, parse
from whyidle.cli.demo.truth import Trace, exposed, happened, overlap
from whyidle.cli.demo.view import Scene, picture, stacked
from whyidle.ledger.causes import CAUSES, FAMILIES

pytestmark = pytest.mark.xdist_group("machine")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Demo] = []

    def begin(*arguments: str, **options: Any) -> Demo:
        started.append(Demo(tmp_path, *arguments, **options))
        return started[-1]

    with machine():
        yield begin
        for demo in started:
            demo.kill()


FOUND = [
    # arguments, verdict, late rank; test_prometheus_end_to_end.py has one rank's storage
    (["--inject", "network"], "network", None),
    (["--inject", "cpu"], "cpu", None),
    (["--inject", "straggler"], "straggler", 1),
    (["--inject", "checkpoint"], "storage", None),
]
IDS = [" ".join(row[0][1:]) for row in FOUND]


def on_a_terminal(start: Any, *arguments: str) -> tuple[dict[str, Any], str]:
    """The report of a demo, which stands alone on stdout, and what the live picture on stderr has shown."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(ours, 65536))
            except OSError:  # EIO: its last writer has gone
                return

    demo = start("--json", *arguments, stderr=theirs)
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    code, out, _ = demo.finish()
    reader.join(DEADLINE)
    os.close(ours)
    screen = b"".join(shown).decode()
    assert code == 0, screen
    assert "rank 1" in screen
    return json.loads(out), screen


def is_complete(report: dict[str, Any]) -> None:
    assert set(report["seconds"]) == set(CAUSES)
    assert set(report["families"]) == set(FAMILIES)
    assert sum(report["families"].values()) == pytest.approx(1.0, abs=0.001)
    assert report["verdict"]["family"] in FAMILIES
    assert {"family", "share", "corroborated", "evidence", "late_ranks"} <= set(report["verdict"])
    assert {"run", "ranks", "steps", "wall_seconds", "startup_seconds", "unaccounted_seconds"} <= set(report)
    assert report["ranks"] == len(report["per_rank"]) == 2
    assert report["steps"] > 0
    assert report["startup_seconds"] > 0


@pytest.mark.alone
@pytest.mark.parametrize(("arguments", "family", "late"), long_unless(FOUND[1:2], FOUND), ids=IDS)
def test_the_verdict_names_what_was_injected(start: Any, arguments: list[str], family: str, late: int | None) -> None:
    report, screen = on_a_terminal(start, "--seconds", "12", *arguments)
    names_what_was_injected(report, family, late)
    is_complete(report)
    assert report["run"] == f"demo-injected-{report['injected']['kind']}"
    assert f"INJECTED {report['injected']['kind']}" in screen


def test_without_a_fault_nothing_is_injected(start: Any) -> None:
    report, _ = on_a_terminal(start, "--seconds", "3")
    is_complete(report)
    assert (report["run"], report["injected"]["kind"]) == ("demo", "none")
    assert report["injected"]["seconds"] == report["injected"]["recovered_seconds"] == 0
    sums_are_whole(report)


def test_a_signal_in_the_middle_of_starting_ends_everything(start: Any) -> None:
    demo = start("--seconds", "600")
    assert demo.process.stderr.readline()
    time.sleep(1.0)
    demo.process.send_signal(signal.SIGINT)
    code, out, err = demo.finish()
    assert code == 128 + signal.SIGINT
    assert out == ""
    assert "stopped by SIGINT" in err


@pytest.mark.long
def test_survives_a_lost_terminal_under_nohup_and_ends_at_sigterm(start: Any) -> None:
    demo = start("--seconds", "600", launcher=ignoring(signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    assert len(demo.wait_for_steps()) >= 7  # demo, agent, torchrun, two ranks with a worker each
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        demo.process.send_signal(number)
    code, out, err = demo.finish()
    assert code == 128 + signal.SIGTERM
    assert out == ""
    assert "stopped by SIGTERM" in err


@pytest.mark.long
def test_a_rank_that_dies_ends_the_demo_with_its_log(start: Any) -> None:
    demo = start("--seconds", "600")
    demo.wait_for_steps()
    demo.rank(1).kill()
    code, out, err = demo.finish()
    assert code == 1
    assert out == ""
    assert "the training job failed" in err
    assert "job.py FAILED" in err


def test_an_agent_that_dies_ends_the_demo(start: Any) -> None:
    demo = start("--seconds", "600")
    assert demo.process.stderr.readline()
    deadline = time.monotonic() + DEADLINE
    while not (agents := [one for one in demo.processes() if "agent" in one.cmdline()]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    agents[0].kill()
    code, _, err = demo.finish()
    assert code == 1
    assert "the agent ended" in err


BAD_FLAGS = [
    (["--inject", "gremlins"], "invalid choice"),
    (["--inject", "storage", "--inject-rank", "2"], "the ranks are 0 to 1"),
    (["--inject", "storage", "--inject-rank", "x"], "give 'all' or the number of a rank"),
    (["--inject", "storage", "--inject-rank=-1"], "give 'all' or the number of a rank"),
    (["--inject", "straggler", "--inject-rank", "all"], "one rank late"),
    (["--inject", "straggler", "--ranks", "1"], "at least 2 ranks"),
    (["--inject", "network", "--inject-rank", "0"], "all ranks take part"),
    (["--inject-rank", "0"], "needs --inject"),
    (["--inject-delay", "50"], "needs --inject"),
    (["--inject", "storage", "--inject-delay", "0"], "from 1 to 60000"),
    (["--seconds", "0"], "from 1 to 86400"),
    (["--seconds", "nan"], "from 1 to 86400"),
    (["--ranks", "0"], "from 1 to 64"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_FLAGS, ids=[" ".join(row[0]) for row in BAD_FLAGS])
def test_rejects_bad_flags_with_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from whyidle.cli.main import main

    try:
        code = main(["demo", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert sentence in capsys.readouterr().err


def test_says_what_to_install_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from whyidle.cli.main import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install torch" in done.stderr


def test_too_little_room_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match=r"the demo needs .* are free; set it"):
        _check_room(str(tmp_path), 1 << 60, "set it")


def test_the_job_and_the_command_know_the_same_faults() -> None:
    assert set(FAULTS) == set(KINDS)
    for name in set(KINDS) - {"none"}:
        injection = choose(name, None, 4)
        assert injection.ranks == ((3,) if name == "straggler" else (0, 1, 2, 3))
        assert injection.label.startswith(f"INJECTED {name}: ")
    assert choose("none", None, 2).label == ""
    assert choose("storage", "1", 2).ranks == (1,)


def test_the_job_does_not_import_whyidle() -> None:
    for name in ("job.py", "faults.py"):
        source = Path(__file__).parents[2].joinpath("cli", "demo", name).read_text()
        assert "import whyidle" not in source
        assert "from whyidle" not in source
        assert "from ." not in source


gaps = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=20)


def _intervals(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, at = [], 0
    for gap, length in gaps:
        found.append((at + gap, at + gap + length))
        at += gap + length
    return found


@given(gaps, gaps)
def test_overlap_equals_that_of_counting(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    one, other = _intervals(ours), _intervals(theirs)
    covered = [{tick for start, end in intervals for tick in range(start, end)} for intervals in (one, other)]
    assert overlap(one, other) == len(covered[0] & covered[1])


def test_ignores_notes_before_the_window(tmp_path: Path) -> None:
    tmp_path.joinpath("injected-0-77").write_text("0 1000000000\n1500000000 3000000000\n")
    tmp_path.joinpath("injected-10-77").write_text("0 9000000000\n")
    tmp_path.joinpath("waits-0-78").write_text("0 1200000000\n2500000000 4000000000\n")
    trace = Trace(str(tmp_path), {0: 2_000_000_000})
    assert happened(trace, [0]) == 1.0
    assert exposed(trace, [0]) == 0.5


EXPOSITION = """\
# HELP whyidle_device_seconds_total x
# TYPE whyidle_device_seconds_total counter
whyidle_device_seconds_total{cause="compute",device="cpu",family="compute",node="n",rank="1",run="demo"} 6.0
whyidle_device_seconds_total{cause="data_read",device="cpu",family="storage",node="n",rank="1",run="demo"} 2.0
whyidle_device_seconds_total{cause="startup",device="cpu",family="host",node="n",rank="1",run="demo"} 9.0
# HELP whyidle_device_pending_seconds x
# TYPE whyidle_device_pending_seconds gauge
whyidle_device_pending_seconds{rank="1",run="demo"} 1.0
# HELP whyidle_phase_open_seconds x
# TYPE whyidle_phase_open_seconds gauge
whyidle_phase_open_seconds{device="cpu",node="n",phase="data",rank="1",run="demo"} 0.5
# HELP whyidle_steps_total x
# TYPE whyidle_steps_total counter
whyidle_steps_total{rank="1",run="demo"} 40.0
# HELP whyidle_rank_up x
# TYPE whyidle_rank_up gauge
whyidle_rank_up{rank="1",run="demo"} 1.0
"""


def test_draws_a_picture_from_a_scrape() -> None:
    ranks = parse(EXPOSITION)
    rank = ranks[1]
    assert (rank.steps, rank.phase, rank.alive) == (40, "data", True)
    assert {name: spent for name, spent in rank.families.items() if spent} == {
        "compute": 6.0,
        "storage": 2.0,
        "communication": 1.0,  # a wait that awaits its split
    }
    assert rank.seconds == 9.5
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(picture(Scene("a title", "INJECTED storage", 30.0, ranks=ranks)))
    text = console.export_text()
    for part in ("a title", "INJECTED storage", "rank 1", "data", "compute", "communication", "10 of 30 s", "40 steps"):
        assert part in text


def test_a_bar_is_full_for_any_shares() -> None:
    families = {name: 1.0 + index / 7 for index, name in enumerate(FAMILIES)}
    assert len(stacked(families).plain) == len(stacked({**families, "compute": 1000.0}).plain) == 48
    assert stacked(RankView().families).plain == ""
