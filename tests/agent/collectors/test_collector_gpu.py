"""The collector `gpu`, with the real nvidia-ml-py and a simulated library that follows a script."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_node.nvml import Node
from support_gpu import WHOLE, Answer, Bench, looking
from support_ledgers import DEADLINE_SECONDS, Spec, children, until

from whyidle.agent.collector import Options
from whyidle.agent.collectors.gpu import GpuCollector, fields
from whyidle.agent.collectors.gpu.collector import GpuFault
from whyidle.agent.collectors.gpu.idle_compute import _Rank
from whyidle.agent.collectors.gpu.idle_difference import ActivityPoints
from whyidle.agent.collectors.gpu.target import ASK_AGAIN_SECONDS, Uninitialised
from whyidle.agent.collectors.gpu.unhooked import normal
from whyidle.agent.fence import Fences
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics.gpu import METRICS
from whyidle.agent.reading import Absent, Reading
from whyidle.ledger.causes import CAUSES

# A process loads the library once, and pynvml keeps it in globals.
pytestmark = pytest.mark.xdist_group("nvml")

SERIES_MOST = 72
DIVIDED = 1  # for a node with two GPUs
CODES = {1: "uninitialised", 2: "invalid argument", 3: "not supported", 4: "no permission", 6: "not found",
         9: "driver not loaded", 10: "timeout", 15: "lost", 16: "reset required", 999: "unknown error"}  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from looking(tmp_path)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Bench]:
    """No GPU is partitioned."""
    yield from looking(tmp_path, mig=None)


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Bench]:
    """A GPU older than Hopper."""
    for bench in looking(tmp_path, mig=None):
        bench.node.gpu(None, architecture=7, gpm=0)
        yield bench


def test_exports_the_series_of_a_gpu(bench: Bench) -> None:
    bench.look()
    answer = bench.look(10)
    assert not answer.errors
    uuid = bench.node.values["gpu0.uuid"]
    info = ("0", uuid, "0000:1b:00.0", "NVIDIA H100 80GB HBM3", "hopper", "550.54.15", "disabled")
    assert ("whyidle_gpu_info", info) in answer.series
    expected = {
        "memory_used_bytes": 10 << 30,
        "power_watts": 300.0,
        "power_limit_watts": 700.0,
        "sm_clock_hertz": 1_755_000_000,
        "memory_clock_max_hertz": 2_619_000_000,
        "temperature_celsius": 40,
        "pcie_link_width_lanes": 16,
        "performance_state": 0,
        "lost": 0,
        "processes": 1,
        "faults_total": 0,
    }
    for name, value in expected.items():
        assert answer.value(f"whyidle_gpu_{name}", "0", uuid) == value, name
    assert answer.value("whyidle_gpu_busy_seconds_total", "0", "gpm") == pytest.approx(5.0)
    assert answer.value("whyidle_gpu_observed_seconds_total", "0", "gpm") == 10
    assert answer.value("whyidle_gpu_energy_joules_total", "0") == pytest.approx(10_000_000 + 300 * 10)
    assert answer.value("whyidle_gpu_throttled_seconds_total", "0", "sw_power_cap", "counter") == 1.5


def test_the_number_of_series_is_bounded(bench: Bench) -> None:
    for number in range(20):
        bench.node.xid(WHOLE, 10 + number)
    bench.look()
    bench.node.xid(WHOLE, 79)
    for number in range(20):
        bench.node.xid(WHOLE, 10 + number)
    bench.look(1)
    answer = bench.look(10)
    assert len(answer.of(WHOLE)) <= SERIES_MOST, answer.names(WHOLE)
    for mig in {labels[1] for _, labels in answer.of(DIVIDED) if labels[1].startswith("MIG-")}:
        assert len([1 for _, labels in answer.series if mig in labels]) <= 15
    names = {metric.name for metric in METRICS}
    assert {name for name, _ in answer.series} - {"whyidle_device_seconds_total"} <= names


OF_RANKS = ("compute_idle", "compute_observed", "run_compute_idle")


def test_every_metric_that_is_declared_has_a_series_on_some_gpu(bench: Bench, tmp_path: Path) -> None:
    bench.node.gpu(0, field29=2, field30=3, field31=1)
    seen: set[str] = set()
    for gpm in (1, 0):
        bench.node.gpu(0, gpm=gpm)
        bench.collector = bench.new()
        bench.look()
        bench.node.xid(WHOLE, 79)
        seen |= {name for name, _ in bench.look(10).series}
    missing = {metric.name for metric in METRICS} - seen
    alone = {"whyidle_gpu_other_busy_seconds_total"}  # only ranks compute on these GPUs
    assert missing <= {f"whyidle_{what}_seconds_total" for what in OF_RANKS} | alone, missing


def test_a_mig_device_has_its_own_series_and_its_gpu_has_no_utilisation(bench: Bench) -> None:
    bench.look()
    answer = bench.look(10)
    uuid = bench.node.values["gpu1.uuid"]
    mig = bench.node.values["gpu1.mig1.uuid"]
    assert ("whyidle_gpu_mig_info", ("1", uuid, mig, "2g.20gb", "3", "0")) in answer.series
    assert answer.value("whyidle_gpu_mig_memory_used_bytes", "1", mig) == 3 << 30
    assert answer.value("whyidle_gpu_observed_seconds_total", "1", mig, "gpm") == 10
    busy = {labels for name, labels in answer.series if name == "whyidle_gpu_busy_seconds_total" and labels[0] == "1"}
    assert {labels[1][:4] for labels in busy} == {"MIG-"}
    assert answer.value("whyidle_device_seconds_total", "cuda:1:1", "unhooked_busy") > 0


def test_the_node_sums_its_gpus_without_a_ledger(bench: Bench) -> None:
    bench.look()
    answer = bench.look(10)
    for cause in ("unhooked_busy", "unhooked_idle", "empty"):
        of_devices = [
            value
            for (name, labels), value in answer.series.items()
            if name == "whyidle_device_seconds_total" and cause in labels
        ]
        of_node = [
            value
            for (name, labels), value in answer.series.items()
            if name == "whyidle_unhooked_seconds_total" and cause in labels
        ]
        assert sum(of_node) == pytest.approx(sum(of_devices))
        assert not any(of_devices) or of_node


def test_mig_devices_before_hopper_have_no_utilisation(older: Bench) -> None:
    node = Node(older.directory, 2)
    node.gpu(None, gpm=0)
    older.node = node
    older.look()
    answer = older.look(10)
    assert not answer.errors
    assert not {labels for name, labels in answer.series if "busy" in name and labels[0] == "1"}
    assert answer.value("whyidle_gpu_busy_seconds_total", "0", "nvml") == pytest.approx(5.0, abs=0.11)


def test_follows_a_gpu_whose_mig_devices_change(bench: Bench) -> None:
    before = bench.look(10)
    old = bench.node.values["gpu1.mig0.uuid"]
    bench.node.mig(1, 0, uuid="MIG-new", instance=5)
    bench.look(10)
    answer = bench.look(11)
    assert any(old in labels for _, labels in before.series)
    assert not any(old in labels for _, labels in answer.series)
    assert answer.value("whyidle_gpu_mig_memory_used_bytes", "MIG-new") == 1 << 30
    bench.node.gpu(1, mig_mode=0)
    bench.look(11)
    answer = bench.look(11)
    assert not [labels for name, labels in answer.series if "mig_" in name]
    assert answer.value("whyidle_gpu_observed_seconds_total", "1", "gpm") == 11


@pytest.mark.parametrize("source", ["gpm", "nvml"])
def test_misses_nothing_between_scrapes(bench: Bench, older: Bench, source: str) -> None:
    del older  # the fixture of the other source sets up the same node; here it is set up by hand
    node = bench.node
    node.gpu(0, gpm=int(source == "gpm"), util=0)
    bench.look()
    truth = 0.0
    start = node.clock or 0.0
    for at, (level, seconds) in enumerate([(100, 3.0), (0, 11.0), (50, 2.0), (100, 0.4), (7, 14.6), (0, 1.0)]):
        node.level(0, "util", level)
        node.advance(seconds)
        truth += level / 100 * seconds
        if at in (1, 3, 4):
            answer = bench.look()
            assert answer.value("whyidle_gpu_busy_seconds_total", "0", source) == pytest.approx(truth, abs=0.02)
    answer = bench.look()
    elapsed = (node.clock or 0.0) - start
    assert answer.value("whyidle_gpu_observed_seconds_total", "0", source) == pytest.approx(elapsed, abs=0.21)


def test_samples_lost_by_the_buffer_are_not_observed_time(older: Bench) -> None:
    older.look()
    answer = older.look(1000)
    observed = answer.value("whyidle_gpu_observed_seconds_total", "0", "nvml")
    assert 20 <= observed <= 25
    assert answer.value("whyidle_gpu_busy_seconds_total", "0", "nvml") == pytest.approx(observed / 2, rel=0.02)
    assert sum(answer.seconds("cuda:0")) == pytest.approx(observed)


def test_throttling_without_a_counter_is_sampled(bench: Bench) -> None:
    names = bench.look().names(0)
    assert names["throttled_seconds_total"] == 2  # the reasons that have occurred, from counters
    bench.node.gpu(0, clocks_event_reasons=0x40)
    bench.look(10)
    bench.node.gpu(0, clocks_event_reasons=0)
    answer = bench.look(10)
    assert answer.value("whyidle_gpu_throttled_seconds_total", "0", "hw_thermal", "sampled") == 10
    bench.node.gpu(0, clocks_event_reasons=0x40)
    answer = bench.look(1000)  # what happened in this time is not known
    assert answer.value("whyidle_gpu_throttled_seconds_total", "0", "hw_thermal", "sampled") == 10


def test_each_xid_counts_once(bench: Bench) -> None:
    bench.look()
    for number in (79, 48, 79):
        bench.node.xid(WHOLE, number)
    answer = bench.look(1)
    assert answer.value("whyidle_gpu_xid_events_total", "0", "79") == 2
    assert answer.value("whyidle_gpu_xid_events_total", "0", "48") == 1
    answer = bench.look(1)
    assert answer.value("whyidle_gpu_xid_events_total", "0", "79") == 2
    assert answer.value("whyidle_gpu_faults_total", "0") == 3
    assert answer.value("whyidle_gpu_faults_total", "1") == 0


def test_counters_reset_by_the_driver_are_exported_unchanged(bench: Bench) -> None:
    bench.look()
    bench.node.gpu(0, energy_mj=5000, pcie_replays=0)
    answer = bench.look(1)
    assert answer.value("whyidle_gpu_energy_joules_total", "0") == 5


def test_a_lost_gpu_has_its_state_and_earlier_counters_only(bench: Bench) -> None:
    bench.look()
    bench.node.xid(WHOLE, 79)
    before = bench.look(5)
    bench.node.lose(WHOLE)
    answer = bench.look(5)
    assert answer.names(WHOLE) == {"lost": 1, "faults_total": 1, "xid_events_total": 1}
    assert answer.value("whyidle_gpu_lost", "0") == 1
    assert answer.of(DIVIDED).keys() == before.of(DIVIDED).keys()
    assert {error.reason for error in answer.errors} == {"lost"}
    busy = before.value("whyidle_gpu_busy_seconds_total", "0", "gpm")
    bench.node.find(WHOLE)
    bench.look(5)
    answer = bench.look(5)
    assert answer.of(WHOLE).keys() == before.of(WHOLE).keys()
    assert answer.value("whyidle_gpu_busy_seconds_total", "0", "gpm") == pytest.approx(busy + 2.5)


def test_reports_a_gpu_that_is_lost_from_the_start(bench: Bench) -> None:
    bench.node.lose(WHOLE)
    answer = bench.look()
    assert answer.names(WHOLE) == {"lost": 1}
    bench.node.find(WHOLE)
    bench.look(1)
    assert bench.look(1).value("whyidle_gpu_lost", "0", bench.node.values["gpu0.uuid"]) == 0


def test_follows_gpus_that_come_and_go(bench: Bench) -> None:
    listing = bench.directory / "proc/driver/nvidia/gpus"
    for address in ("0000:1b:00.0", "0000:2b:00.0"):
        (listing / address).mkdir(parents=True)
    bench.look()
    busy = bench.look(10).value("whyidle_gpu_busy_seconds_total", "0", "gpm")
    bench.node.add(2)
    (listing / "0000:3b:00.0").mkdir()
    bench.look(1)
    answer = bench.look(10)
    assert answer.value("whyidle_gpu_memory_used_bytes", "2") == 12 << 30
    assert answer.value("whyidle_gpu_busy_seconds_total", "0", "gpm") > busy  # continues, and does not start again
    bench.node.remove(2)
    (listing / "0000:3b:00.0").rmdir()
    assert not bench.look(1).of(2)


def test_continues_after_the_driver_was_reloaded(bench: Bench) -> None:
    bench.look()
    before = bench.look(10)
    bench.node.fail("nvmlDeviceGetFieldValues", 1)
    with pytest.raises(Exception, match="nvmlDeviceGetFieldValues"):
        bench.look(1)
    bench.node.heal()
    bench.look(1)
    answer = bench.look(10)
    assert not answer.errors
    assert answer.series.keys() == before.series.keys()
    labels = ("0", "gpm")
    name = "whyidle_gpu_busy_seconds_total"
    assert answer.value(name, *labels) == pytest.approx(before.value(name, *labels) + 5.0)


def test_an_impossible_value_is_counted_and_absent(bench: Bench) -> None:
    bench.look()
    before = bench.look(1)
    bench.node.gpu(0, memory_used=1 << 60, clock_sm=4_000_000, pcie_width=70_000, temp=5000)
    answer = bench.look(1)
    lost = {name for name, _ in before.of(WHOLE).keys() - answer.of(WHOLE).keys()}
    for what in ("memory_used_bytes", "sm_clock_hertz", "pcie_link_width_lanes", "temperature_celsius"):
        assert f"whyidle_gpu_{what}" in lost
    assert {error.reason for error in answer.errors} == {"garbage"}


# The metrics that each call provides, by name. Everything else is known from the start.
FIELDS = {"energy_joules_total", "power_watts", "power_limit_watts", "memory_temperature_celsius", "ecc_errors_total",
          "nvlink_bytes_total", "nvlink_errors_total", "remapped_rows", "row_remap_pending", "row_remap_failure",
          "pcie_replays_total", "throttled_seconds_total"}  # fmt: skip
GPM = {"busy_seconds_total", "observed_seconds_total", "sm_active_seconds_total", "sm_occupancy_seconds_total",
       "tensor_active_seconds_total", "dram_active_seconds_total", "pcie_bytes_total"}  # fmt: skip
HELD: dict[str, set[str]] = {
    "nvmlDeviceGetClockInfo": {"sm_clock_hertz", "memory_clock_hertz"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_hertz", "memory_clock_max_hertz"},
    "nvmlDeviceGetTemperature": {"temperature_celsius"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_link_generation"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_link_generation_max"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_link_width_lanes"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_link_width_max_lanes"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttled_seconds_total"},
    "nvmlDeviceGetFieldValues": FIELDS,
    "nvmlGpmSampleGet": GPM,
    "nvmlGpmMetricsGet": GPM,
    "nvmlEventSetWait_v2": {"faults_total", "xid_events_total"},
    "nvmlDeviceGetMigMode": set(),  # not at each sample
    "nvmlDeviceGetCount_v2": set(),
}
AT_START = {
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetArchitecture", "nvmlSystemGetDriverVersion", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc",
    "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
    "nvmlGpmMigSampleGet",
}  # fmt: skip
ENDS = {"nvmlGpmSampleFree", "nvmlEventSetFree", "nvmlShutdown", "nvmlInitWithFlags", "nvmlInit_v2"}
NOT_ASKED = {"nvmlDeviceGetMigMode"}
OF_NODE = {"nvmlEventSetWait_v2", "nvmlGpmMetricsGet", "nvmlDeviceGetCount_v2", "nvmlGpmSampleAlloc",
           "nvmlEventSetCreate", "nvmlSystemGetDriverVersion"}  # fmt: skip


def test_the_fault_matrix_names_every_call(bench: Bench) -> None:
    bench.look()
    bench.look(11)
    assert set(bench.node.calls()) - ENDS == HELD.keys() | AT_START


@pytest.mark.parametrize("code", CODES)
def test_a_failed_call_affects_only_its_own_series(bench: Bench, code: int) -> None:
    """Makes every call of a sample fail with each code, on a collector that knew the GPU before the fault."""
    node = bench.node
    node.xid(WHOLE, 31)
    node.gpu(WHOLE, clocks_event_reasons=0x40)  # a reason that was never seen has no series
    for call in HELD:
        bench.collector = bench.new()
        bench.look()
        node.xid(WHOLE, 13)
        before = bench.look(10)
        node.fail(call, code, None if call in OF_NODE else WHOLE)
        if code == 1:  # the library is started again, which helps if the library was the problem
            with contextlib.suppress(Uninitialised, GpuFault):
                bench.look(1)
        else:
            _check_loss(before, bench.look(1), call, code)
        node.heal()
        bench.look(ASK_AGAIN_SECONDS + 1)
        bench.look(1)
        after = bench.look(1)
        assert not after.errors, (call, after.errors)
        gone = before.series.keys() - after.series.keys()
        assert not {name for name, _ in gone} - {"whyidle_gpu_xid_events_total"}, (call, gone)


def _check_loss(before: Answer, answer: Answer, call: str, code: int) -> None:
    where = (call, CODES[code], answer.errors)
    whole = call in OF_NODE
    if not whole:
        assert answer.of(DIVIDED).keys() == before.of(DIVIDED).keys(), where
    if code in (15, 16) and call not in NOT_ASKED:
        if not whole:
            assert answer.value("whyidle_gpu_lost", str(WHOLE)) == 1, where
            assert answer.names(WHOLE).keys() == {"lost", "faults_total", "xid_events_total"}, where
        return
    series = (before.series.keys() - answer.series.keys()) if whole else before.of(WHOLE).keys() - answer.of(WHOLE)
    lost = {name.removeprefix("whyidle_gpu_") for name, _ in series}
    told = {error.reason for error in answer.errors}
    held, reason = HELD[call], CODES[code]
    if (call, code) == ("nvmlEventSetWait_v2", 10):  # this means that there are no events
        held, reason = set[str](), ""
    if (call, code) == ("nvmlDeviceGetFieldValues", 3):  # old drivers have these calls
        held = held - {"power_watts", "power_limit_watts"}
    quiet = (code == 3 and call != "nvmlDeviceGetCount_v2") or (call, code) == ("nvmlEventSetWait_v2", 4)
    if quiet or call in NOT_ASKED:
        reason = ""
    assert lost == held, where
    came = answer.series.keys() - before.series.keys()
    if code not in (3, 4):  # other calls may replace a call that always fails
        assert not came, (where, came)
    assert told == ({reason} - {""}), where


@pytest.mark.parametrize("code", [2, 3, 4, 10, 15, 16, 999])
def test_a_call_that_fails_from_the_start_affects_at_most_its_gpu(bench: Bench, code: int) -> None:
    sound = bench.look()
    sound = bench.look(10)
    for call in sorted(AT_START | HELD.keys() - {"nvmlDeviceGetCount_v2"}):
        bench.collector = bench.new()
        bench.node.fail(call, code, None if call in OF_NODE else WHOLE)
        bench.look()
        answer = bench.look(10)
        if call not in OF_NODE:
            assert answer.of(DIVIDED).keys() == sound.of(DIVIDED).keys(), (call, code)
        told = answer.errors or answer.blind or code == 3
        assert told or answer.series.keys() == sound.series.keys(), (call, code)
        bench.node.heal()
        bench.look(ASK_AGAIN_SECONDS + 1)
        bench.look(1)
        answer = bench.look(1)
        assert answer.series.keys() == sound.series.keys(), (call, code)
        assert not answer.errors


OF_MIG = ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
          "nvmlDeviceGetUUID", "nvmlGpmMigSampleGet")  # fmt: skip


@pytest.mark.parametrize("call", OF_MIG)
def test_mig_devices_that_cannot_be_distinguished_affect_only_themselves(bench: Bench, call: str) -> None:
    bench.look()
    before = bench.look(11)
    bench.node.fail(call, 999, DIVIDED)
    answer = bench.look(11)
    assert answer.of(WHOLE).keys() == before.of(WHOLE).keys()
    gone = before.of(DIVIDED).keys() - answer.of(DIVIDED).keys()
    assert gone
    uuid = bench.node.values["gpu1.uuid"]
    assert all(name == "whyidle_gpu_mig_info" or uuid not in labels for name, labels in gone)
    assert {error.reason for error in answer.errors} == {"unknown error"}
    busy = before.value("whyidle_gpu_busy_seconds_total", bench.node.values["gpu1.mig0.uuid"], "gpm")
    bench.node.heal()
    bench.look(11)
    answer = bench.look(11)
    assert answer.series.keys() == before.series.keys()
    assert answer.value("whyidle_gpu_busy_seconds_total", bench.node.values["gpu1.mig0.uuid"], "gpm") > busy


def test_a_gpu_without_gpm_rights_is_read_by_samples(bench: Bench) -> None:
    bench.node.fail("nvmlGpmSampleGet", 4, WHOLE)
    bench.look()
    bench.look(1)
    answer = bench.look(10)
    assert answer.value("whyidle_gpu_busy_seconds_total", "0", "nvml") == pytest.approx(5.0, abs=0.2)


def test_events_that_are_not_allowed_are_a_blind_spot(whole: Bench) -> None:
    whole.node.fail("nvmlDeviceRegisterEvents", 4)
    answer = whole.look()
    assert {blind.what for blind in answer.blind} == {"XID events of GPUs"}
    assert not answer.errors


# Device-seconds of GPUs without a ledger.


def test_exports_seconds_of_gpus_without_a_ledger(whole: Bench) -> None:
    bench, node = whole, whole.node
    node.gpu(0, util=0)
    bench.look()
    node.level(0, "util", 25)
    answer = bench.look(8)
    assert answer.seconds("cuda:0") == (2, 6, 0)
    node.gpu(0, processes="", memory_used=0)
    node.level(0, "util", 0)
    bench.look(4)  # a process was there at the start
    answer = bench.look(10)
    assert answer.seconds("cuda:0") == (2, 10, 10)
    assert not answer.blind


def test_memory_used_by_no_visible_process_is_a_blind_spot(bench: Bench) -> None:
    bench.node.gpu(0, processes="")
    bench.look()
    bench.node.level(0, "util", 0)
    answer = bench.look(10)
    assert answer.seconds("cuda:0") == (0, 10, 0)
    assert answer.blind[0].what == "the processes on GPUs"


def test_a_gpu_with_a_ledger_is_not_counted_by_the_agent(bench: Bench) -> None:
    bench.node.gpu(0, uuid="GPU-0")  # as in the ledgers of tests
    bench.look()
    assert sum(bench.look(10).seconds("cuda:0")) == 10
    with children(bench.ledgers.directory, Spec(rank=0)):
        answer = bench.look(0)
        assert sum(answer.seconds("cuda:0")) == 10
        answer = bench.look(10)
        assert sum(answer.seconds("cuda:0")) == 10
        assert answer.value("whyidle_compute_idle_seconds_total", "lab", "r1", "0", "sampled") == 0
    answer = bench.look(10)
    assert sum(answer.seconds("cuda:0")) == 10  # it had hooks until now
    assert answer.value("whyidle_compute_idle_seconds_total", "lab", "r1", "0", "sampled") == 0, "as its other counters"
    answer = bench.look(10)
    assert sum(answer.seconds("cuda:0")) == 20


@pytest.mark.parametrize(
    ("gpm", "idle", "waits", "empty", "expected"),
    [
        (False, 1.0, 0.0, 0.5, 0.5),  # looks find less than the driver's samples
        (False, 0.0, 0.0, 0.9, 0.0),  # more
        (False, 1.0, 0.0, None, 1.0),  # no looks
        # Shares of idle time by GPM and by looks in loops on an H100: docs/gpu.md.
        (True, 0.92, 0.0, 0.86, 0.92),  # 200 tiny layers
        (True, 0.57, 0.0, 0.46, 0.57),  # torch.compile, reduce-overhead
        (True, 0.72, 0.0, 0.77, 0.72),  # FSDP2
        (True, 0.68, 0.0, 0.62, 0.68),  # ResNet-50
        (True, 0.82, 0.7, 0.1, 0.12),  # waits that block the host: the GPU may be idle in all of them
        (True, 0.1, 0.7, 0.1, 0.1),  # waits of NCCL, which spins
        (True, 0.1, 0.7, 0.5, 0.1),
    ],
)
def test_gpm_decides_about_idle_compute_except_in_waits(
    gpm: bool, idle: float, waits: float, empty: float | None, expected: float
) -> None:
    rank, points = _Rank(), ActivityPoints()
    for second in range(1, 1001):
        points.add(float(second), 1 - idle, 1.0)
        share = {"compute": 1 - waits, "straggler": waits}
        spent = [round(second * 10**9 * share.get(cause, 0.0)) for cause in CAUSES]
        looks = 0 if empty is None else 20 * second
        ledger: Any = SimpleNamespace(
            words={
                "cause_ns": spent,
                "looked_ns": (looks * 10**6,),
                "empty_ns": (round(looks * (empty or 0)) * 10**6,),
            },
            until_ns=second * 10**9,
            looks=looks,
        )
        rank.add(ledger, points, gpm=gpm)
    assert rank.seconds / 940 == pytest.approx(expected, abs=0.01)
    assert rank.covered == pytest.approx((1 - waits) * 939 if gpm else 0)


def test_matches_gpu_uuids_without_the_prefix() -> None:
    assert normal("GPU-0A-1b") == normal("0a-1B")
    assert normal("MIG-0a") == normal("0A")


# In a separate process: what is missing, and what hangs.

SCRIPT = """
import json, sys
from whyidle.agent.collector import Options
from whyidle.agent.collectors import gpu
from whyidle.agent.fence import Fences
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore

class Other:
    def collect(self, reading):
        pass

root, rounds = sys.argv[1], int(sys.argv[2])
options = Options(LedgerStore(root + "/ledgers", 900.0), Roots(root + "/proc", root + "/sys"))
fences = Fences({"gpu": gpu.create(options), "other": Other()}, 0.5)
for _ in range(rounds):
    results = fences.round()
    one = results["gpu"]
    errors = [list(error) for error in one.reading.errors] if one.reading else []
    names = sorted({metric.name for metric in one.reading.samples}) if one.reading else []
    last = "pynvml" in sys.modules
    print(json.dumps([one.state, one.detail, errors, names, results["other"].state, last]), flush=True)
    if one.state in ("deadline", "hanging"):
        sys.stdin.readline()
"""


def _run(directory: Path, environment: dict[str, str], rounds: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory), str(rounds)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _answers(directory: Path, environment: dict[str, str], rounds: int = 1) -> list[list[object]]:
    process = _run(directory, environment, rounds)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    return [json.loads(line) for line in output.splitlines()]


def _pci(directory: Path, driver: str | None = None) -> None:
    device = directory / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    if driver:
        (device / "driver").symlink_to(f"../drivers/{driver}")


@pytest.mark.parametrize(
    ("library", "pci", "loaded", "state"),
    [
        (False, None, False, "absent"),
        (False, "vfio-pci", False, "absent"),
        (False, "nvidia", True, "fault"),  # a container without the library
        (True, None, False, "absent"),
        (True, "", False, "fault"),  # the driver is not loaded, or has crashed
        (True, "vfio-pci", False, "absent"),
    ],
)
def test_a_node_without_gpus_is_absent_and_a_dead_driver_is_an_error(
    tmp_path: Path, library: bool, pci: str | None, loaded: bool, state: str
) -> None:
    if pci is not None:
        _pci(tmp_path, pci)
    if loaded:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550\n")
    node = Node(tmp_path, 0)
    environment = node.environment()
    if library:
        node.fail("nvmlInitWithFlags", 9)
        node.fail("nvmlInit_v2", 9)
    else:
        environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    [[found, detail, *_, imported]] = _answers(tmp_path, environment)
    assert found == state, detail
    assert imported == library  # it would cost a node without GPUs 6 MB


def test_nvml_without_gpus_is_an_error_if_pci_shows_one(bench: Bench) -> None:
    node = Node(bench.directory, 0)
    bench.node = node
    with pytest.raises(Absent):
        bench.look()
    _pci(bench.directory, "nvidia")
    with pytest.raises(GpuFault, match=r"0000:1b:00\.0"):
        bench.look()


MISSING = ("nvmlDeviceGetFieldValues", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMemoryInfo_v2",
           "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # fmt: skip


def test_missing_symbols_are_reported_once_and_affect_only_their_series(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, mig=None)
    first, second = _answers(tmp_path, node.environment(MISSING), 2)
    told = {error[1]: error[2] for error in first[2]}  # pyright: ignore[reportGeneralTypeIssues, reportIndexIssue]
    assert told == dict.fromkeys(set(MISSING) - {"nvmlDeviceGetCurrentClocksThrottleReasons"}, "missing symbol")
    assert second[2] == []
    names = {str(name).removeprefix("whyidle_gpu_") for name in second[3]}  # pyright: ignore[reportGeneralTypeIssues]
    assert {"memory_used_bytes", "power_watts", "busy_seconds_total", "faults_total"} <= names
    assert not {"energy_joules_total", "throttled_seconds_total", "memory_reserved_bytes"} & names


HANGS = ("nvmlInitWithFlags", "nvmlDeviceGetFieldValues")


@pytest.mark.parametrize("call", HANGS)
def test_a_call_that_hangs_stops_only_this_collector_until_it_returns(tmp_path: Path, call: str) -> None:
    node = Node(tmp_path, 1, mig=None, real_time=True)
    node.hang(call)
    process = _run(tmp_path, node.environment(), 10_000)
    assert process.stdout
    assert process.stdin
    try:
        states = []
        for _ in range(2):
            state, _, _, _, other, _ = json.loads(process.stdout.readline())
            states.append(state)
            assert other == "up"
            process.stdin.write("\n")
            process.stdin.flush()
        assert states == ["deadline", "hanging"]
        node.heal()
        while (state := json.loads(process.stdout.readline())[0]) == "hanging":
            time.sleep(0.01)  # a round in which it hangs takes no time
            process.stdin.write("\n")
            process.stdin.flush()
        assert state == "up"
    finally:
        process.kill()
        process.wait(DEADLINE_SECONDS)
        process.stdin.close()
        process.stdout.close()


class _Sound:
    def collect(self, reading: Reading) -> None:
        """Another collector of the same agent."""


def test_each_call_that_hangs_stops_only_this_collector(tmp_path: Path) -> None:
    """In one process, one call after the other, each with its own collector."""
    node = Node(tmp_path, 2, real_time=True)
    options = Options(LedgerStore(str(tmp_path), 900.0), Roots(str(tmp_path), str(tmp_path)))
    with node.loaded():
        for call in sorted(HELD.keys() | AT_START):
            fences = Fences({"gpu": GpuCollector(options), "other": _Sound()}, 0.2)
            node.hang(call)
            states: set[str] = set()

            def round_until(state: str, fences: Fences = fences, states: set[str] = states) -> bool:
                results = fences.round()
                states.add(results["other"].state)
                return results["gpu"].state == state

            until(lambda round_until=round_until: round_until("deadline"))
            assert node.calls()[call], call
            node.heal()
            until(lambda round_until=round_until: round_until("up"))
            fences.close()
            assert states == {"up"}, call


@pytest.mark.parametrize(("kind", "raw", "value"), [(0, 50, 50), (0, 0x4049000000000000, 50.0), (0, 0, 0), (1, 50, 50)])
def test_an_integer_that_a_driver_types_as_a_double_is_an_integer(kind: int, raw: int, value: float) -> None:
    assert fields._value(kind, raw) == value
