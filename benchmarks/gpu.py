"""What the device clock says against what is known: run it where there is a CUDA GPU.

    python benchmarks/gpu.py [--json] [--only idle,kineto,exposed,cost,utilisation]

Prints a table, or one JSON object with --json. Exits 0 also where there is no GPU (it says so), 1 if a section failed.
Each section stands alone: one that fails costs itself only.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from whyidle.ledger.causes import PHASE
from whyidle.ledger.layout import LEDGER_BYTES
from whyidle.torch_hooks.cuda_events import CudaEvents
from whyidle.torch_hooks.device_clock import DeviceClock, Interval
from whyidle.torch_hooks.machine import PhaseMachine

torch: Any
try:
    import torch
except ImportError:
    torch = None

HOST, WORK, WAIT = 0, 1, 2
REPEATS = 20
NCCL_LATE_MS = 20.0


class Row(NamedTuple):
    """One comparison; None: nothing is known beforehand, or nothing could be measured, and ``note`` says why."""

    what: str
    known: float | None
    measured: float | None
    unit: str
    note: str = ""


class Bracketed:
    """A device clock whose phases a section switches by hand."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self.ns: dict[int, int] = {}
        self.clock = DeviceClock(CudaEvents(), self._add, time.monotonic_ns())
        self.mark(HOST)  # on an idle stream: the anchor is exact

    def _add(self, interval: Interval) -> None:
        self.ns[interval.phase] = self.ns.get(interval.phase, 0) + interval.ns

    def mark(self, ended: int) -> int:
        now = time.monotonic_ns()
        self.clock.mark(now, ended)
        return now

    def harvest(self) -> None:
        self.clock.harvest(time.monotonic_ns())

    def finish(self) -> dict[int, float]:
        """Milliseconds per phase, when all is done."""
        torch.cuda.synchronize()
        self.clock.close(time.monotonic_ns(), wait_ns=10_000_000)
        if self.clock.unmeasured or self.clock.faults:
            raise RuntimeError(f"{self.clock.unmeasured} boundaries unmeasured, {self.clock.faults} faults")
        return {phase: ns / 1e6 for phase, ns in self.ns.items()}


