"""Comparisons of runs: sums are exact, intervals contain the truth, and CI gets the right exit status."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support_ledgers import Spec, ended

from whyidle.advisor.compare.comparison import LACKING, NO_INTERVAL, UNTOLD, Comparison, Row, compare, row
from whyidle.advisor.compare.conditions import NoCondition, judge, parse
from whyidle.advisor.compare.measures import NoComparison, Value
from whyidle.advisor.compare.scaling import AS_MEASURED, LOOKED_THROUGH
from whyidle.advisor.statistics import difference, of_blocks, of_draws, quantile_draws, ratio
from whyidle.cli.compare.text import render_text
from whyidle.cli.main import main
from whyidle.ledger.causes import CAUSE_FAMILY, CAUSES, FAMILIES
from whyidle.ledger.directory import read_directory
from whyidle.verdict.report import build_report
from whyidle.verdict.saved import NoReport, check

Report = dict[str, Any]

# -- how certain a difference is


def noisy(random: Random, mean: float, steps: int, memory: float) -> list[float]:
    """Steps that each resemble the one before: an AR(1) process with a deviation of a tenth of its mean."""
    value, found = 0.0, []
    for _ in range(steps):
        value = memory * value + math.sqrt(1 - memory**2) * random.gauss(0, 0.1 * mean)
        found.append(mean + value)
    return found


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_intervals_cover_the_truth_at_their_confidence_level(memory: float) -> None:
    random = Random(7)
    held = {"difference": 0, "ratio": 0}
    trials = 200
    for _ in range(trials):
        one, other = (of_blocks(noisy(random, mean, 400, memory)) for mean in (0.3, 0.2))
        assert one is not None
        assert other is not None
        low, high = difference(one, other)
        held["difference"] += low <= -0.1 <= high
        times = ratio(one, other)
        assert times is not None
        held["ratio"] += times[0] <= 1.5 <= times[1]
    for name, count in held.items():
        assert 0.90 <= count / trials <= 0.99, name


def test_interval_of_a_quantile_covers_the_truth_at_its_confidence_level() -> None:
    random = Random(3)
    held = 0
    for _ in range(30):
        draws = quantile_draws([random.random() for _ in range(200)], 0.5, 0)
        assert draws is not None
        low, high = of_draws(draws)
        held += low <= 0.5 <= high
    assert held >= 25


def test_few_steps_have_no_interval() -> None:
    assert of_blocks([0.1] * 15) is None
    assert quantile_draws([0.1] * 15, 0.99, 0) is None
    assert of_blocks([0.1] * 16) is not None


def test_a_p99_of_fewer_than_a_hundred_steps_is_not_told() -> None:
    random = Random(5)
    one, other = (
        Value(max(steps), series=steps, q=0.99) for steps in ([random.expovariate(1) for _ in range(50)] for _ in "ab")
    )
    assert row("step-p99", "", "", one, other).finding == UNTOLD
    assert row("step-p50", "", "", one._replace(q=0.5), other._replace(q=0.5)).difference_interval is not None


# -- a comparison


def saved(
    seconds: dict[str, float], *, steps: int = 100, ranks: int = 2, world: int = 0, jitter: float = 0.02, seed: int = 1
) -> Report:
    """A report on ranks that spend this many seconds of each step on each cause, with some random variation."""
    random = Random(seed)
    wall = sum(seconds.values())
    series = {
        cause: [spent * (1 + jitter * random.uniform(-1, 1)) for _ in range(steps - 1)]
        for cause, spent in seconds.items()
    }
    families: dict[str, list[float]] = {}
    for cause, values in series.items():
        into = families.setdefault(CAUSE_FAMILY[cause], [0.0] * (steps - 1))
        into[:] = [a + b for a, b in zip(into, values, strict=True)]
    waits = [sum(at) for at in zip(*(series[c] for c in seconds if c.startswith("data")), strict=True)]
    saves = [sum(at) for at in zip(*(series[c] for c in seconds if c.startswith("checkpoint")), strict=True)]
    nothing = [0.0] * (steps - 1)
    return {
        "format": 1,
        "owner": "lab",
        "run": "r",
        "ranks": ranks,
        "world_size": world or ranks,
        "steps": steps,
        "wall_seconds": steps * wall,
        "startup_seconds": 5.0,
        "startup": {"startup": 4.0, "data_read": 0.5, "checkpoint_read": 0.5},
        "first_batch_seconds": 0.25,
        "saves": {"count": steps, "seconds": steps * sum(v for c, v in seconds.items() if c.startswith("checkpoint"))},
        "restores": {"count": 1, "seconds": 0.5},
        "samples": 0,
        "rank_seconds": ranks * steps * wall,
        "seconds": {cause: ranks * steps * seconds.get(cause, 0.0) for cause in CAUSES},
        "families": {},
        "verdict": None,
        "recent": {
            "first_step": 2,
            "last_step": steps,
            "step_seconds": [sum(at) for at in zip(*series.values(), strict=True)],
            "families": families,
            "data_wait_seconds": waits or nothing,
            "longest_data_wait_seconds": waits or nothing,
            "save_seconds": saves or nothing,
        },
        "per_rank": [
            {"rank": rank, "steps": steps, "step_seconds": {"p50": wall, "p95": wall, "max": wall}}
            for rank in range(ranks)
        ],
    }


SLOW = saved({"compute": 0.06, "network": 0.09, "data_read": 0.03, "checkpoint_write": 0.02})
FAST = saved({"compute": 0.06, "network": 0.009, "data_read": 0.03, "checkpoint_write": 0.01}, seed=2)


def rows(found: Comparison) -> dict[str, Row]:
    [pair] = found.pairs
    return {row.name: row for row in (*pair.rows, *pair.families, pair.whole)}


def test_a_trifle_outside_the_last_steps_is_not_told() -> None:
    """Saves take 0.1 % of the time, and none of it is in the last steps."""
    before, after = (saved({"compute": 0.1}, steps=1000) for _ in "ab")
    before["seconds"]["checkpoint_write"], after["seconds"]["checkpoint_write"] = 0.20, 0.22
    found = compare([("one", before), ("other", after)])
    [storage] = [one for one in found.pairs[0].families if one.name == "storage"]
    assert storage.finding == UNTOLD
    [judged] = judge(parse("storage>+5%"), found)
    assert not judged.met


@pytest.mark.parametrize("at", [0, 8, 9, 118])
def test_a_wait_in_one_step_alone_has_no_clear_difference(at: int) -> None:
    once, never = [0.0] * 119, [0.0] * 119
    once[at] = 0.006
    before, after = (Value(sum(waits) / 119, of_blocks(waits)) for waits in (once, never))
    assert row("communication", "communication", "of a step", before, after).finding == UNTOLD


def test_families_add_up_to_the_step_in_both_runs_and_the_difference() -> None:
    found = compare([("slow", SLOW), ("fast", FAST)])
    [pair] = found.pairs
    for of in ("before", "after", "difference"):
        assert sum(getattr(row, of) for row in pair.families) == pytest.approx(getattr(pair.whole, of), rel=1e-12)
    assert pair.whole.before == pytest.approx(0.2)
    assert pair.whole.speedup == pytest.approx(0.2 / 0.109)


def over(report: Report, link: str, gbits: float, named: bool = True) -> Report:
    """A run whose ranks use this link. ``named``: its verdict says so."""
    used = {"link": link, "kind": "tcp", "bytes": 10**9, "bits_per_second": gbits * 1e9}
    loop = {"link": "lo", "kind": "node", "bytes": 10**10, "bits_per_second": None}
    return report | {
        "verdict": {"family": "network", "share": 0.5, "summary": link, "links": [{"names": [link]}] if named else []},
        "per_rank": [rank | {"links": [loop, used]} for rank in report["per_rank"]],
    }


@pytest.mark.parametrize(
    ("last", "other", "said"),
    [
        (over(FAST, "ib0", 92, False), over(SLOW, "eth0", 0.94), ["ib0 (92 Gbit/s) to eth0 (0.94 Gbit/s)"]),
        (over(SLOW, "eth0", 0.94), over(FAST, "ib0", 92, False), ["eth0 (0.94 Gbit/s) to ib0 (92 Gbit/s)"]),
        (over(FAST, "ib0", 92), over(SLOW, "ib0", 0.94), []),
        (over(FAST, "ib0", 92, False), over(SLOW, "eth0", 0.94, False), []),
        (FAST, over(SLOW, "eth0", 0.94), []),
    ],
    ids=["to a slow link", "to a fast link", "the same link", "it does not matter", "not known"],
)
def test_says_that_transfers_moved_to_another_link(last: Report, other: Report, said: list[str]) -> None:
    check(last)
    check(other)
    found = compare([("night1", last), ("night2", other)])
    assert found.notes == [f"night2: transfers moved from {links} since night1" for links in said]


@pytest.mark.parametrize("link", [{"link": 1}, {"link": "eth0", "kind": "tcp", "bytes": "many"}, 7])
def test_rejects_invalid_links(link: object) -> None:
    with pytest.raises(NoReport, match="links"):
        check(SLOW | {"per_rank": [rank | {"links": [link]} for rank in SLOW["per_rank"]]})


def test_names_only_the_families_that_changed() -> None:
    found = rows(compare([("slow", SLOW), ("fast", FAST)]))
    assert {name: found[name].finding for name in ("network", "storage", "step", "save", "whole")} == {
        "network": "faster",
        "storage": "faster",
        "step": "faster",
        "save": "faster",
        "whole": "faster",
    }
    assert found["compute"].finding == UNTOLD
    assert {found[name].finding for name in ("batch", "batch-p99", "straggler") if name in found} == {UNTOLD}
    assert {found[name].finding for name in ("startup", "dataset", "restore", "end", "batch-worst")} == {NO_INTERVAL}
    network = found["network"]
    assert network.speedup_interval is not None
    assert network.speedup_interval[0] < 10 < network.speedup_interval[1]
    assert found["dataset"].before == pytest.approx(0.75)
    assert found["end"].before == pytest.approx(5.0 + 100 * 0.2)


def test_swapping_the_runs_swaps_faster_and_slower() -> None:
    found = rows(compare([("fast", FAST), ("slow", SLOW)]))
    assert found["network"].finding == found["step"].finding == "slower"


def test_end_to_end_covers_the_steps_of_the_shorter_run() -> None:
    longer = saved({"compute": 0.06, "network": 0.09, "data_read": 0.03, "checkpoint_write": 0.02}, steps=200)
    found = compare([("short", SLOW), ("long", longer)])
    assert found.steps == 100
    assert rows(found)["end"].speedup == pytest.approx(1.0)
    assert found.notes == ["long made 200 steps: end to end counts 100 of them"]


def test_unsplit_waits_have_the_interval_of_all_waits() -> None:
    """Network and straggler take turns: all waits together are steady, but the parts are uncertain."""
    report = deepcopy(SLOW)
    recent = report["recent"]
    recent["families"]["waited"] = [0.09 + 0.03 * (step // 20 % 2) for step in range(99)]
    del recent["families"]["network"]
    row = rows(compare([("a", report), ("b", FAST)]))["network"]
    assert row.difference_interval is not None
    assert row.difference_interval[1] - row.difference_interval[0] > 0.01


def test_a_family_that_hardly_occurs_in_the_last_steps_has_no_interval() -> None:
    """A run of many steps that made its saves before the last steps."""
    report = deepcopy(SLOW)
    recent = report["recent"]
    recent["families"]["storage"] = [0.001] * 99
    row = rows(compare([("a", report), ("b", FAST)]))["storage"]
    assert (row.finding, row.difference_interval) == (NO_INTERVAL, None)
    assert row.difference == pytest.approx(-0.01)


def test_compares_an_older_report_on_the_fields_it_has() -> None:
    old = {
        name: value
        for name, value in SLOW.items()
        if name not in ("format", "recent", "startup", "saves", "restores", "first_batch_seconds", "samples")
    }
    check(old)
    found = compare([("old", old), ("fast", FAST)])
    by_name = rows(found)
    assert by_name["network"].speedup == pytest.approx(10)
    assert by_name["network"].finding == NO_INTERVAL
    assert by_name["step-p50"].before == pytest.approx(0.2)
    assert {by_name[name].finding for name in ("batch", "save", "restore", "dataset")} == {LACKING}
    assert found.notes == [
        "old was saved by an earlier whyidle: it has no single steps, so no batch waits, saves or intervals"
    ]


# -- scaling


def test_the_efficiency_of_the_published_study() -> None:
    """128 nodes train 100 times as fast as one, which is 78 %."""
    one = saved({"compute": 0.1}, ranks=1)
    many = saved({"compute": 0.1, "network": 0.028}, ranks=1, world=128)
    found = compare([("one", one), ("many", many)]).scaling
    assert [entry.efficiency for entry in found] == [1.0, pytest.approx(0.78, abs=0.002)]
    assert found[1].speedup == pytest.approx(100)
    assert "weak" in found[1].assumed


def test_families_add_up_to_what_is_missing_from_linear_scaling() -> None:
    """The reference is the smallest run, wherever it stands."""
    one = saved({"compute": 0.1, "host": 0.002}, ranks=1)
    eight = saved({"compute": 0.1, "network": 0.01, "host": 0.002}, ranks=1, world=8)
    many = saved({"compute": 0.1, "network": 0.02, "straggler": 0.008, "host": 0.001}, ranks=1, world=128)
    found = {entry.name: entry for entry in compare([("many", many), ("one", one), ("eight", eight)]).scaling}
    assert [found[name].is_reference for name in ("one", "eight", "many")] == [True, False, False]
    for entry in found.values():
        assert sum(entry.missing.values()) == pytest.approx(1 - entry.efficiency)
    assert found["many"].efficiency == pytest.approx(0.102 / 0.129)
    parts = {"network": 0.02, "straggler": 0.008, "host": -0.001}
    assert found["many"].missing == pytest.approx({family: part / 0.129 for family, part in parts.items()}, abs=1e-12)
    assert found["one"].missing == {}
    doublings = (found["one"].per_doubling, found["eight"].per_doubling, found["many"].per_doubling)
    assert doublings == (None, pytest.approx((0.102 / 0.112) ** (1 / 3)), pytest.approx((0.112 / 0.129) ** (1 / 4)))
    assert found["many"].families == AS_MEASURED
    text = render_text(compare([("one", one), ("many", many)]), [])
    assert "network took most of the rest: 15.5 % of 20.9 %" in text


def test_what_made_ranks_late_took_the_rest_if_all_reports_know_it() -> None:
    one, many = saved({"compute": 0.1}, ranks=1), saved({"compute": 0.1, "straggler": 0.1}, ranks=4)
    one["explained"], many["explained"] = {"compute": 10.0}, {"compute": 40.0, "storage": 40.0}
    [_, entry] = compare([("one", one), ("many", many)]).scaling
    assert (entry.missing, entry.families) == ({"storage": 0.5}, LOOKED_THROUGH)
    del one["explained"]
    [_, entry] = compare([("one", one), ("many", many)]).scaling
    assert entry.missing == {"straggler": 0.5}
    for wrong in ({"nonsense": 1.0}, {"compute": "1"}, {"compute": -5.0}):
        with pytest.raises(NoReport, match="explained"):
            check(one | {"explained": wrong})


def test_compares_steps_only_where_samples_are_not_known() -> None:
    one, two = saved({"compute": 0.1}), saved({"compute": 0.1}, ranks=4)
    one["samples"] = 6400
    [_, entry] = compare([("one", one), ("two", two)]).scaling
    assert "samples of two are not known, so steps are compared" in entry.assumed


@pytest.mark.parametrize(
    ("sizes", "kind", "efficiency"),
    [(None, "weak", 0.5), (None, "strong", 0.25), ([64, 64], None, 0.25), ([32, 128], None, 1.0)],
)
def test_efficiency_depends_on_how_batches_grow(sizes: list[float] | None, kind: str | None, efficiency: float) -> None:
    one, two = saved({"compute": 0.1}), saved({"compute": 0.2}, ranks=4)
    assert compare([("one", one), ("two", two)], sizes, kind).scaling[1].efficiency == pytest.approx(efficiency)


def test_samples_that_loaders_counted_are_used() -> None:
    one, two = saved({"compute": 0.1}), saved({"compute": 0.1}, ranks=4)
    one["samples"], two["samples"] = 2 * 100 * 32, 4 * 100 * 16
    [_, second] = compare([("one", one), ("two", two)]).scaling
    assert (second.samples_per_step, second.efficiency) == (64, pytest.approx(0.5))


# -- conditions


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("network>+5%", True),
        ("network<+5%", False),
        ("network>+50ms", True),
        ("network>+100ms", False),
        ("network>80ms", True),
        ("compute>+0.001%", False),  # the difference cannot be told from none, whatever it is
        ("step>+50%", True),
        ("speedup<0.9", True),
        ("straggler>+5%", False),  # neither run has any
        ("startup>+1s", False),
    ],
)
def test_evaluates_conditions(text: str, met: bool) -> None:
    [judged] = judge(parse(text), compare([("fast", FAST), ("slow", SLOW)]))
    assert judged.met is met


def test_an_unclear_difference_meets_a_condition_only_on_request() -> None:
    found = compare([("a", SLOW), ("b", saved({"compute": 0.0602, "network": 0.09, "data_read": 0.03}, jitter=0.3))])
    [judged] = judge(parse("compute>+0.1%"), found)
    assert (judged.met, judged.untold) == (False, True)
    [judged] = judge(parse("compute>+0.1%"), found, values_alone=True)
    assert judged.met


@pytest.mark.parametrize(
    "text", ["network", "network>5%", "network>+5", "net>+5%", "step>=+5%", "speedup<+2", "efficiency<80", "step>5 %"]
)
def test_rejects_an_invalid_condition(text: str) -> None:
    with pytest.raises(NoCondition):
        parse(text)


# -- the command, with ledgers


STEP = {"compute": 0.05, "network": 0.02, "straggler": 0.005, "data_read": 0.025}
LESS = {**STEP, "data_read": 0.005}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ledgers")
    words = {"checkpoints": 2}
    ended(found, *(Spec(run="base", rank=rank, steps=60, step=STEP, words=words) for rank in range(2)))
    ended(found, *(Spec(run="less", rank=rank, steps=60, step=LESS, world_size=4) for rank in range(2)))
    ended(found, Spec(run="stepless", world_size=1))
    for run in ("base", "less"):
        report = build_report(("lab", run), read_directory(str(found), steps=True)[0], 0)
        (found / f"{run}.json").write_text(json.dumps(report))
    return found


def asked(folder: Path, *words: str) -> int:
    return main(["compare", "--dir", str(folder), *words])


def test_a_report_keeps_its_last_steps(folder: Path) -> None:
    report = json.loads((folder / "base.json").read_text())
    recent = report["recent"]
    assert (recent["first_step"], recent["last_step"], len(recent["step_seconds"])) == (2, 60, 59)
    for step, *parts in zip(recent["step_seconds"], *recent["families"].values(), strict=True):
        assert sum(parts) == pytest.approx(step, abs=1e-6)
    assert recent["data_wait_seconds"][0] == pytest.approx(0.025)
    assert set(recent["families"]) <= set(FAMILIES)
    assert report["first_batch_seconds"] == pytest.approx(0.025)
    assert sum(report["startup"].values()) == pytest.approx(report["startup_seconds"])


@pytest.mark.parametrize("saved_as", ["", ".json"])
def test_the_command_compares_runs_and_saved_reports(
    saved_as: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(folder / f"{run}.json") if saved_as else f"lab/{run}" for run in ("base", "less")]
    assert asked(folder, *runs) == 0
    said = capsys.readouterr().out
    assert "storage             25.0 ms   5.00 ms     -20.0 ms" in said
    assert "less has 2 of 4 ranks: the other ranks are missing" in said
    assert "weak scaling" in said


@pytest.mark.parametrize(
    "order", [("less", "other", "--json"), ("less", "--json", "other"), ("--json", "less", "other")]
)
def test_options_may_stand_between_the_runs(
    order: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "other.json").write_text((folder / "base.json").read_text())
    words = [str(folder / "other.json") if word == "other" else word for word in order]
    assert asked(folder, "base", "--scaling", "weak", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in found["runs"]] == ["lab/base", "lab/less", "lab/base"]


def test_the_documents_have_the_same_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = folder / "page.html"
    assert asked(folder, "base", "less", "--markdown", "--html", str(page)) == 0
    assert "| storage | 25.0 ms | 5.00 ms | -20.0 ms |" in capsys.readouterr().out
    text = page.read_text()
    assert "<td>-20.0 ms</td>" in text
    for foreign in ("<script", "http:", "https:", "src=", "@import"):
        assert foreign not in text
    assert "prefers-color-scheme: dark" in text
    assert asked(folder, "base", "less", "--json", "--fail-if", "storage>+5%") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"][0]["whole"]["difference"] == pytest.approx(-0.02)
    assert [(one["condition"], one["met"]) for one in found["conditions"]] == [("storage>+5%", False)]


def test_escapes_names_of_runs_in_documents(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = folder / "<b>|x.json"
    odd.write_text((folder / "less.json").read_text())
    page = folder / "odd.html"
    assert asked(folder, "base", str(odd), "--markdown", "--html", str(page)) == 0
    assert "&lt;b>\\|x" in capsys.readouterr().out
    assert "<b>" not in page.read_text()


def test_a_met_condition_gives_a_status_and_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(folder, "less", "base", "--fail-if", "storage>+5%", "--fail-if", "network>+5%") == 3
    said = capsys.readouterr()
    assert said.err == "whyidle compare: storage>+5%: base has +400.0 %, which meets the condition\n"
    assert "check network>+5%: base has 0.0 %, which does not meet the condition" in said.out


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("base",), 2, "give two or more runs, not only base"),
        (("base", "none"), 1, "no ledger of run none"),
        (("base", "none.json"), 1, "none.json cannot be read: No such file"),
        (("base", "{}/none"), 1, "/none does not exist: give a report, a directory of ledgers, or a run as"),
        (("base", "stepless"), 1, "stepless has finished no step"),
        (("base", "{}/text.json"), 1, "is not JSON"),
        (("base", "{}/list.json"), 1, "is not a report of whyidle: it must be an object"),
        (("base", "{}/newer.json"), 1, "is a report of format 99, and this whyidle reads formats up to 1"),
        (("base", "{}/nan.json"), 1, "is not JSON: NaN is not a number"),
        (("base", "less", "--html", "{}/not/there.html"), 1, "there.html cannot be written: No such file"),
        (("base", "less", "--samples-per-step", "3"), 2, "--samples-per-step has 1 numbers for 2 runs"),
        (("base", "less", "--fail-if", "restore>+5%"), 1, "restore>+5%: model restore is not known"),
        (("base", "base", "--fail-if", "efficiency<80%"), 1, "all runs have the same world size"),
    ],
)
def test_rejects_bad_input_with_a_sentence_and_a_status(
    words: tuple[str, ...], status: int, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "text.json").write_text("what")
    (folder / "list.json").write_text("[]")
    report = json.loads((folder / "base.json").read_text())
    (folder / "newer.json").write_text(json.dumps({**report, "format": 99}))
    (folder / "nan.json").write_text('{"run": NaN}')
    assert asked(folder, *(word.replace("{}", str(folder)) for word in words)) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err, said.err


def test_rejects_an_invalid_condition_before_reading_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "none", "none", "--fail-if", "net>+5%"])
    assert stopped.value.code == 2
    assert "net is not a measure or a family" in capsys.readouterr().err


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a report: up to three in each inner object, and one in a list."""
    if isinstance(value, dict):
        inside = [*value.items()][: 3 if path else None]
        return [path, *(way for name, inner in inside for way in places(inner, (*path, name)))]
    return [path, *(places(value[0], (*path, 0)) if isinstance(value, list) and value else [])]


