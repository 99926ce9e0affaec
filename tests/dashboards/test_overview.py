"""The first screen: it fits without scrolling, its lists are limited, and its sentence agrees with the series.

Also the comparisons on the page of a run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support_promtool import run_tests
from support_queries import filled
from support_yaml import write_yaml

from whyidle.alerts.config import Config
from whyidle.dashboards import output

Json = dict[str, Any]
SCREEN = 1440, 900
GRID = 30, 8
"""Pixels of Grafana's grid: the height of a unit, and the gap between two."""
BARS = 2 * 40
"""Above the dashboard: navigation, and the page's own buttons."""
CONTROLS = 16 + 2 * 32 + 8 + 8
"""Variables and links, which take two lines at this width: padding, lines, gap, and the space below."""
MOST_ROWS = 15

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")


def panels(config: Config | None = None, uid: str = "whyidle-overview") -> list[Json]:
    return list(output.panels_of(output.rendered(config or Config())[uid]))


def expr(title: str, ref: str = "A", config: Config | None = None, **chosen: str) -> str:
    """A query as Prometheus gets it: of the first screen or, if a run is given, of that run's page."""
    uid = "whyidle-run" if chosen else "whyidle-overview"
    [panel] = [one for one in panels(config, uid) if one["title"] == title]
    [found] = [one["expr"] for one in panel["targets"] if one["refId"] == ref]
    variables = {"cluster": ".*", "owner": ".*", "run": ".*", "window": "5m", "__range": "1h", "__interval": "1m"}
    return filled(found, variables | chosen)


def test_fits_on_the_screen_without_scrolling() -> None:
    unit, gap = GRID
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels()) * (unit + gap) - gap
    assert height + BARS + CONTROLS <= SCREEN[1]
    assert not [one for one in panels() if one["type"] == "row"]


def test_columns_of_tables_fit_into_their_panels() -> None:
    """Grafana gives the remaining space to a column without a width. A name needs 150 pixels."""
    for panel in (one for one in panels() if one["type"] == "table"):
        room = panel["gridPos"]["w"] * (SCREEN[0] - 2 * 16 + GRID[1]) / 24 - GRID[1] - 2 * 8
        columns = [one["properties"] for one in panel["fieldConfig"]["overrides"] if one["matcher"]["id"] == "byName"]
        widths = [next((each["value"] for each in one if each["id"] == "custom.width"), 150) for one in columns]
        assert sum(widths) <= room, panel["title"]


def test_lists_are_bounded() -> None:
    for panel in panels():
        if panel["type"] in ("table", "state-timeline"):
            for target in panel["targets"]:
                assert f"topk({MOST_ROWS}, " in target["expr"], f"{panel['title']} {target['refId']}"


RUN = 'cluster="lab", owner="research", run="llama"'
OTHER = 'cluster="lab", owner="vision", run="resnet"'


def run_series(labels: str, ranks: int, shares: dict[str, float]) -> Json:
    found: Json = {f"run:whyidle_{name}:count{{{labels}}}": ranks for name in ("ranks", "gpus")}
    found[f"run:whyidle_unused:ratio{{{labels}}}"] = 0
    for family, share in shares.items():
        of = f'{labels}, family="{family}"'
        found[f"run_family:whyidle_device_seconds:rate5m{{{of}}}"] = ranks * share
        found[f"run_family:whyidle_charged:ratio5m{{{of}}}"] = share
    return found


LOSING = run_series(RUN, 4096, {"compute": 0.75, "storage": 0.2, "network": 0.05, "host": 0.0}) | run_series(
    OTHER, 1024, {"compute": 0.5, "storage": 0.0, "network": 0.0, "lost": 0.5}
)
PRICED = Config(gpu_hour_price=2.5, currency="$")
SENTENCES: list[tuple[str, Config, Json, str]] = [
    (
        "two runs",
        PRICED,
        LOSING,
        "1,536 of 5,120 GPUs are idle ($3,840/h): 53 % storage, 33 % repeated steps. Most idle: research/llama",
    ),
    (
        "no price",
        Config(),
        run_series(RUN, 8, {"compute": 0.5, "cpu": 0.5}),
        "4 of 8 GPUs are idle: 100 % cpu. Most idle: research/llama",
    ),
    (
        "euros",
        Config(gpu_hour_price=0.1, currency="EUR "),
        run_series(RUN, 8, {"compute": 0.5, "cpu": 0.5}),
        "4 of 8 GPUs are idle (EUR 0.4/h): 100 % cpu. Most idle: research/llama",
    ),
    (
        "GPUs that a run was given, and does not use",
        PRICED,
        run_series(RUN, 8, {"compute": 0.5, "cpu": 0.5})
        | run_series(OTHER, 1, {"compute": 0.0, "host": 0.0})
        | {
            f"run:whyidle_unused:ratio{{{OTHER}}}": 1,
            f"run:whyidle_gpus:count{{{OTHER}}}": 6,
            f"run:whyidle_unused_gpus:count{{{OTHER}}}": 6,
            f'run_family:whyidle_charged:ratio5m{{{OTHER}, family="host"}}': 0.5,
            f'run_family:whyidle_device_seconds:rate5m{{{OTHER}, family="unused"}}': 6,
        },
        "10 of 14 GPUs are idle ($25/h): 60 % unused, 40 % cpu. Most idle: vision/resnet",
    ),
    (
        "a notebook waits for its user",
        PRICED,
        run_series(RUN, 8, {"compute": 0.5, "cpu": 0.5})
        | run_series(OTHER, 1, {"compute": 0.0, "host": 0.0})
        | {
            f'run_family:whyidle_charged:ratio5m{{{OTHER}, family="cpu"}}': 1,
            f'run_family:whyidle_charged:ratio5m{{{OTHER}, family="interactive"}}': 0,
            f'run_family:whyidle_device_seconds:rate5m{{{OTHER}, family="cpu"}}': 0.25,
            f'run_family:whyidle_device_seconds:rate5m{{{OTHER}, family="interactive"}}': 0.75,
        },
        "5 of 9 GPUs are idle ($13/h): 85 % cpu, 15 % notebook waits. Most idle: research/llama",
    ),
    ("nothing lost", PRICED, run_series(RUN, 8, {"compute": 1.0, "cpu": 0.0}), "0 of 8 GPUs are idle"),
]


