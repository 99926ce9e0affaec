"""How the suite is run: which failures a test may have before it passes, and which failures end the suite."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import long_tests
import pytest
from long_tests import Last

SUITE = Path(__file__).parents[2] / "tools" / "suite.py"
WATCHED = f"""
import sys
sys.path.insert(0, {str(SUITE.parent)!r})
import long_tests

def pytest_configure(config):
    long_tests.watch(config)
"""
LONG = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_beside(number):
    assert number != 1

@pytest.mark.long
@pytest.mark.alone
def test_alone():
    pass

def test_short():
    assert False
"""
TESTS = """
import pathlib, pytest

def fails(name, times=1):
    seen = pathlib.Path(name)
    failures = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("x" * (failures + 1))
    assert failures >= times

@pytest.mark.xdist_group("a group-1")
@pytest.mark.parametrize("name", ["a@b", "c"])
def test_unsteady(name):
    fails(name, times=1 + (name == "c"))

def test_right():
    pass

@pytest.mark.alone
def test_alone():
    fails("alone")
"""


TAKEN = """
def pytest_sessionfinish(session):
    session.config.cache.set("whyidle/stolen", {"tests/test_some.py::test_starved": %s})
"""
STARVED = """
import pytest

@pytest.mark.alone
def test_starved():
    assert False
"""


def suite(folder: Path, tests: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "test_some.py").write_text(tests)
    (folder / "tests" / "conftest.py").write_text(WATCHED)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone\n    long\n")
    command = [sys.executable, str(SUITE), "-q", "-p", "no:hypothesispytest", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("", 0),
        pytest.param("def test_wrong(): assert False", 1, marks=pytest.mark.long),
        pytest.param("def test_wrong_too_often(): fails('often', 3)", 1, marks=pytest.mark.long),
        pytest.param(
            "@pytest.mark.parametrize('x', range(9))\ndef test_many(x): fails(f'many{x}')", 0, marks=pytest.mark.long
        ),
        pytest.param("import what_is_not_there", 2, marks=pytest.mark.long),
    ],
    ids=["unsteady", "wrong", "wrong too often", "many of one file", "broken"],
)
def test_runs_a_few_failed_tests_again_until_they_pass(tmp_path: Path, more: str, status: int) -> None:
    done = suite(tmp_path, TESTS + more, *["-n", "0"] * bool(more))
    assert done.returncode == status, done.stdout
    unsteady = [line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("unsteady,")]
    many = [f"test_many[{x}]" for x in range(9)] if "test_many" in more else []
    assert unsteady == (["test_unsteady[a@b]", *many, "test_unsteady[c]", "test_alone"] if not status else unsteady)