def cycles_per_ms() -> float:
    """How many cycles of ``torch.cuda._sleep`` last a millisecond, at the clock rate that the GPU has now."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000_000)  # lets the clocks rise, and the launches below run ahead
    start.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    torch.cuda.synchronize()
    return 100_000_000 / start.elapsed_time(end)


# -- 1: idle of known length


def idle() -> list[Row]:
    """Work of known length, then a host wait of known length: the idle that the wait caused is known."""
    rate = cycles_per_ms()
    rows = []
    for work_ms, wait_ms in ((0.0, 5.0), (5.0, 20.0), (10.0, 10.5), (20.0, 5.0), (0.2, 0.5)):
        clock = Bracketed()
        known = 0.0
        for _ in range(REPEATS):
            launched = time.monotonic_ns()
            torch.cuda._sleep(int(work_ms * rate))
            begin = clock.mark(WORK)
            time.sleep(wait_ms / 1e3)
            end = clock.mark(WAIT)
            known += max(0.0, end - max(begin, launched + work_ms * 1e6)) / 1e6
            torch.cuda.synchronize()
            clock.mark(HOST)
            clock.harvest()
        measured = clock.finish()[WAIT]
        rows.append(Row(f"{work_ms} ms queued, host waits {wait_ms} ms", known / REPEATS, measured / REPEATS, "ms"))
    return rows


# -- 2: against a Kineto trace


def kineto() -> list[Row]:
    """The same steps seen by torch.profiler: host phases from its annotations, idle from the gaps between kernels."""
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(1024, 2048, device="cuda")
    _train_step(model, optimizer, batch)
    clock = Bracketed()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        torch.cuda.synchronize()
        clock.mark(HOST)
        for _ in range(REPEATS):
            with record_function("phase:wait"):
                time.sleep(0.01)
                clock.mark(WAIT)
            with record_function("phase:work"):
                _train_step(model, optimizer, batch)
                clock.mark(WORK)
        clock.mark(HOST)
        measured = clock.finish()
    waits, works, kernels = _trace(profiler)
    idle_in_waits = _length(waits) - _overlap(waits, kernels)
    busy_or_gap = _length(kernels) + _length(works) - _overlap(works, kernels)
    return [
        Row("idle in waits, per step", idle_in_waits / REPEATS, measured[WAIT] / REPEATS, "ms", "known: trace"),
        Row("work and its gaps, per step", busy_or_gap / REPEATS, measured[WORK] / REPEATS, "ms", "known: trace"),
    ]


def _train_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


Spans = list[tuple[float, float]]


def _trace(profiler) -> tuple[Spans, Spans, Spans]:
    """Waits, works and the union of device activity, in ms of the trace's own clock."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]

    def spans(wanted: Callable[[dict[str, Any]], bool]) -> Spans:
        return _union((e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3) for e in events if e.get("ph") == "X" and wanted(e))

    def named(name: str) -> Callable[[dict[str, Any]], bool]:
        return lambda e: e.get("cat") == "user_annotation" and e["name"] == name

    kernels = spans(lambda e: e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    if not kernels:
        raise RuntimeError("the trace has no kernels: CUPTI is missing, or another profiler holds the GPU")
    return spans(named("phase:wait")), spans(named("phase:work")), kernels


def _union(spans: Iterable[tuple[float, float]]) -> Spans:
    union: Spans = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def _length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def _overlap(some: Spans, others: Spans) -> float:
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


# -- 3: exposed communication


def exposed() -> list[Row]:
    """A side stream of known length that the current stream waits for; then NCCL, with a delay of known length."""
    rate = cycles_per_ms()
    rows = []
    for side_ms, own_ms in ((20.0, 5.0), (5.0, 20.0), (10.0, 0.0)):
        measured = _exposed_by(lambda ms=side_ms: _side_sleep(ms, rate), own_ms, rate)
        what = f"side stream {side_ms} ms behind {own_ms} ms of work"
        rows.append(Row(what, max(0.0, side_ms - own_ms), measured, "ms"))
    return rows + _nccl_one(rate) + _nccl_late()


def _side_sleep(ms: float, rate: float) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(int(ms * rate))
        event = side.record_event()
    return lambda: torch.cuda.current_stream().wait_event(event)


def _exposed_by(start: Callable[[], Callable[[], Any]], own_ms: float, rate: float) -> float:
    """Mean ms charged to the wait for what ``start`` began, with ``own_ms`` of work on the current stream."""
    clock = Bracketed()
    for _ in range(REPEATS):
        wait = start()
        torch.cuda._sleep(int(own_ms * rate))
        clock.mark(WORK)
        wait()
        clock.mark(WAIT)
        torch.cuda.synchronize()
        clock.mark(HOST)
        clock.harvest()
    return clock.finish()[WAIT] / REPEATS


def _nccl_one(rate: float) -> list[Row]:
    """A group of one: its all-reduce starts when the side stream's sleep ends."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_nccl_available()):
        return [Row("NCCL", None, None, "ms", "this torch has no NCCL")]
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        gradient = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(gradient)
        side = torch.cuda.Stream()

        def start() -> Callable[[], Any]:
            with torch.cuda.stream(side):
                torch.cuda._sleep(int(10 * rate))
                work: Any = dist.all_reduce(gradient, async_op=True)
            return work.wait

        return [Row("NCCL, one rank, 10 ms late behind 2 ms", 8.0, _exposed_by(start, 2.0, rate), "ms")]
    finally:
        dist.destroy_process_group()


def _nccl_late() -> list[Row]:
    """Two GPUs: the second enters each all-reduce late by a known time, the first waits for it."""
    if torch.cuda.device_count() < 2:
        return [Row("NCCL, a late rank", None, None, "ms", "needs two GPUs")]
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as directory:
        out = os.path.join(directory, "wait")
        mp.spawn(_late_rank, args=(os.path.join(directory, "store"), out), nprocs=2)
        with open(out) as file:
            measured = float(file.read())
    return [Row(f"NCCL, the other rank {NCCL_LATE_MS} ms late", NCCL_LATE_MS, measured, "ms", "and the transfer")]


def _late_rank(rank: int, store: str, out: str) -> None:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    gradient = torch.ones(1 << 20, device="cuda")
    rate = cycles_per_ms()
    dist.all_reduce(gradient)
    clock = Bracketed()
    for _ in range(REPEATS):
        torch.cuda._sleep(int(NCCL_LATE_MS * rate) if rank else 0)
        clock.mark(WORK)
        work: Any = dist.all_reduce(gradient, async_op=True)
        work.wait()
        clock.mark(WAIT)
        torch.cuda.synchronize()
        clock.mark(HOST)
    measured = clock.finish()[WAIT] / REPEATS
    if rank == 0:
        with open(out, "w") as file:
            file.write(str(measured))
    dist.destroy_process_group()


# -- 4: what it costs


def cost() -> list[Row]:
    """Host time per call, the smallest mean of five rounds; and one phase switch as a training loop pays for it."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    last.record()
    torch.cuda.synchronize()
    calls = {
        "Event.record": first.record,
        "Event.query": last.query,
        "is_current_stream_capturing": torch.cuda.is_current_stream_capturing,
        "current_stream": torch.cuda.current_stream,
    }
    rows = [Row(name, None, _ns_per_call(call), "ns") for name, call in calls.items()]
    torch.cuda.synchronize()
    rows.append(Row("Event.elapsed_time", None, _ns_per_call(lambda: first.elapsed_time(last)), "ns"))
    rows.append(Row("phase switch on CUDA, harvest included", None, _switch_ns(), "ns", "20 switches a step"))
    return rows


def _ns_per_call(call: Callable[[], Any], calls: int = 500) -> float:
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / calls)
    return best


