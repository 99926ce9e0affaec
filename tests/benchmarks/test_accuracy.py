"""docs/accuracy.md: its cells exist, its rows follow from results, and a run continues where it was interrupted."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import accuracy
import accuracy_page
import pytest
from accuracy_cells import CELLS, DEVICES, PEERS, Cell, Finding, Result, expected, judge, read
from accuracy_notes import NOTES, note

ROOT = Path(__file__).parents[2]
READS, LINK, SOUND = (Cell("cpu", "hsdp", fault) for fault in ("slow-reads", "slow-link", "nothing"))
RIGHT = Finding("storage", 0.4, "storage", 0.41, -0.01, 1, True, 0.0)
WRONG = Finding("compute", 0.9, "network", 0.3, -0.2, rest=0.0, wrong=["the verdict is compute, not network"])
PEER = Cell("traceml", "1-rank", "storage")


def result(cell: Cell, finding: Finding | None = RIGHT, reason: str = "", commit: str = "abc") -> Result:
    return Result(cell, "2026-11-26", commit, "2 shared cores", 0.1, reason, finding)


def written(*results: Result) -> str:
    return accuracy_page.page(CELLS, {one.cell: one for one in results})


def row(page: str, job: str, fault: str) -> list[str]:
    """The first row of this job and fault."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {job} | {fault} |"))
    return [word.strip() for word in line.strip("|").split("|")]


def test_a_row_has_the_truth_and_the_verdict() -> None:
    cells = row(written(result(READS)), "hsdp", "slow-reads")
    assert cells[2:] == ["storage 41.0%", "storage 40.0%", "-1.0", "rank 1", "0.00%", "right", ""]


def test_a_wrong_cell_stays_with_its_number_and_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOTES, ("cpu", "", "slow-link"), "known reason")
    cells = row(written(result(LINK, WRONG)), "hsdp", "slow-link")
    assert cells[4] == "-20.0"
    assert cells[-2:] == ["**wrong**", "the verdict is compute, not network; known reason"]


def test_a_range_has_both_ends() -> None:
    assert row(written(result(READS, replace(RIGHT, least=0.38))), "hsdp", "slow-reads")[2] == "storage 38.0% to 41.0%"


def test_a_cell_that_could_not_run_says_why() -> None:
    page = written(result(LINK, None, "a slow link needs root"), result(PEER, None, "it is not installed"))
    assert row(page, "hsdp", "slow-link")[-2:] == ["not run", "a slow link needs root"]
    assert row(page, "fsdp2", "slow-reads")[-2:] == ["not run", "it has no result yet"]
    assert "not run: it is not installed" in page


def test_a_cell_of_another_commit_says_so() -> None:
    page = written(result(READS), result(SOUND), replace(result(LINK), date="2026-11-25", commit="old"))
    assert row(page, "hsdp", "slow-link")[-1] == "run on 2026-11-25 at `old`"
    assert row(page, "hsdp", "nothing")[-1] == ""
    assert "\nRun on 2026-11-26 at `abc`.\n" in page


def test_another_tool_has_the_truth_of_its_own_run() -> None:
    said = Finding("INPUT-BOUND", family="storage", share=0.6)
    assert "| 1-rank | storage | not run | INPUT-BOUND (truth: 60.0%) |" in written(result(PEER, said))


def test_the_summary_counts_what_ran() -> None:
    lines = written(result(READS), result(LINK, WRONG), result(SOUND, None, "reason")).splitlines()
    (summary,) = [line for line in lines if line.startswith("| [CPU ranks]")]
    assert summary.startswith("| [CPU ranks](#cpu-ranks) | 1 of 2 | 20.0 points | 10.5 points | 1 of 1 |")


def test_a_page_has_a_row_for_every_cell() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", written(), re.MULTILINE)
    ours = [cell for cell in CELLS if cell.device not in PEERS]
    assert {(cell.job, cell.fault or "–") for cell in ours} <= set(rows)


def test_every_row_of_the_page_in_docs_is_an_existing_cell() -> None:
    sections = re.split(r"^## ", (ROOT / "docs" / "accuracy.md").read_text(), flags=re.MULTILINE)
    tables = {section.partition("\n")[0]: section for section in sections}
    for device in DEVICES:
        lines = re.findall(r"^\| (\S+) \| (\S+) \|.*$", tables[accuracy_page.TITLES[device]], re.MULTILINE)
        found = [Cell(device, job, "" if fault == "–" else fault) for job, fault in lines[2:]]
        assert found
        assert [cell for cell in found if cell not in CELLS] == []


