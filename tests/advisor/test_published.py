"""The published estimate: which figures its source prints, which are derived, and what its formulas give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whyidle.advisor.traffic import published
from whyidle.advisor.traffic.deadline import Deadline, switch_days
from whyidle.advisor.traffic.published_figures import DEADLINE, Figure, others, table
from whyidle.cli.main import main
from whyidle.cli.traffic.publication import in_unit

DOCS = Path(__file__).parents[2] / "docs" / "traffic.md"

QUOTED = [
    # what                                                 synchronisations    the source prints     label
    ("data parallel, forward", "0", None, "derived"),
    ("data parallel, backward", "1", "1396 PB", "printed"),
    ("FSDP, forward", "80", "175 PB", "printed"),
    ("FSDP, backward", "80", "175 PB", "printed"),
    ("tensor parallel, forward", "160 × 156·10⁹", "21,840 PB", "printed"),
    ("tensor parallel, backward", "160", "26,622 PB", "printed"),
    ("pipeline, forward", "7", "17.9 PB", "printed"),
    ("pipeline, backward", "7", "17.9 PB", "printed"),
    ("8 × 8 × 16, forward", None, None, "derived"),
    ("8 × 8 × 16, backward", None, None, "derived"),
    ("8 × 8 × 16, both", None, "about 85 EB", "printed"),
    ("mini-batches of an epoch, N", None, "about 178,000", "printed"),
    ("bytes for each sample", None, "more than 100 GB", "printed"),
    ("one epoch through one switch of 51.2 Tbit/s", None, "about 20 days", "printed"),
    ("switches of 51.2 Tbit/s for 100 epochs in 100 days", None, "at least 20", "printed"),
]
"""The figures as the source prints them, and those that it does not print."""

EVALUATED = {
    # what its formulas give, by how much that exceeds what it prints in %, and what rings move
    "data parallel, forward": ("0 PB", None, "0 PB"),
    "data parallel, backward": ("1,396 PB", 0.0, "349 PB"),
    "FSDP, forward": ("174 PB", -0.3, "174 PB"),
    "FSDP, backward": ("174 PB", -0.3, "349 PB"),
    "tensor parallel, forward": ("22,901 PB", 4.9, "5,725 PB"),
    "tensor parallel, backward": ("27,915 PB", 4.9, "5,725 PB"),
    "pipeline, forward": ("17.9 PB", 0.0, "17.9 PB"),
    "pipeline, backward": ("17.9 PB", 0.0, "17.9 PB"),
    "8 × 8 × 16, forward": ("22.9 EB", None, "5.9 EB"),
    "8 × 8 × 16, backward": ("61.8 EB", None, "6.6 EB"),
    "8 × 8 × 16, both": ("84.7 EB", -0.3, "12.5 EB"),
    "mini-batches of an epoch, N": ("178,027", 0.0, None),
    "bytes for each sample": ("232 GB", 132.4, "34.2 GB"),
    "one epoch through one switch of 51.2 Tbit/s": ("153 days", 666.3, "22.6 days"),
    "switches of 51.2 Tbit/s for 100 epochs in 100 days": ("154", 670.0, "23"),
}


def figures() -> dict[str, Figure]:
    return {one.what: one for one in (*table(), *others())}


def test_quotes_what_the_source_prints_and_labels_what_it_does_not() -> None:
    told = [(one.what, one.synchronisations, one.printed, one.label) for one in figures().values()]
    assert told == QUOTED


@pytest.mark.parametrize(("what", "expected"), EVALUATED.items())
def test_evaluates_the_formulas_of_the_source(what: str, expected: tuple[str, float | None, str | None]) -> None:
    value, off, rings = expected
    one = figures()[what]
    assert in_unit(one.value, one.unit) == value
    assert (None if one.difference is None else round(100 * one.difference, 1) + 0.0) == off
    assert (None if one.rings is None else in_unit(one.rings, one.unit)) == rings


def test_every_figure_that_differs_says_why() -> None:
    silent = [one.what for one in figures().values() if abs(one.difference or 0.0) > 0.003 and not one.notes]
    assert silent == []


def test_the_rows_of_the_tensor_group_mix_two_units_to_the_digit() -> None:
    mixed = 1024**2 / 1000**2 * 1e15
    assert f"{published.tensor_forward(8) / mixed:,.0f}" == "21,840"
    assert f"{published.tensor_backward(8) / mixed:,.0f}" == "26,622"
    assert round(published.data_parallel(8) / 1e15) / 8 == 174.5, "rounds to the printed 175"


def test_the_source_takes_bits_for_bytes_where_it_speaks_of_switches() -> None:
    both = figures()["8 × 8 × 16, both"].value
    as_bytes = switch_days(both, 8 * 51.2)
    assert round(as_bytes) == 19
    assert Deadline(100, 100, 8 * 51.2).switches(both) == 20
    assert round(switch_days(85e18)) == 154


@pytest.mark.parametrize(
    ("deadline", "moved", "switches"),
    [
        (Deadline(1, 1, 51.2), 0.0, 0),
        (Deadline(1, 1, 51.2), 1.0, 1),
        (Deadline(1, 1, 51.2), 6.4e12 * 86400, 1),
        (Deadline(1, 1, 51.2), 6.41e12 * 86400, 2),
        (Deadline(1, 10, 51.2), 6.4e12 * 86400, 10),
        (Deadline(10, 1, 51.2), 6.4e12 * 86400, 1),
        (Deadline(1, 1, 12.8), 6.4e12 * 86400, 4),
    ],
)
def test_counts_the_switches_for_a_deadline(deadline: Deadline, moved: float, switches: int) -> None:
    assert deadline.switches(moved) == switches


def test_another_deadline_adds_a_derived_figure_beside_the_printed_one() -> None:
    assert others(DEADLINE) == others()
    printed, added = others(Deadline(30, 10, 25.6))[-2:]
    assert (printed.printed, printed.value) == ("at least 20", 154)
    assert (added.what, added.label) == ("switches of 25.6 Tbit/s for 10 epochs in 30 days", "derived")
    assert (added.value, added.rings, added.across) == (103, 16, 2)


def test_the_command_prints_the_same_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traffic", "--published"]) == 0
    assert capsys.readouterr().out.strip() in DOCS.read_text(), "docs/traffic.md has what the command prints"
    assert main(["traffic", "--published", "--days", "30", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["what"], one["printed"]) for one in told["table"]] == [
        (what, said) for what, _, said, _ in QUOTED[:11]
    ]
    assert told["table"][2]["difference"] == pytest.approx(-0.00305, abs=1e-5)
    assert told["figures"][-1]["what"] == "switches of 51.2 Tbit/s for 100 epochs in 30 days"
    assert (told["inputs"]["samples"], told["inputs"]["batch"]) == (364.6e6, 2048)


MODEL = ["traffic", "--parameters", "70B", "--layers", "80", "--hidden", "8192", "--tokens", "156B"]
SHAPE = ["--batches", "178000", "--dp", "16", "--tp", "8", "--pp", "8"]


def test_says_how_many_switches_a_job_needs(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MODEL, *SHAPE, "--days", "30", "--epochs", "20"]
    assert main(words) == 0
    assert "20 epochs in 30 days at 51.2 Tbit/s a switch" in capsys.readouterr().out
    assert main([*words, "--switch-tbps", "25.6", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["deadline"]["switches"] == {"across_nodes": 3, "both": 31, "full_mesh": 126}
    assert told["deadline"]["switch_days_of_an_epoch"]["across_nodes"] == pytest.approx(3.74, abs=0.01)
    assert main([*MODEL, *SHAPE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deadline"] is None


def test_a_job_on_one_node_needs_no_switch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traffic", "--parameters", "1B", "--batches", "10", "--dp", "8", "--days", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deadline"]["switches"]["across_nodes"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*MODEL, *SHAPE, "--switch-tbps", "51.2"], "--switch-tbps needs a deadline: give --days"),
        (["traffic", "--run", "pretrain", "--days", "3"], "--days needs the bytes of an epoch"),
    ],
)
def test_rejects_options_that_would_do_nothing(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--days", "0"], ["--days", "-1"], ["--days", "100d"], ["--switch-tbps", "51.2T"], ["--switch-tbps", "1e-320"]],
)
def test_rejects_invalid_numbers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["traffic", "--published", *words])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "must be a number" in said or "expected one argument" in said