def _switch_ns() -> float:
    words = memoryview(mmap.mmap(-1, LEDGER_BYTES)).cast("q")
    machine = PhaseMachine(words, time.monotonic_ns())
    machine.drive(CudaEvents())
    machine.begin()
    data = PHASE["data"]

    def step() -> None:
        for _ in range(10):
            machine.leave(machine.enter(data))
        machine.boundary(PHASE["host"])

    step()  # creates the events
    return _ns_per_call(step, calls=100) / 21


# -- 5: the GPU's own counters


def utilisation(seconds: float = 6.0) -> list[Row]:
    """A GPU that works half of the time, seen by NVML, GPM, nvidia-smi and the device clock in the same seconds."""
    import pynvml

    rate = cycles_per_ms()
    pynvml.nvmlInit()
    try:
        handle = _nvml_handle(pynvml)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        smi = subprocess.Popen(
            ["nvidia-smi", f"--id={uuid}", *query],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            gpm = _Gpm(pynvml, handle)
            samples, busy = _half_load(seconds, rate, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            graphics, note = gpm.graphics_ratio()
        finally:
            smi.terminate()
            lines = smi.communicate(timeout=10)[0].split()
    finally:
        pynvml.nvmlShutdown()
    smi_samples = [int(line) / 100 for line in lines if line.isdigit()]
    rows = [Row("NVML utilization.gpu, mean", busy, sum(samples) / len(samples) / 100, "ratio", "known: device clock")]
    if smi_samples:
        rows.append(Row("nvidia-smi utilization.gpu, mean", busy, sum(smi_samples) / len(smi_samples), "ratio"))
    rows.append(Row("GPM graphics utilisation", busy, graphics, "ratio", note))
    return rows


def _half_load(seconds: float, rate: float, sample: Callable[[], Any]) -> tuple[list[int], float]:
    """Samples while the GPU works 25 ms of each 50; and the share of device time that the clock calls work."""
    clock = Bracketed()
    samples: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.cuda._sleep(int(25 * rate))
        torch.cuda.synchronize()
        clock.mark(WORK)
        time.sleep(0.025)
        clock.mark(WAIT)
        clock.harvest()
        samples.append(sample())
    spent = clock.finish()
    return samples, spent[WORK] / sum(spent.values())


def _nvml_handle(pynvml):
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)


class _Gpm:
    """GPM's graphics utilisation between construction and question. Hopper and later only."""

    def __init__(self, pynvml, handle):
        self.nvml, self.handle, self.first, self.why = pynvml, handle, None, ""
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self.why = "this GPU has no GPM"
                return
            self.first = self._sample()
        except Exception as error:  # nvmlGpm* is missing in older bindings and drivers, each in its own way
            self.why = f"no GPM: {error}"

    def _sample(self):
        sample = self.nvml.nvmlGpmSampleAlloc()
        self.nvml.nvmlGpmSampleGet(self.handle, sample)
        return sample

    def graphics_ratio(self) -> tuple[float | None, str]:
        if self.first is None:
            return None, self.why
        try:
            query = self.nvml.c_nvmlGpmMetricsGet_t()
            query.version = self.nvml.NVML_GPM_METRICS_GET_VERSION
            query.numMetrics = 1
            query.sample1, query.sample2 = self.first, self._sample()
            query.metrics[0].metricId = 1  # NVML_GPM_METRIC_GRAPHICS_UTIL, percent
            self.nvml.nvmlGpmMetricsGet(query)
            metric = query.metrics[0]
            if ctypes.c_uint(metric.nvmlReturn).value:
                return None, f"no GPM: NVML error {metric.nvmlReturn}"
            return metric.value / 100, ""
        except Exception as error:
            return None, f"no GPM: {error}"


# -- the report

SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "idle": idle,
    "kineto": kineto,
    "exposed": exposed,
    "cost": cost,
    "utilisation": utilisation,
}


