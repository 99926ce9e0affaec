"""The line of the training's own code in which a loop spends its time, as the ledger has it. Real loops."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from support_forks import Forks
from support_ledgers import until
from support_sites import report
from support_training import Outcome, gather

from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger
from whyidle.ledger.threads import RAISED, RUNS, Other, threads_of

SECRET = b"a value of the user"


def run(forks: Forks, folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Outcome:
    process = forks.start(("lines.py", *words), folder, env, recorded=False)
    code = process.wait()
    stdout, stderr = (folder.joinpath(stream).read_text() for stream in ("stdout", "stderr"))
    assert code == 0, stderr
    return gather(folder, code, stdout, stderr)


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("log_metrics", "blocked", ("lines.py", "log_metrics", "-")),
        ("typed", "blocked", ("<string>", "typed", "-")),
        ("encode", "host", ("lines.py", "encode", "json")),
        ("average", "host", ("lines.py", "average", "-")),
        ("score", "outside", ("lines.py", "score", "-")),
        ("forward", "inside", ("lines.py", "forward", "-")),
    ],
)
def test_names_the_function_in_which_the_loop_spends_its_time(
    name: str, kind: str, place: tuple[str, str, str], forks: Forks, tmp_path: Path
) -> None:
    outcome = run(forks, tmp_path, name)
    [ledger] = outcome.ledgers
    where, function, library = ledger.strings[f"{kind}_line"].rsplit(" ", 2)
    assert (where.partition(":")[0], function, library) == place
    assert 0 < ledger.words[f"{kind}_at"][0] <= ledger.words[f"{kind}_looks"][0]
    assert ledger.words[f"{kind}_at"][0] > ledger.words[f"{kind}_looks"][0] // 2
    for file in (tmp_path / "ledgers").iterdir():
        assert SECRET not in file.read_bytes()


@pytest.mark.parametrize(
    ("name", "kind", "function", "on"),
    [
        ("get_batch", "data", "get_batch", "a sleep"),
        ("next", "data", "__next__", "a pipe"),
        ("on_log", "logging", "on_log", "a sleep"),
    ],
)
def test_a_wait_below_a_function_of_a_known_name_is_data_or_logging(
    name: str, kind: str, function: str, on: str, forks: Forks, tmp_path: Path
) -> None:
    run(forks, tmp_path, name)
    told = report(tmp_path / "ledgers")
    [rank] = told["per_rank"]
    to = {"data": "data_read", "logging": "logging"}[kind]
    assert {entry["to"] for entry in rank["sampled"]} >= {to}
    assert rank["seconds"][to] > 0.6 * (rank["seconds"][to] + rank["seconds"]["host_blocked"])
    assert abs(told["unaccounted_seconds"]) < 0.001
    verdict = told["verdict"]
    assert verdict["family"] == {"data": "storage", "logging": "host"}[kind]
    assert f"`{function}` (lines.py:" in verdict["summary"]
    assert verdict["summary"].endswith(f"on {on}")


def test_no_frames_are_sampled_if_that_is_switched_off(forks: Forks, tmp_path: Path) -> None:
    outcome = run(forks, tmp_path, "log_metrics", env={"WHYIDLE_FRAMES": "0"})
    [ledger] = outcome.ledgers
    assert (ledger.strings["blocked_line"], ledger.base_looks, ledger.blocked_looks) == ("", 0, 0)
    assert ledger.hook_states["frames"] == "absent"
    assert ledger.cause_ns["host_blocked"] > 0  # the rest goes on


def test_losses_are_the_same_and_a_fork_in_the_middle_does_not_end_the_looks(forks: Forks, tmp_path: Path) -> None:
    plain = run(forks, tmp_path / "plain", "log_metrics", "plain")
    forked = run(forks, tmp_path / "forked", "log_metrics", "forks")
    assert forked.stdout == plain.stdout
    [ledger] = forked.ledgers
    assert ledger.blocked_looks > 0
    assert ledger.faults == 0
    assert "DeprecationWarning" not in forked.stderr


AWAITED = [
    Other(RAISED, "ValueError", "produce", "produce"),
    Other(RUNS, "", "hangs", "release"),
]


@pytest.mark.parametrize(
    ("name", "call", "others"), [("hangs", "", []), ("awaits", "queue.Queue.get", AWAITED)], ids=["hangs", "awaits"]
)
def test_a_phase_that_lasts_shows_the_line_of_the_training_thread_until_it_ends(
    name: str, call: str, others: list[Other], forks: Forks, tmp_path: Path
) -> None:
    process = forks.start(("lines.py", name), tmp_path, recorded=False)

    def stuck() -> Ledger | None:
        found = [ledger for ledger in read_directory(str(tmp_path / "ledgers"))[0] if ledger.stuck_since_ns]
        return found[0] if found else None

    ledger = until(stuck)
    assert ledger is not None
    assert ledger.strings["stuck_line"].startswith("lines.py:")
    assert ledger.strings["stuck_line"].endswith(f" {name}")
    assert ledger.strings["stuck_call"] in (call, call.replace("Queue.", ""))  # before Python 3.11
    assert [
        one._replace(place=one.place.partition(" ")[2]) for one in threads_of(ledger.strings["stuck_threads"])
    ] == others
    assert SECRET not in Path(ledger.path).read_bytes()
    assert ledger.stuck_since_ns == ledger.phase_since_ns
    assert time.monotonic_ns() - ledger.stuck_since_ns > 1_000_000_000
    (tmp_path / "stop").touch()
    assert process.wait() == 0
    [ledger] = read_directory(str(tmp_path / "ledgers"))[0]
    assert (ledger.strings["stuck_line"], ledger.stuck_since_ns) == ("", 0)