def reading(point: str, rate: float | None, looks: int = 40, **seconds: float) -> dict[str, Any]:
    mount = {"point": point, "type": "xfs", "source": "sda", "name": f"{point} (xfs, sda)", "looks": looks}
    return mount | {"seconds": {"data": 0.0, "save": 0.0} | seconds, "bytes_per_second": rate, "counted": True}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            [reading("/scratch", 9e8, data=3)],
            [reading("/home", 1.2e7, data=30)],
            ["b: the files of the dataset moved from /scratch (xfs, sda) at 900 MB/s to /home (xfs, sda) at 12 MB/s"],
        ),
        (
            [reading("/scratch", None, save=3)],
            [reading("/home", None, save=30)],
            ["b: the checkpoints moved from /scratch (xfs, sda) to /home (xfs, sda)"],
        ),
        ([reading("/scratch", 9e8, data=3)], [reading("/scratch", 1e6, data=30)], []),
        ([reading("/scratch", 9e8, data=3)], [reading("/home", 1e6, looks=3, data=30)], []),  # too few looks
        # The first one was healthy.
        (
            [reading("/scratch", None, looks=3, data=0.2)],
            [reading("/home", 1.2e7, data=30)],
            ["b: the files of the dataset moved from /scratch (xfs, sda) to /home (xfs, sda) at 12 MB/s"],
        ),
        # Both runs read from both mounts.
        (
            [reading("/a", 9e6, data=9), reading("/b", 9e8, data=1)],
            [reading("/a", 9e8, data=1), reading("/b", 9e6, data=9)],
            [],
        ),
        ([reading("/scratch", 9e8, data=3)], [], []),
        ([], [], []),
    ],
    ids=["dataset", "checkpoints", "the same", "few looks", "healthy", "both", "not seen", "no mounts"],
)
def test_says_that_files_have_moved(before: list[dict[str, Any]], after: list[dict[str, Any]], said: list[str]) -> None:
    found = compare([("a", {**SLOW, "mounts": before}), ("b", {**FAST, "mounts": after})])
    assert found.notes == [f"{each} since a" for each in said]