def why_not() -> str | None:
    """Why nothing can be measured here, in one sentence."""
    if torch is None:
        return "torch is not installed, so nothing was measured."
    if not torch.cuda.is_available():
        return "There is no CUDA GPU here (or this torch has no CUDA), so nothing was measured."
    return None


def machine() -> dict[str, str]:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split("\n")[0] or "unknown"
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return {
        "gpu": f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}",
        "driver": driver,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or torch.version.hip),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def run(names: Iterable[str]) -> dict[str, Any]:
    report: dict[str, Any] = {"benchmark": "gpu", **machine(), "sections": {}, "failed": {}}
    for name in names:
        try:
            report["sections"][name] = [row._asdict() for row in SECTIONS[name]()]
        except Exception as error:  # the others still tell something
            report["failed"][name] = f"{type(error).__name__}: {error}"
    return report


def table(report: dict[str, Any]) -> str:
    lines = [" · ".join(f"{key} {report[key]}" for key in ("gpu", "driver", "torch", "cuda", "python", "date"))]
    for name, rows in report["sections"].items():
        lines += ["", f"{name:<48} {'known':>12} {'measured':>12}  unit"]
        for row in rows:
            known, measured = ("-" if row[key] is None else f"{row[key]:.3f}" for key in ("known", "measured"))
            lines.append(f"  {row['what']:<46} {known:>12} {measured:>12}  {row['unit']}  {row['note']}".rstrip())
    lines += [f"\n{name} failed: {why}" for name, why in report["failed"].items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas (default: all)")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if why := why_not():
        print(json.dumps({"benchmark": "gpu", "skipped": why}) if options.json else why)
        return 0
    report = run(names)
    print(json.dumps(report, indent=2) if options.json else table(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
