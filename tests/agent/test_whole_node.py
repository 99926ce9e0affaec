"""A real agent on the whole simulated node: one golden answer, and a failed file or library call costs only its own
series."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from fake_node.kernel import COMPILER
from fake_node.whole import Whole, whole
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support_agent import Agent
from support_ledgers import until
from support_matrix import FAULTS, files, spoilt

from whyidle.agent.collector import COLLECTORS
from whyidle.agent.metrics import BY_COLLECTOR, METRICS

GOLDEN = Path(__file__).parent / "golden" / "node.prom"
UPDATE = "WHYIDLE_UPDATE_GOLDEN"

pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="needs a C compiler for the libraries under the node"),
    pytest.mark.xdist_group("whole node"),
]

VARYING = re.compile(
    "|".join(
        (
            "process_",
            "whyidle_advice_gain",
            "whyidle_build_info",
            "whyidle_clock_time",
            "whyidle_collector_(age|duration)",
            r"whyidle_collector_failures_total\{.*reason=\"(deadline|hanging|skipped)\"",
            "whyidle_(run_)?compute_(idle|observed)",
            r"whyidle_(device|unhooked)_seconds_total\{node=",  # of GPUs without a rank
            r"whyidle_(run_)?device_seconds_total\{.*cause=\"startup\"",
            "whyidle_filesystem_(available|free|size)",
            "whyidle_gpu_(busy|observed|memory_busy|sm_active|sm_occupancy|tensor_active|dram_active)",
            "whyidle_gpu_(pcie_bytes|throttled)",
            "whyidle_node_info",
            "whyidle_phase_open",
            "whyidle_process_(blocked|state_samples|uninterruptible)",
            "whyidle_rank_info",
            "whyidle_rank_numa",
            "whyidle_read_errors",
        )
    )
)
"""Series whose values depend on the machine, or are integrated over the time that passed."""

SPOILT_AT_ONCE = 4
LOOKS = 8
"""File systems are found in samples of the ranks' open files. After this many scrapes, all have been found."""