def test_notes_are_about_existing_cells() -> None:
    assert {key for cell in CELLS for key in NOTES if note(cell) == NOTES[key]} == set(NOTES)


def test_names_of_cells_are_unique() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    for one in (result(READS), result(LINK, None, "reason")):
        one.write(tmp_path)
    assert read(tmp_path) == {READS: result(READS), LINK: result(LINK, None, "reason")}


def test_a_run_continues_with_cells_that_have_no_finding(tmp_path: Path) -> None:
    result(READS).write(tmp_path)
    result(LINK, None, "reason").write(tmp_path)
    assert accuracy.todo([READS, LINK, SOUND], read(tmp_path), fresh=False) == [LINK, SOUND]
    assert accuracy.todo([READS], read(tmp_path), fresh=True) == [READS]


def test_a_run_writes_each_result_when_it_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(cells: list[Cell]) -> object:
        yield result(cells[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy, "measured", interrupted)
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--results", str(tmp_path), "--only", "cpu-hsdp"])
    assert accuracy.main() == 130
    assert [json.loads(path.read_text())["cell"]["job"] for path in tmp_path.iterdir()] == ["hsdp"]


def test_a_page_needs_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a new checkout would overwrite the page of an earlier run."""
    monkeypatch.setattr(accuracy, "PAGE", tmp_path / "accuracy.md")
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--results", str(tmp_path / "none"), "--page"])
    with pytest.raises(SystemExit):
        accuracy.main()
    assert "has no results" in capsys.readouterr().err
    assert not (tmp_path / "accuracy.md").exists()


REPORT = {
    "verdict": {"family": "storage", "share": 0.4, "late_ranks": [{"rank": 1}]},
    "families": {"storage": 0.2, "network": 0.1},
    "per_rank": [{"seconds": {"compute": 6.0, "data_read": 4.0}, "wall_seconds": 10.0}],
}


def test_a_verdict_is_right_within_five_points() -> None:
    assert judge(REPORT, {"storage": 0.44}, ["storage"], 1).wrong == []
    assert judge(REPORT, {"storage": 0.5}, ["storage"], 1).wrong == ["storage differs by -10.0 points"]


def test_a_wrong_family_is_compared_with_its_share_in_the_table() -> None:
    finding = judge(REPORT, {"network": 0.3}, ["network"])
    assert finding.wrong == ["the verdict is storage, not network", "network differs by -20.0 points"]


def test_another_culprit_and_a_rest_are_wrong() -> None:
    report = {**REPORT, "per_rank": [{"seconds": {"compute": 9.9}, "wall_seconds": 10.0}]}
    wrong = judge(report, {"storage": 0.4}, ["storage"], 0).wrong
    assert wrong == ["the verdict does not name rank 0 first", "the causes miss the wall time by 1.00%"]


def test_families_near_the_threshold_are_both_right() -> None:
    shares = {"compute": 0.9, "storage": 0.0}
    assert expected({**shares, "network": 0.04}) == ("compute",)
    assert expected({**shares, "network": 0.08}) == ("compute", "network")
    assert expected({**shares, "network": 0.12}) == ("network", "compute")
    assert expected({**shares, "network": 0.30}) == ("network",)


def test_an_injected_fault_below_the_threshold_is_not_a_verdict() -> None:
    assert expected({"compute": 0.7, "storage": 0.2, "network": 0.1}, "network") == ("network",)
    assert expected({"compute": 0.97, "storage": 0.03}, "storage") == ("compute",)


def test_every_device_has_a_section() -> None:
    headings = re.findall(r"^## (.+)$", accuracy_page.TEMPLATE.read_text(), re.MULTILINE)
    assert list(accuracy_page.TITLES) == list(DEVICES)
    assert set(accuracy_page.TITLES.values()) <= set(headings)


def test_families_of_which_only_the_sum_is_known_are_compared_together() -> None:
    finding = judge(REPORT, {"storage": 0.1, "network": 0.25}, ["storage", "network"], together=("storage", "network"))
    assert (finding.family, round(finding.error or 0, 3), finding.wrong) == ("storage + network", -0.05, [])
