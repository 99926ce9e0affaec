"""`whyidle report`, and the command line in general."""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import DEADLINE_SECONDS, Spec, ended
from support_sites import clean_env

from whyidle import __version__
from whyidle.cli.durations import duration
from whyidle.cli.main import COMMANDS, main
from whyidle.cli.report import COLOURS, MARKS, render_text
from whyidle.cli.terminal import print_anything
from whyidle.ledger.causes import FAMILIES
from whyidle.ledger.directory import read_directory
from whyidle.verdict.report import build_report

FAST = Spec(rank=0, steps=100, step={"compute": 0.05, "straggler": 0.04, "network": 0.01})
SLOW = Spec(rank=1, steps=100, step={"compute": 0.05, "data_read": 0.04, "network": 0.01}, late={"storage": 4.0})

TEXT = """\
run lab/r1 · 2 ranks, ended · 100 steps in 10.0 s · startup 3.0 s
steps    100 ms (median), 95 % take at most 100 ms

rank   steps   wall s   compute   storage   network   straggler
   0     100     10.0    50.0 %     0.0 %    10.0 %      40.0 %
   1     100     10.0    50.0 %    40.0 %    10.0 %       0.0 %
 all             20.0    50.0 %    20.0 %    10.0 %      20.0 %

compute     compute            10.00 s    50.0 %   ████████████████████
data_read   storage             4.00 s    20.0 %   ████████
straggler   straggler           4.00 s    20.0 %   ████████
network     network             2.00 s    10.0 %   ████

████████████████████████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒░░░░░░░░░░░░░░░░
█ compute 50 %  ▓ storage 20 %  ▒ network 10 %  ░ straggler 20 %

verdict  storage 40 % — rank 1 is late: data workers are blocked
         · rank 1: 4.0 s waiting for a worker that was blocked (data_read)
         · rank 0 waited 4.0 s for rank 1, which was late by storage

What to change (gain in time; of rank-hours so far; the changes do not add up)
1. saves 20 % (0 to 20 %), 0.00111 rank-hours · data.cache
   Copy the data to a local disk or into memory before the training, and read it there.
   because the loop waits for what makes its batches, which is blocked 20 % of the time
   check: `data_read` falls
2. saves 20 % (0 to 20 %), 0.00111 rank-hours · data.ahead
   Make batches ahead, in a thread or in a DataLoader with workers, so that the loop computes meanwhile.
   because the loop makes or awaits its batches without torch's DataLoader 20 % of the time, 0 % on a CPU
   check: `data_read` and `data_cpu` fall
"""