NOT_HERE = {
    "whyidle_gpu_other_busy_seconds_total": "sparse, and only ranks compute on their GPUs",
    "whyidle_rank_killed": "both ranks live",
    "whyidle_rank_out_of_memory": "both ranks live",
    "whyidle_rank_failed": "both ranks live",
    "whyidle_rank_stopped": "no rank got SIGTERM",
    "whyidle_rank_restored_step": "no rank has restored a checkpoint",
    "whyidle_rank_unused_gpus": "the ranks use their GPUs",
    "whyidle_run_spare_gpus": "the ranks were not asked how many GPUs they see",
    "whyidle_collective_missing_seconds": "no rank waits for another",
    "whyidle_nic_pause_storms_total": "sparse, and no adapter of the node was stormed",
    "whyidle_nic_priority_discards_total": "sparse, and no adapter of the node discarded by priority",
}
"""Metrics that are declared and have no series on this node."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with whole(tmp_path_factory.mktemp("node")) as built:
        yield built


@pytest.fixture(scope="module")
def answer(node: Whole) -> str:
    """The agent's answer after LOOKS scrapes, with ten seconds of the GPUs' clock between them."""
    with node.agent() as agent:
        agent.get()
        node.gpus.xid(2, 79)
        for _ in range(LOOKS - 2):
            node.gpus.advance(10)
            agent.get()
            time.sleep(0.1)  # GPM is not read more often
        node.gpus.advance(10)
        return until(lambda: _with_advice(agent.get()[2].decode()))


def _with_advice(text: str) -> str:
    """Advice is computed by a separate process, and is empty until then."""
    return text if "whyidle_advice_info{" in text else ""


def _masked(text: str) -> str:
    """The part of the answer that is always the same, without values of the machine or the moment, with the samples of
    each family in order."""
    lines: list[str] = []
    samples: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            lines += [*sorted(samples), line]
            samples.clear()
            continue
        if VARYING.match(line):
            name, _, _ = line.rpartition(" ")
            line = re.sub(r'(pid|arch|version)="[^"]*"', r'\1="*"', name) + " *"
        samples.append(line)
    return "\n".join([*lines, *sorted(samples), ""])


def test_answer_equals_the_golden_file(answer: str) -> None:
    """`WHYIDLE_UPDATE_GOLDEN=1 pytest tests/agent/test_whole_node.py` updates it. Read the changes before a commit."""
    found = _masked(answer)
    if os.environ.get(UPDATE):
        GOLDEN.write_text(found)
    expected = GOLDEN.read_text()
    difference = list(difflib.unified_diff(expected.splitlines(), found.splitlines(), "golden", "found", n=0))
    assert not difference, "\n".join(difference[:60])


def test_declared_metrics_and_exported_series_are_the_same(answer: str) -> None:
    families = {family.name for family in parse(answer)}
    declared = {metric.name.removesuffix("_total"): metric.name for metric in METRICS}
    assert families <= declared.keys()
    assert {declared[name] for name in declared.keys() - families} == NOT_HERE.keys()


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of the Debian package prometheus")
def test_promtool_accepts_the_answer(answer: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=answer, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_openmetrics_has_the_same_values(node: Whole) -> None:
    with node.agent() as agent:
        status, headers, body = agent.get(Accept="application/openmetrics-text;version=1.0.0")
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert len({family.name for family in parse_openmetrics(body.decode())}) > 200


def test_a_gpu_has_at_most_sixty_series(answer: str) -> None:
    names = {metric.name.removesuffix("_total") for metric in BY_COLLECTOR["gpu"]}
    counts: Counter[str] = Counter()
    for family in parse(answer):
        if family.name in names:
            counts.update(s.labels["uuid"] for s in family.samples if s.labels.get("uuid", "").startswith("GPU-"))
    assert len(counts) == 8
    assert max(counts.values()) <= 60


def test_exports_nothing_else_of_an_environment(answer: str) -> None:
    assert "SECRET" not in answer
    assert "nobody may see this" not in answer


def _up(agent: Agent) -> dict[str, float]:
    return {labels["collector"]: value for name, labels, value in agent.samples() if name == "whyidle_collector_up"}


def test_a_bad_file_affects_only_its_own_series(node: Whole) -> None:
    """Corrupts every file of the trees in one of the ways. The collectors' own tests use all ways.

    At each scrape, several files are corrupted that are far apart in the trees, so that one hardly hides another.
    """
    each = [*zip(files(Path(node.roots.procfs), Path(node.roots.sysfs)), cycle(FAULTS))]
    scrapes = -(-len(each) // SPOILT_AT_ONCE)
    with node.agent() as agent:
        assert _up(agent) == dict.fromkeys([entry.name for entry in COLLECTORS], 1)
        for number in range(scrapes):
            with contextlib.ExitStack() as stack:
                for path, fault in each[number::scrapes]:
                    stack.enter_context(spoilt(path, fault))
                status, _, body = agent.get()
            assert status == 200, each[number::scrapes]
            down = re.findall(r'^whyidle_collector_up\{collector="(\w+)"\} 0$', body.decode(), re.MULTILINE)
            assert not down, (each[number::scrapes], down)
        assert _up(agent) == dict.fromkeys([entry.name for entry in COLLECTORS], 1)
        assert not [line for line in agent.log() if "level=error" in line]


def _gpu_failures(text: str) -> Counter[str]:
    """The failures of the GPU collector so far, by reason. A busy machine may have caused some already."""
    found = re.findall(
        r'^whyidle_collector_failures_total\{collector="gpu",reason="(\w+)"\} (\d+)$', text, re.MULTILINE
    )
    return Counter({reason: int(count) for reason, count in found})


def test_a_hung_library_stops_only_its_collector_until_it_returns(node: Whole) -> None:
    with node.agent("--collector.deadline=500ms") as agent:
        assert until(lambda: _up(agent)["gpu"] == 1)
        before = _gpu_failures(agent.get()[2].decode())
        node.gpus.hang("nvmlDeviceGetMemoryInfo_v2")
        node.gpus.hang("nvmlDeviceGetMemoryInfo")
        node.gpus.hang("nvmlDeviceGetFieldValues")
        try:
            text = agent.get()[2].decode()
            assert 'whyidle_collector_up{collector="gpu"} 0' in text
            assert "whyidle_gpu_busy_seconds" not in text
            assert text.count('whyidle_collector_up{collector="') == len(COLLECTORS)
            assert (
                text.count("} 0\n", text.index("# TYPE whyidle_collector_up"), text.index("# TYPE whyidle_collector_d"))
                == 1
            )
            after = _gpu_failures(agent.get()[2].decode())
            assert [after[reason] - before[reason] for reason in ("deadline", "hanging")] == [1, 1]
        finally:
            node.gpus.heal()
        until(lambda: _up(agent)["gpu"] == 1)