@needs_promtool
def test_sentence_agrees_with_the_series(tmp_path: Path) -> None:
    """promtool compares the labels that the legend joins to the sentence."""
    [legend] = [target["legendFormat"] for target in panels()[0]["targets"]]
    parts = legend.replace("{{", " ").replace("}}", " ").split()
    tests = []
    for name, config, series, sentence in SENTENCES:
        labels = split(sentence)
        assert "".join(labels.get(part, "") for part in parts) == sentence
        written = ", ".join(f'{part}="{text}"' for part, text in labels.items())
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": [{"series": one, "values": f"{value}x5"} for one, value in series.items()],
                "promql_expr_test": [
                    {
                        "expr": expr("", config=config),
                        "eval_time": "2m",
                        "exp_samples": [{"labels": f"{{{written}}}", "value": 1}],
                    }
                ],
            }
        )
    check(tests, tmp_path)


def split(sentence: str) -> dict[str, str]:
    """A sentence -> its parts, by label."""
    rest, _, worst = sentence.partition(". ")
    start, _, families = rest.partition(": ")
    first, _, second = families.partition(", ")
    before, money = (start.split(" (")[0], f" ({start.split(' (')[1]}") if "(" in start else (start, "")
    idle, _, gpus = before.partition(" ")
    named = {
        "idle": idle,
        "gpus": f" {gpus}",
        "money": money,
        "first": families and f": {first}",
        "second": second and f", {second}",
        "worst": worst and f". {worst}",
    }
    return {label: text for label, text in named.items() if text}


@needs_promtool
def test_goodput_counts_the_time_before_the_rules_knew_of_ranks_on_the_cpu(tmp_path: Path) -> None:
    """Compute was 48 of 60 s. Since the rules are newer, a quarter of it is on the CPU in the last 20 of 60 minutes."""
    series = {
        f'run_cause:whyidle_device_seconds:increase{{{RUN}, cause="compute"}}': "48x60",
        f'run_family:whyidle_billed_seconds:increase{{{RUN}, family="compute"}}': "48x60",
        f'run_family:whyidle_billed_seconds:increase{{{RUN}, family="cpu"}}': "12x60",
        f"run:whyidle_productive_on_cpus_seconds:increase{{{RUN}}}": "_x41 12x20",
    }
    asked = {"40m": 0.8, "1h": (0.8 * 60 - 0.2 * 20) / 60}
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"round({expr('Goodput')}, 0.01)",
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": round(goodput, 2)}],
            }
            for at, goodput in asked.items()
        ],
    }
    check([test], tmp_path)


@needs_promtool
def test_a_rank_that_moved_does_not_empty_the_table(tmp_path: Path) -> None:
    """For some minutes after a restart, the rank is known on two nodes."""
    rank = f'{RUN}, rank="3"'
    place = "rank_instance_node:whyidle_rank:group"
    series = LOSING | {f'run_rank_family:whyidle_culprit:rate5m{{{rank}, family="storage"}}': 12}
    series |= {f'{place}{{{rank}, node="n{i}", instance="i{i}"}}': 1 for i in (1, 2)}
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": f"{value}x5"} for one, value in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count({expr('Runs by idle GPUs', 'F')})",
                "eval_time": "2m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    check([test], tmp_path)


@needs_promtool
def test_column_but_names_what_contradicts_a_verdict_or_a_shortage_of_cpus(tmp_path: Path) -> None:
    """One doubt for each run: a counter that says the opposite matters more than a possible reason."""
    short = {
        f'run_family:whyidle_shortage:ratio5m{{{of}, family="straggler", shortage="stolen"}}': 1 for of in (RUN, OTHER)
    }
    against = {f'run_family:whyidle_contradicted:ratio5m{{{RUN}, family="storage", contradiction="busy_gpus"}}': 0.6}
    series = LOSING | short | against
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": f"{value}x5"} for one, value in series.items()],
        "promql_expr_test": [
            {
                "expr": expr("Runs by idle GPUs", "I"),
                "eval_time": "2m",
                "exp_samples": [
                    {"labels": f'{{{RUN}, contradiction="busy_gpus"}}', "value": 0.6},
                    {"labels": f'{{{OTHER}, contradiction="stolen"}}', "value": 1},
                ],
            }
        ],
    }
    check([test], tmp_path)


