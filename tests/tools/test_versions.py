"""The table of tested versions: rows come from tests that ran, and a claim without a row that passed is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import versions
from versions import CLAIMED, Row

TESTS = """
import pytest
def test_passes(): pass
def test_alertmanager(): pass
def test_fails(): assert {good}
@pytest.mark.parametrize("server", ["victoria-metrics"])
def test_skips(server): pytest.skip("is not installed")
@pytest.mark.xfail
def test_known(): assert False
"""
PAGES = {
    "README.md": "It works with torch 2.4 or later.",
    "docs/limits.md": "<!-- versions: begin -->\n<!-- versions: end -->\n",
    "docs/training.md": "You need `python3` (3.10 or later).",
    "pyproject.toml": 'project.classifiers = ["Programming Language :: Python :: 3.10"]',
    "constraints.txt": "torch==2.13.0\n",
    "tests/conftest.py": "import versions\ndef pytest_configure(config): versions.watch(config)\n",
}
PACKAGES = [
    *("prometheus=2.42.0+ds-5", "promtool=2.42.0+ds-5", "prometheus-alertmanager=0.25.0-1"),
    "victoria-metrics=1.79.5+ds1",
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in PAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(Path(versions.__file__).parent))
    return tmp_path


def run(root: Path, good: bool, *of: str) -> int:
    (root / "tests/test_it.py").write_text(TESTS.format(good=good))
    return versions.main(["run", "make it", *of, "--", sys.executable, "-m", "pytest", "-q", str(root / "tests")], root)


def test_a_program_that_no_test_ran_has_no_row(root: Path) -> None:
    assert run(root, True, *PACKAGES) == 0
    assert [(row.of, row.result) for row in versions.read(root)] == [
        ("Alertmanager 0.25.0", "1 passed"),
        ("Prometheus 2.42.0", "3 passed, 1 skipped, 1 known to be wrong"),
    ]
    assert "| Prometheus 2.42.0 | 3 passed, 1 skipped, 1 known to be wrong | " in (root / versions.PAGE).read_text()


def test_a_run_that_fails_is_recorded_and_is_an_error_of_the_check(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(root, False, "Python=3.10.13,torch=2.4.1") == 1
    [row] = versions.read(root)
    assert (row.of, row.failed, row.passed) == ("Python 3.10.13, torch 2.4.1", 1, 2)
    assert versions.main(["--check"], root) == 1
    assert "Python 3.10.13, torch 2.4.1: 1 **failed**, 2 passed, 1 skipped" in capfd.readouterr().err
    assert run(root, True, "Python=3.10.14,torch=2.4.1") == 0
    assert [row.of for row in versions.read(root)] == ["Python 3.10.14, torch 2.4.1"], "the same command ran again"


def test_a_command_that_breaks_before_its_tests_counts_as_failed(root: Path) -> None:
    assert versions.main(["run", "make it", *PACKAGES, "--", "false"], root) == 1
    assert {row.result for row in versions.read(root)} == {"1 **failed**"}


def test_a_command_with_fewer_tests_replaces_nothing_unless_it_fails() -> None:
    whole = Row("Prometheus 3.5.3", "2026-11-25", "make it", 585, 0, 0)
    some = Row("Prometheus 3.5.3", "2026-11-26", "make it TESTS=some", 100, 0, 0)
    assert versions.merged([whole], [some]) == [whole]
    assert versions.merged([whole], [some._replace(failed=1)]) == [some._replace(failed=1)]
    assert versions.merged([some], [whole]) == [whole]


def test_a_command_in_another_python_replaces_nothing() -> None:
    one = Row("Python 3.11.7, torch 2.13.0", "2026-11-25", "make it", 5, 0, 0)
    other = Row("Python 3.13.0, torch 2.13.0", "2026-11-26", "make it", 5, 0, 0)
    assert versions.merged([one], [other]) == [one, other]


def test_each_claim_needs_a_run_that_passed(root: Path) -> None:
    passed = [Row(f"{name} 1.0", "2026-11-26", "make it", 1, 0, 0) for name in CLAIMED]
    versions.write(passed, root)
    assert [error.split(",")[0] for error in versions.wrong(root)] == [
        "README.md: claims torch 2.4",
        "constraints.txt: claims torch 2.13.0",
        "docs/training.md: claims Python 3.10",
        "pyproject.toml: claims Python 3.10",
    ]
    pairs = ("Python 3.10.13, torch 2.4.1", "Python 3.13.0, torch 2.13.0+cpu")
    versions.write([*passed, *(Row(of, "2026-11-26", "make it", 1, 0, 0) for of in pairs)], root)
    assert list(versions.wrong(root)) == []
    assert versions.main(["--check"], root) == 1, "the table is old"
    assert (versions.main([], root), versions.main(["--check"], root)) == (0, 0)
    versions.write(passed[1:], root)
    assert "tools/versions.py: claims Python, but no run of it in tests/versions.json passed" in versions.wrong(root)
