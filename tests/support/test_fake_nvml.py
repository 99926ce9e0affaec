"""The simulated NVML itself, through the real binding: its answers are those that nvml.h promises."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_node import nvml
from fake_node.nvml import Node

DEADLINE_SECONDS = 240
pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc, which builds the fake NVML, is not installed")

MIB = 1 << 20
SECOND = 1_000_000


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def seen(node: Node) -> Iterator[Node]:
    """A node that this process sees, with NVML initialised."""
    with node.loaded():
        pynvml.nvmlInit()
        yield node


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def program(node: Node, code: str, missing: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A separate process under the real loader. ``code`` sees pynvml as p."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import json, sys\nimport pynvml as p\n{code}"],
        env={**os.environ, **node.environment(missing)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(node: Node, code: str, missing: Sequence[str] = ()) -> Any:
    """The output of the program, which is JSON."""
    with program(node, code, missing) as process:
        return json.loads(process.communicate(timeout=DEADLINE_SECONDS)[0])


def error(call: Callable[..., Any], *arguments: Any) -> int:
    """The code of the error that the call raises, or 0."""
    try:
        call(*arguments)
    except pynvml.NVMLError as raised:
        return raised.value
    return 0


def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not look():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


TELL = "say = lambda *them: print(json.dumps(them), flush=True)\n"
RAISED = """
def raised(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return [type(error).__name__, getattr(error, "value", None)]
"""


def test_the_loader_finds_it_by_name_and_changes_are_seen_at_once(node: Node) -> None:
    code = """
p.nvmlInit()
device = p.nvmlDeviceGetHandleByIndex(2)
for line in sys.stdin:
    say(p.nvmlDeviceGetCount(), p.nvmlDeviceGetUUID(device), p.nvmlDeviceGetPowerUsage(device))
"""
    with program(node, TELL + code) as process:
        asked, said = process.stdin, process.stdout
        assert asked
        assert said

        def ask() -> list[Any]:
            print(file=asked, flush=True)
            return json.loads(said.readline())

        assert ask() == [8, "GPU-00000002-feed-4bee-8bad-0000c0ffee02", 302_000]
        node.gpu(2, power_mw=123)
        assert ask()[2] == 123
        node.add(8)
        assert ask()[0] == 8, "who is initialised does not see new GPUs"
        asked.close()
    assert node.calls()["nvmlDeviceGetPowerUsage"] == 3


@pytest.mark.parametrize(("code", "name"), [(9, "DriverNotLoaded"), (18, "LibRmVersionMismatch"), (4, "NoPermission")])
def test_initialisation_fails(node: Node, code: int, name: str) -> None:
    node.fail("nvmlInitWithFlags", code)
    assert answer(node, f"{TELL}{RAISED}say(raised(p.nvmlInit))") == [[f"NVMLError_{name}", code]]


def test_without_a_script_no_driver_is_loaded(node: Node) -> None:
    node.path.unlink()
    assert answer(node, f"{TELL}{RAISED}say(raised(p.nvmlInit))") == [["NVMLError_DriverNotLoaded", 9]]


def test_a_missing_symbol_is_not_an_nvml_error(node: Node) -> None:
    code = f"""{TELL}{RAISED}
p.nvmlInit()
device = p.nvmlDeviceGetHandleByIndex(0)
say(raised(p.nvmlDeviceGetComputeRunningProcesses, device), raised(p.nvmlDeviceGetFieldValues, device, [138]),
    p.nvmlDeviceGetTotalEnergyConsumption(device), issubclass(p.NVMLLibraryMismatchError, p.NVMLError))
"""
    missing = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetFieldValues")
    said = answer(node, code, missing)
    assert said == [["NVMLLibraryMismatchError", None], ["NVMLError_FunctionNotFound", 13], 10_000_000_000, False]


def test_a_symbol_can_be_missing_in_this_process_too(node: Node) -> None:
    with node.loaded(missing=["nvmlDeviceGetComputeRunningProcesses_v3"]):
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLLibraryMismatchError):
            pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    with node.loaded():
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
        node.fail("nvmlDeviceGetComputeRunningProcesses_v3", 13)
        with pytest.raises(pynvml.NVMLLibraryMismatchError):
            pynvml.nvmlDeviceGetComputeRunningProcesses(handle())


def test_a_call_hangs_until_the_script_lets_it_go(node: Node) -> None:
    node.hang("nvmlDeviceGetPowerUsage", gpu=1)
    code = """
p.nvmlInit()
devices = [p.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
say(p.nvmlDeviceGetPowerUsage(devices[0]))
say(p.nvmlDeviceGetPowerUsage(devices[1]))
"""
    with program(node, TELL + code) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline()) == [300_000]
        until(lambda: node.calls()["nvmlDeviceGetPowerUsage"] == 2)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        node.heal()
        assert json.loads(process.stdout.readline()) == [301_000]


def test_other_calls_work_during_a_hang(seen: Node) -> None:
    seen.hang("nvmlDeviceGetUUID")
    device = handle()
    thread = threading.Thread(target=pynvml.nvmlDeviceGetUUID, args=(device,))
    thread.start()
    until(lambda: seen.calls()["nvmlDeviceGetUUID"])
    assert pynvml.nvmlDeviceGetTemperature(device, 0) == 40
    assert thread.is_alive()
    seen.heal()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_hanging_calls_return_at_the_end(node: Node) -> None:
    with ThreadPoolExecutor(1) as pool:
        with node.loaded():
            pynvml.nvmlInit()
            node.hang("nvmlDeviceGetCount_v2")
            hanging = pool.submit(error, pynvml.nvmlDeviceGetCount)
            until(lambda: node.calls()["nvmlDeviceGetCount_v2"])
        assert hanging.result(DEADLINE_SECONDS) in (0, pynvml.NVML_ERROR_UNINITIALIZED)


def test_every_function_can_be_made_to_fail(seen: Node) -> None:
    library = pynvml.nvmlLib
    for name in nvml.FUNCTIONS:
        if name == "nvmlErrorString":
            continue
        seen.heal()
        seen.fail(name, 999)
        assert getattr(library, name)(*[ctypes.c_void_p()] * 6) == 999, name
    seen.heal()
    seen.fail("*", 15)
    assert error(pynvml.nvmlDeviceGetCount) == 15
    assert pynvml.nvmlErrorString(15) == "GPU is lost"


@pytest.mark.parametrize("code", [1, 3, 4, 6, 9, 10, 15, 16, 17, 999])
def test_a_function_can_fail_for_one_gpu(seen: Node, code: int) -> None:
    seen.fail("nvmlDeviceGetMemoryInfo", code, gpu=3)
    assert error(pynvml.nvmlDeviceGetMemoryInfo, handle(3)) == code
    assert error(pynvml.nvmlDeviceGetMemoryInfo, handle(4)) == 0


def test_values_can_be_missing_or_errors(seen: Node) -> None:
    seen.gpu(0, power_mw=None, temp="!999")
    assert error(pynvml.nvmlDeviceGetPowerUsage, handle(0)) == 3
    assert error(pynvml.nvmlDeviceGetTemperature, handle(0), 0) == 999
    assert error(pynvml.nvmlDeviceGetFanSpeed, handle(0)) == 3
    seen.gpu(None, fan_percent=30)
    assert pynvml.nvmlDeviceGetFanSpeed(handle(0)) == 30


def test_identity_and_state(seen: Node) -> None:
    device = handle(5)
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    assert (pci.busId, pci.busIdLegacy, pci.bus) == ("00000000:6B:00.0", "0000:6B:00.0", 0x6B)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3"
    assert pynvml.nvmlDeviceGetSerial(device) == "1650023000105"
    assert pynvml.nvmlDeviceGetArchitecture(device) == pynvml.NVML_DEVICE_ARCH_HOPPER
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId("00000000:6B:00.0")) == 5
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))) == 5
    assert pynvml.nvmlSystemGetDriverVersion() == "550.54.15"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12040
    old, new = pynvml.nvmlDeviceGetMemoryInfo(device), pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2)
    assert (old.total, old.used - new.used, new.reserved) == (81_559 * MIB, 551 * MIB, 551 * MIB)
    assert old.free == new.free == new.total - new.used - new.reserved
    assert pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM) == 2619
    assert pynvml.nvmlDeviceGetTemperatureV(device, 0) == 45
    assert pynvml.nvmlDeviceGetRemappedRows(device) == (1, 0, 0, 0)
    assert pynvml.nvmlDeviceGetTotalEccErrors(device, 0, pynvml.NVML_AGGREGATE_ECC) == 6
    assert error(pynvml.nvmlDeviceGetMemoryErrorCounter, device, 0, 0, pynvml.NVML_MEMORY_LOCATION_CBU) == 3
    assert error(pynvml.nvmlDeviceGetRetiredPages, device, 0) == 3
    seen.gpu(5, retired0="0x10 0x20", clocks_event_reasons=0x44)
    assert pynvml.nvmlDeviceGetRetiredPages(device, 0) == [16, 32]
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(device) == 0x44
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) == 0x44
    assert [(of.pid, of.gpuInstanceId) for of in pynvml.nvmlDeviceGetComputeRunningProcesses(device)] == [
        (4105, 0xFFFFFFFF)
    ]
    assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses(device) == []


def test_counters_advance_with_the_clock(seen: Node) -> None:
    device = handle(1)
    energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
    throttled = pynvml.nvmlDeviceGetViolationStatus(device, pynvml.NVML_PERF_POLICY_POWER)
    seen.advance(2.5)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - energy == 301_000 * 2.5
    later = pynvml.nvmlDeviceGetViolationStatus(device, pynvml.NVML_PERF_POLICY_POWER)
    assert later.violationTime - throttled.violationTime == 125_000_000
    assert later.referenceTime - throttled.referenceTime == 2.5 * SECOND


def test_field_values_have_an_error_each_and_a_scope(seen: Node) -> None:
    device, everything = handle(2), (1 << 32) - 1
    seen.gpu(2, **{"field202@3": 77, "field230": "!15"})
    asked = [
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_MEMORY_TEMP,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 3),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, everything),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 18),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 3),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 4),
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L3,
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
    ]
    values = pynvml.nvmlDeviceGetFieldValues(device, asked)
    assert [(value.nvmlReturn, value.value.ullVal) for value in values] == [
        (0, 10_000_000_002),
        (0, 52),
        (0, 1_000_002),
        (0, 18_000_036),
        (2, 0),
        (0, 77),
        (3, 0),
        (15, 0),
        (0, 2),
        (0, 2),
        (0, 18),
    ]
    assert [values[0].valueType, values[1].valueType] == [
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
    ]
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(device, 3, pynvml.NVML_NVLINK_ERROR_DL_REPLAY) == 2
    assert error(pynvml.nvmlDeviceGetNvLinkState, device, 18) == 2


def utilisation(device: Any, since: int) -> list[tuple[int, int]]:
    kind, samples = pynvml.nvmlDeviceGetSamples(device, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples]


def test_sample_buffer_keeps_the_last_samples(seen: Node) -> None:
    device, start = handle(0), nvml.START * SECOND
    whole = utilisation(device, 0)
    assert len(whole) == 120, "the last 24 s of the minute since the boot"
    assert whole[-1] == (start, 50)
    seen.level(0, "util", 100)
    seen.advance(0.3)
    seen.level(0, "util", 0)
    seen.advance(0.35)
    newer = utilisation(device, start)
    assert newer == [(start + 200_000, 100), (start + 400_000, 50), (start + 600_000, 0)]
    assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 0
    assert error(utilisation, device, newer[-1][0]) == pynvml.NVML_ERROR_NOT_FOUND
    seen.advance(25)
    late = utilisation(device, newer[-1][0])
    assert len(late) == 120, "what was not fetched in time is gone"
    assert late[0][0] > newer[-1][0] + 200_000
    seen.gpu(0, sample_buffer=5)
    assert len(utilisation(device, 0)) == 5


def gpm_metrics(first: Any, second: Any, *ids: int) -> list[tuple[int, float]]:
    get = pynvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    get.sample1, get.sample2 = first, second
    for at, metric in enumerate(ids):
        get.metrics[at].metricId = metric
    pynvml.nvmlGpmMetricsGet(get)
    return [(get.metrics[at].nvmlReturn, get.metrics[at].value) for at in range(len(ids))]


def test_gpm_gives_the_true_mean(seen: Node) -> None:
    device = handle(0)
    assert pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice
    first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(device, first)
    seen.advance(1)
    seen.level(0, "util", 90)
    seen.advance(3)
    seen.level(0, "tensor", 0)
    seen.gpu(0, gpm40="8 1700000004:0")
    pynvml.nvmlGpmSampleGet(device, second)
    seen.level(0, "util", 0)
    seen.advance(10)
    assert gpm_metrics(first, second, 1, 2, 3, 5, 10, 20, 61, 62, 40, 41) == [
        (0, (50 + 3 * 90) / 4),
        (0, 45),
        (0, 25),
        (0, 30),
        (0, 35),
        (0, 100),
        (0, 1800),
        (0, 200),
        (0, 8),
        (3, 0),
    ]
    assert math.isnan(gpm_metrics(second, second, 1)[0][1])
    pynvml.nvmlGpmSampleGet(handle(1), first)
    assert error(gpm_metrics, first, second, 1) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    seen.gpu(1, gpm=0)
    assert not pynvml.nvmlGpmQueryDeviceSupport(handle(1)).isSupportedDevice
    assert error(pynvml.nvmlGpmSampleGet, handle(1), first) == pynvml.NVML_ERROR_NOT_SUPPORTED
    pynvml.nvmlGpmSampleFree(first)
    pynvml.nvmlGpmSampleFree(second)


def test_divides_gpus_into_mig_devices(seen: Node) -> None:
    parent = handle(7)
    assert pynvml.nvmlDeviceGetMigMode(parent) == [1, 1]
    assert pynvml.nvmlDeviceGetMigMode(handle(0)) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(parent) == 7
    devices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number) for number in range(3)]
    assert error(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, 3) == pynvml.NVML_ERROR_NOT_FOUND
    assert [pynvml.nvmlDeviceGetGpuInstanceId(device) for device in devices] == [1, 3, 7]
    uuid = pynvml.nvmlDeviceGetUUID(devices[1])
    assert uuid == "MIG-00000007-feed-5bee-8bad-0000dec0de03"
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(uuid)).endswith("MIG 2g.20gb")
    assert pynvml.nvmlDeviceGetAttributes(devices[0]).memorySizeMB == 40_192
    assert pynvml.nvmlDeviceGetMemoryInfo(devices[0]).total == 40_192 * MIB
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(devices[0])) == 7
    pids = [[of.pid for of in pynvml.nvmlDeviceGetComputeRunningProcesses(of)] for of in (parent, *devices)]
    assert pids == [[4171, 4172], [4171], [4172], []]
    for call, device in ((pynvml.nvmlDeviceGetUtilizationRates, parent), (pynvml.nvmlDeviceGetPowerUsage, devices[0])):
        assert error(call, device) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert error(utilisation, parent, 0) == pynvml.NVML_ERROR_NOT_SUPPORTED

    first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmMigSampleGet(parent, 3, first)
    seen.advance(1)
    seen.level(7, "sm", 0, mig=1)
    seen.advance(1)
    pynvml.nvmlGpmMigSampleGet(parent, 3, second)
    assert gpm_metrics(first, second, 1, 2, 20) == [(0, 63), (0, 29), (3, 0)]
    assert error(pynvml.nvmlGpmMigSampleGet, parent, 4, first) == pynvml.NVML_ERROR_NOT_FOUND
    seen.mig(7, 1, uuid=None)
    assert error(pynvml.nvmlDeviceGetMemoryInfo, devices[1]) == pynvml.NVML_ERROR_NOT_FOUND


def test_events_are_given_once_to_each_set(seen: Node) -> None:
    seen.xid(1, 13)
    sets = [pynvml.nvmlEventSetCreate() for _ in range(2)]
    for one in sets:
        for gpu in (1, 2, 7):
            pynvml.nvmlDeviceRegisterEvents(handle(gpu), pynvml.nvmlEventTypeXidCriticalError, one)
    assert error(pynvml.nvmlEventSetWait_v2, sets[0], 0) == pynvml.NVML_ERROR_TIMEOUT, "13 came before"
    seen.xid(3, 31)
    seen.xid(2, 63)
    seen.event(2, pynvml.nvmlEventTypePState, 5)
    seen.xid(7, 94, instance=3, compute=0)

    def given(one: Any) -> list[tuple[int, int, int]]:
        told = []
        while True:
            try:
                data = pynvml.nvmlEventSetWait_v2(one, 0)
            except pynvml.NVMLError_Timeout:
                return told
            told.append((pynvml.nvmlDeviceGetIndex(data.device), data.eventData, data.gpuInstanceId))

    expected = [(2, 63, 0xFFFFFFFF), (7, 94, 3)]
    assert [given(one) for one in sets] == [expected, expected]
    assert [given(one) for one in sets] == [[], []]
    seen.lose(1)
    seen.xid(2, 79)
    assert pynvml.nvmlEventSetWait_v2(sets[0], 0).eventData == 79
    assert error(pynvml.nvmlEventSetWait_v2, sets[0], 0) == pynvml.NVML_ERROR_GPU_IS_LOST
    pynvml.nvmlEventSetFree(sets[0])
    assert error(pynvml.nvmlEventSetWait_v2, sets[0], 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_an_event_wakes_a_waiting_caller(seen: Node) -> None:
    one = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(4), pynvml.nvmlEventTypeXidCriticalError, one)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pynvml.nvmlEventSetWait_v2, one, DEADLINE_SECONDS * 1000)
        until(lambda: seen.calls()["nvmlEventSetWait_v2"])
        seen.xid(4, 48)
        assert waiting.result(DEADLINE_SECONDS).eventData == 48


def test_gpus_can_be_lost_found_removed_and_added(seen: Node) -> None:
    device, last = handle(3), handle(6)
    seen.lose(3)
    assert error(pynvml.nvmlDeviceGetPowerUsage, device) == error(handle, 3) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert pynvml.nvmlDeviceGetCount() == 8
    seen.find(3)
    assert pynvml.nvmlDeviceGetPowerUsage(device) == 303_000
    seen.remove(3)
    seen.add(8)
    assert pynvml.nvmlDeviceGetCount() == 8
    assert error(pynvml.nvmlDeviceGetPowerUsage, device) == pynvml.NVML_ERROR_GPU_IS_LOST
    pynvml.nvmlShutdown()
    assert error(pynvml.nvmlDeviceGetPowerUsage, last) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()
    uuids = [pynvml.nvmlDeviceGetUUID(handle(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    assert [uuid[4:12] for uuid in uuids] == [f"{gpu:08x}" for gpu in (0, 1, 2, 4, 5, 6, 7, 8)]


def test_finds_leaks(seen: Node) -> None:
    samples = []
    while error(lambda: samples.append(pynvml.nvmlGpmSampleAlloc())) == 0:
        assert len(samples) < 10_000
    assert error(pynvml.nvmlGpmSampleAlloc) == pynvml.NVML_ERROR_MEMORY
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)


def test_follows_real_time(tmp_path: Path) -> None:
    node = Node(tmp_path, gpus=2, mig=None, real_time=True)
    with node.loaded():
        pynvml.nvmlInit()
        before, device = time.time_ns() // 1000, handle()
        energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
        until(lambda: utilisation(device, 0)[-1][0] > before)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(device) > energy
        assert error(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, 0) == pynvml.NVML_ERROR_NOT_FOUND


def test_concurrent_builds_give_one_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml.tempfile, "gettempdir", lambda: str(tmp_path))
    code = f"import sys, tempfile; sys.path.insert(0, {str(Path(__file__).parent)!r}); tempfile.tempdir = sys.argv[1]\n"
    code += "from fake_node import nvml; print(nvml.library())"
    builds = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    built = {process.communicate(timeout=DEADLINE_SECONDS)[0].strip() for process in builds}
    assert built == {str(nvml.library())}
    ctypes.CDLL(built.pop())
    assert len(list(tmp_path.rglob(f"{nvml.SONAME}*"))) == 1