def test_does_not_repeat_failures_in_many_files(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for number in range(11):
        (tmp_path / "tests" / f"test_{number}.py").write_text("def test_wrong(): assert False")
    done = suite(tmp_path, "", "-n", "0")
    assert (done.returncode, "Run again" in done.stdout) == (1, False)


@pytest.mark.parametrize(("taken", "status"), [(0.12, 0), pytest.param(0.04, 1, marks=pytest.mark.long)])
def test_a_test_that_fails_while_the_cores_are_taken_away_is_not_judged(
    tmp_path: Path, taken: float, status: int
) -> None:
    (tmp_path / "conftest.py").write_text(TAKEN % taken)
    done = suite(tmp_path, STARVED, "-n", "0")
    assert done.returncode == status, done.stdout
    said = [line for line in done.stdout.splitlines() if line.startswith("NOT JUDGED")]
    name = "tests/test_some.py::test_starved"
    assert said == ([] if status else [f"NOT JUDGED, the hypervisor took 12% of the CPU time while it ran: {name}"])


@pytest.mark.parametrize(("words", "count"), [pytest.param((), 1, marks=pytest.mark.long), (("--all",), 3)])
def test_long_tests_run_only_on_request(tmp_path: Path, words: tuple[str, ...], count: int) -> None:
    marked = "@pytest.mark.long\ndef test_a(): pass\n@pytest.mark.long\n@pytest.mark.alone\ndef test_b(): pass\n"
    done = suite(tmp_path, f"import pytest\ndef test_usual(): pass\n{marked}", "-n", "0", *words)
    assert (done.returncode, sum(map(int, re.findall(r"(\d+) passed, ", done.stdout)))) == (0, count), done.stdout
    if words:
        ends = json.loads((tmp_path / "tests" / "long_tests.json").read_text())
        assert [(name[-1], end) for name, (_, end, _) in ends.items()] == [("a", "passed"), ("b", "passed")]


def test_runs_only_a_folder_and_one_test_after_the_other(tmp_path: Path) -> None:
    done = suite(tmp_path, TESTS, "--alone", "tests")
    assert done.returncode == 0, done.stdout
    assert "workers" not in done.stdout
    assert "unsteady, passed when it ran again: tests/test_some.py::test_alone" in done.stdout


def test_slices_run_long_tests_in_turn(tmp_path: Path) -> None:
    """A test is expected to take 30 s, or 15 s if others run beside it, until it has run."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(WATCHED)
    (tmp_path / "tests" / "test_some.py").write_text(LONG)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone\n    long\n")
    command = [sys.executable, str(SUITE), "--slice", "42"]

    def ran() -> tuple[int, dict[str, str]]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        record = json.loads((tmp_path / "tests" / "long_tests.json").read_text())
        assert "The last runs of all" in done.stdout, done.stdout + done.stderr
        return done.returncode, {name.rpartition("::")[2]: end for name, (_, end, _) in record.items()}

    never, passed = "never run", "passed"
    assert ran() == (0, {"test_alone": passed} | dict.fromkeys([f"test_beside[{at}]" for at in range(3)], never))
    whole = {"test_alone": passed, "test_beside[0]": passed, "test_beside[1]": "failed", "test_beside[2]": never}
    assert ran() == (1, whole)


def test_the_next_commits_run_all_long_tests_even_if_nobody_commits_the_record() -> None:
    tests = [long_tests.Test(name, alone=True) for name in "abcde"]
    record = {test.name: Last("2026-01-01", "passed", 10) for test in tests[:4]}
    ran = [long_tests.choose(tests, long_tests.after(number, tests, record, 20), 20) for number in range(4)]
    assert ["".join(test.name for test in slice_) for slice_ in ran] == ["e", "ab", "cd", "e"]


def test_counts_the_commits_since_the_record_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert long_tests.commits(Path("record")) == 0
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q"], check=True)
    Path("record").write_text("{}")
    subprocess.run(["git", "add", "record"], check=True)
    for number in range(3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
    assert long_tests.commits(Path("record")) == 2


def test_a_slice_has_what_failed_and_then_the_tests_that_ran_longest_ago() -> None:
    record = {"a": Last("2026-01-03", "passed", 3), "b": Last("2026-01-01", "passed", 4)}
    tests = [long_tests.Test(name, alone=True) for name in ("a", "b", "new")]
    assert [test.name for test in long_tests.choose(tests, record, 35)] == ["new", "b"]
    assert [test.name for test in long_tests.choose(tests, record, 1)] == ["new"]
    failed = record | {"a": record["a"]._replace(outcome="failed")}
    assert [test.name for test in long_tests.choose(tests, failed, 35)] == ["a", "new"]
    slow = failed | {"a": failed["a"]._replace(seconds=30.0)}
    assert [test.name for test in long_tests.choose(tests, slow, 35)] == ["new", "b"], "the others have their turn"
    here = {f"{__file__}::{name}": last for name, last in record.items()}
    kept = long_tests.merged(tests[1:], record | here, {"new": ("skipped", 0.04)}, "2026-01-04")
    assert kept == here | {"b": record["b"], "new": Last("2026-01-04", "skipped", 0.0)}, "and those of other folders"
    assert long_tests.summary({"t.py::x": kept["b"], "t.py::y": kept["new"]}) == [
        "t.py: 1 passed, 1 skipped (2026-01-01 to 2026-01-04)"
    ]