@needs_promtool
def test_since_column_is_when_the_verdict_changed(tmp_path: Path) -> None:
    """In ms. A verdict that has never changed exists since it was first recorded."""
    leading = "run_family:whyidle_leading:ratio5m"
    series = {
        f'{leading}{{{RUN}, family="compute"}}': "0.9x29 stale",
        f'{leading}{{{RUN}, family="storage"}}': "_x30 0.4x30",
        f'{leading}{{{OTHER}, family="cpu"}}': "_x10 0.4x50",
    }
    lost = {
        one: f"{value}x60"
        for one, value in LOSING.items()
        if one.startswith("run_family:whyidle_device_seconds:rate5m")
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in (series | lost).items()],
        "promql_expr_test": [
            {
                "expr": expr("Runs by idle GPUs", "G"),
                "eval_time": "60m",
                "exp_samples": [
                    {"labels": f"{{{RUN}}}", "value": 1000 * 60 * 29},
                    {"labels": f"{{{OTHER}}}", "value": 1000 * 60 * 10},
                ],
            }
        ],
    }
    check([test], tmp_path)


@needs_promtool
def test_a_run_is_compared_with_another_one_or_with_itself_before(tmp_path: Path) -> None:
    share = "run_cause:whyidle_share:ratio5m"
    of_cause = 'family="storage", cause="data_read"'
    # Within the last hour, and in the hour before.
    series = {
        f"{share}{{{RUN}, {of_cause}}}": "0.2x60 0.5x60",
        f'{share}{{cluster="lab", owner="research", run="sibling", {of_cause}}}': "0.1x60 0.3x60",
    }

    def then(other: str, expected: float) -> Json:
        asked = expr("Causes, now and before", "B", owner="research", run="llama", other=other, ago="1h")
        labels = '{cluster="lab", cause="data_read"}'
        return {"expr": asked, "eval_time": "120m", "exp_samples": [{"labels": labels, "value": expected}]}

    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [then("", 0.2), then("sibling", 0.1)],
    }
    check([test], tmp_path)


@needs_promtool
def test_lost_hours_count_a_rank_on_the_cpu_once(tmp_path: Path) -> None:
    """One of the two ranks trains on the CPU beside two GPUs. The other run uses what it has."""
    billed = "run_family:whyidle_billed_seconds:increase"
    series = {f'{billed}{{{RUN}, family="{family}"}}': 60 for family in ("compute", "storage")} | {
        f'{billed}{{{OTHER}, family="storage"}}': 60,
        'cluster_family:whyidle_billed_seconds:increase{cluster="lab", family="storage"}': 120,
        f'run_family:whyidle_on_cpus_seconds:increase{{{RUN}, family="compute", part="on_cpus"}}': 30,
        f'run_family:whyidle_on_cpus_seconds:increase{{{RUN}, family="storage", part="on_cpus"}}': 30,
        f"run:whyidle_unused_gpu_seconds:increase{{{RUN}}}": 120,
    }

    def hours(title: str, uid: str, samples: dict[str, float], ref: str = "A") -> Json:
        [panel] = [one for one in panels(PRICED, uid) if one["title"] == title]
        [found] = [one["expr"] for one in panel["targets"] if one["refId"] == ref]
        variables = {"cluster": ".*", "owner": ".*", "run": ".*", "worst": "10", "__range": "1h"}
        expected = [{"labels": labels, "value": value} for labels, value in samples.items()]
        return {"expr": filled(found, variables), "eval_time": "60m30s", "exp_samples": expected}

    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": f"_ {value}x59 _x9"} for one, value in series.items()],
        "promql_expr_test": [
            hours("Lost, by family", "whyidle-overview", {'{family="storage"}': 1.5, '{family="unused"}': 2}),
            hours("Cost of idle GPUs", "whyidle-fleet", {"{}": 8.75}),
            hours("GPU-hours lost, by family", "whyidle-fleet", {'{family="storage"}': 1.5}),
            hours("GPU-hours lost, by family", "whyidle-fleet", {"{}": 2}, "B"),
            hours("Runs by what they lost", "whyidle-fleet", {f"{{{RUN}}}": 2.5, f"{{{OTHER}}}": 1}),
            hours("Runs by what they lost", "whyidle-fleet", {f"{{{RUN}}}": 3, f"{{{OTHER}}}": 1}, "C"),
        ],
    }
    check([test], tmp_path)


def check(tests: list[Json], folder: Path) -> None:
    document = {"rule_files": [], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yaml").write_text(write_yaml(json.loads(json.dumps(document)), width=1_000_000))
    done = run_tests(["test.yaml"], folder)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