def whyidle(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in this process, which saves a third of a second."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def process(*words: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    program = ["-m", "whyidle.cli.main"] if script is None else ["-c", script]
    return subprocess.run([sys.executable, *program, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def test_prints_text(tmp_path: Path) -> None:
    ended(tmp_path, FAST, SLOW)
    for way in (process, whyidle):
        done = way("report", "--dir", str(tmp_path))
        assert (done.returncode, done.stderr, done.stdout) == (0, "", TEXT)


def test_title_says_how_many_attempts_it_adds_up(tmp_path: Path) -> None:
    ended(tmp_path, FAST, SLOW, Spec(rank=1, steps=10, step={"compute": 0.05}, attempt=1))
    title = whyidle("report", "--dir", str(tmp_path)).stdout.splitlines()[0]
    assert title.startswith("run lab/r1 · 2 ranks, 2 attempts together, ended · 110 steps")


def test_prints_json(tmp_path: Path) -> None:
    ended(tmp_path, FAST, SLOW)
    report = json.loads(whyidle("report", "--json", "--dir", str(tmp_path)).stdout)
    keys = ["run", "ranks", "steps", "wall_seconds", "startup_seconds", "seconds", "families", "verdict", "per_rank"]
    assert {*keys, "unaccounted_seconds"} <= set(report)
    assert report["verdict"]["family"] == "storage"
    assert [one["id"] for one in report["advice"]] == ["data.cache", "data.ahead"]
    assert {"family", "share", "corroborated", "evidence", "late_ranks"} <= set(report["verdict"])


def test_each_family_has_a_unique_mark_and_colour() -> None:
    for looks in (MARKS, COLOURS):
        assert tuple(sorted(looks)) == tuple(sorted(FAMILIES))
        assert len(set(looks.values())) == len(FAMILIES)
    assert {len(mark) for mark in MARKS.values()} == {1}


def test_colours_do_not_change_the_text(tmp_path: Path) -> None:
    ended(tmp_path, FAST, SLOW)
    report = build_report(("lab", "r1"), read_directory(str(tmp_path), steps=True)[0], 0)
    painted = render_text(report, colour=True)
    assert "\x1b[33mstorage 40 %\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == render_text(report, colour=False)
    assert TEXT.startswith(render_text(report, colour=False))  # advice has no colour; the command adds it


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_prints_on_a_terminal_that_lacks_characters(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    print_anything()
    print(TEXT + "".join(MARKS.values()) + " naïve 図 \udce4")
    sys.stdout.flush()
    shown = raw.getvalue().decode(encoding)
    assert "verdict  storage 40 % - rank 1 is late" in shown
    assert len(set(shown.splitlines()[-1].split()[0])) == len(MARKS), "each family keeps a mark of its own"
    assert shown.endswith("? ?\n")


def test_shows_the_ranks_that_computed_least_of_many(tmp_path: Path) -> None:
    ended(tmp_path, *(Spec(rank=rank, world_size=64, steps=9, step={"compute": 1.0 + rank, "host": 20.0})
                      for rank in range(40)))  # fmt: skip
    text = whyidle("report", "--dir", str(tmp_path)).stdout
    assert "40 ranks of 64 here" in text
    assert "(not shown: 24 ranks that computed more)" in text
    assert "\n  15 " in text
    assert "\n  16 " not in text


def test_reports_the_newest_of_several_runs_and_names_the_others(tmp_path: Path) -> None:
    ended(tmp_path, Spec(run="old", created=1), Spec(run="new", created=2))
    done = whyidle("report", "--dir", str(tmp_path))
    assert done.stdout.startswith("run lab/new ")
    assert "verdict  none yet — no rank has begun its first step" in done.stdout
    assert done.stderr == "whyidle report: showing lab/new; also here: lab/old\n"
    done = whyidle("report", "--dir", str(tmp_path), "old")
    assert (done.stdout.startswith("run lab/old "), done.stderr) == (True, "")


def test_runs_of_one_name_of_two_owners_are_separate(tmp_path: Path) -> None:
    ended(tmp_path, replace(FAST, owner="team-a"), replace(SLOW, owner="team-b"), Spec(run="other", created=1))
    asked = whyidle("report", "--dir", str(tmp_path), "--run", "r1")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "whyidle report: several owners have a run r1: team-a, team-b. Choose one with --owner.\n"
    for owner, ranks in (("team-a", [0]), ("team-b", [1])):
        done = whyidle("report", "--dir", str(tmp_path), "--run", "r1", "--owner", owner, "--json")
        report = json.loads(done.stdout)
        assert (report["owner"], report["run"]) == (owner, "r1")
        assert [rank["rank"] for rank in report["per_rank"]] == ranks
        # A report prints both together, so that is a name, too.
        assert whyidle("report", "--dir", str(tmp_path), "--run", f"{owner}/r1", "--json").stdout == done.stdout
    nobodys = whyidle("report", "--dir", str(tmp_path), "--run", "r1", "--owner", "team-c")
    assert nobodys.returncode == 1
    assert "no ledger of run r1 of owner team-c" in nobodys.stderr
    newest = whyidle("report", "--dir", str(tmp_path), "--owner", "team-a")
    assert newest.stdout.startswith("run team-a/r1 ")
    assert newest.stderr == ""


def test_reports_an_empty_directory(tmp_path: Path) -> None:
    done = whyidle("report", "--dir", str(tmp_path / "absent"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"whyidle report: no ledgers in {tmp_path / 'absent'}\n"
    ended(tmp_path, FAST)
    (tmp_path / "0-0-bad.ledger").touch()
    done = whyidle("report", "--dir", str(tmp_path), "--run", "nope")
    assert done.returncode == 1
    assert f"no ledger of run nope in {tmp_path}, but there are ledgers of lab/r1" in done.stderr
    assert "0-0-bad.ledger" in done.stderr


def test_shows_problems(tmp_path: Path) -> None:
    ended(tmp_path, Spec(steps=3, step={"compute": 0.1}, hooks={"dcp": "failed"}))
    (tmp_path / "0-0-bad.ledger").touch()
    text = whyidle("report", "--dir", str(tmp_path)).stdout
    assert "problem  the hook dcp failed on 1 of 1 ranks" in text
    assert "0-0-bad.ledger: not a ledger" in text


# -- the command itself


def test_a_folder_that_cannot_be_written_gives_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["rules", "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"whyidle: {tmp_path / 'file'}: File exists\n"


def test_prints_help_and_version() -> None:
    text = " ".join(whyidle("--help").stdout.split())  # as wide as the terminal
    for command in COMMANDS:
        assert command.name in text
        assert command.help in text
    assert process("--version").stdout == f"whyidle {__version__}\n"
    assert whyidle().returncode == 2
    assert process("nonsense").returncode == 2
    assert whyidle("report", "--", "more").returncode == 2


@pytest.mark.parametrize(("missing", "command"), [("rich", "demo"), ("psutil", "demo")])
def test_names_a_missing_extra_in_a_sentence(missing: str, command: str) -> None:
    script = (
        f"import os, sys; sys.modules[{missing!r}] = None\nprint(os.getpid(), flush=True)\n"
        "from whyidle.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = process(command, script=script)
    assert done.returncode == 2
    assert not glob.glob(f"/dev/shm/whyidle-demo-{done.stdout.strip()}-*"), "its directory remains"
    assert done.stderr == f"whyidle: this command needs {missing}: pip install 'whyidle[agent]'\n"


def test_report_needs_no_extra_and_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('prometheus_client', 'rich', 'psutil', 'torch', 'pynvml'): sys.modules[name] = None\n"
        "from whyidle.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    ended(tmp_path, FAST, SLOW)
    assert process("report", "--dir", str(tmp_path), script=script).stdout == TEXT


def test_a_closed_pipe_gives_no_traceback(tmp_path: Path) -> None:
    ended(tmp_path, FAST, SLOW)
    command = f"{sys.executable} -m whyidle.cli.main report --json --dir {tmp_path} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("15m", 900.0), ("24h", 86400.0), ("1h30m", 5400.0), ("250ms", 0.25), ("0", 0)]
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "m", "-1s", "1.5", "1 h", "1y"])
def test_rejects_invalid_durations(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


@pytest.mark.parametrize("recorded_in", ["C", "C.UTF-8"])
def test_finds_a_run_by_its_name_in_any_locale(recorded_in: str, tmp_path: Path) -> None:
    name = "é".encode()
    (tmp_path / "torch.py").touch()  # it takes no seconds to import
    ledgers = {"WHYIDLE_DIR": str(tmp_path / "ledgers"), "PYTHONPATH": str(tmp_path)}
    env = clean_env() | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **ledgers}

    def run(locale: str, *words: str | bytes) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "whyidle", *words]
        return subprocess.run(command, env=env | {"LC_ALL": locale}, capture_output=True, timeout=60, check=False)

    training = (sys.executable, "-c", "import whyidle; whyidle.attach()")
    rank = run(recorded_in, "run", "--run", name, "--", *training)
    assert (rank.returncode, rank.stderr) == (0, b"")
    for read_in in ("C", "C.UTF-8"):
        report = run(read_in, "report", "--run", name, "--json")
        assert report.returncode == 0, (read_in, report.stderr)
        assert json.loads(report.stdout)["run"] == "é"