NONSENSE = [None, -1, True, "x", [], {}, [1, "x"], {"x": "y"}, 1e308]
SMALL = saved({"compute": 0.06, "network": 0.09, "data_read": 0.03, "checkpoint_write": 0.02}, steps=20)
SMALL["verdict"] = {"family": "network", "share": 0.45, "summary": "slow"}
SMALL["mounts"] = [
    {
        "seconds": {"data": 9.0},
        "looks": 40,
        "bytes_per_second": 9e6,
        "point": "/a",
        "type": "xfs",
        "source": "sda",
        "name": "/a",
    }
]


def test_any_invalid_report_is_rejected_with_a_sentence() -> None:
    for way in places(SMALL)[1:]:
        for nonsense in NONSENSE:
            report = deepcopy(SMALL)
            inner: Any = report
            for name in way[:-1]:
                inner = inner[name]
            inner[way[-1]] = deepcopy(nonsense)
            try:
                check(report)
                found = compare([("a", SMALL), ("b", report)])
            except (NoReport, NoComparison):
                continue
            render_text(found, [])


@pytest.mark.parametrize(
    "change",
    [
        {"rank_seconds": -1},
        {"seconds": {"magic": 1.0}},
        {"seconds": None},
        {"per_rank": [1]},
        {"recent": {"step_seconds": [1]}},
        {"recent": {**SLOW["recent"], "save_seconds": [1.0]}},
        {"saves": {"count": "1"}},
        {"format": "1"},
    ],
)
def test_rejects_an_invalid_report(change: dict[str, Any]) -> None:
    check(SLOW)
    with pytest.raises(NoReport):
        check({**SLOW, **change})
