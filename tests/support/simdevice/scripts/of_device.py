"""Checks of the device's streams, events, copies, counts and captures."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import simdevice
import torch
from torch import nn

MS = 1_000_000
AHEAD_MS = 100
"""Work that a stream gets first if the host must finish before it, even on a loaded machine."""


def event() -> torch.Event:
    return torch.Event("sim", enable_timing=True)


def raises(function: Callable[[], object]) -> str:
    try:
        function()
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("nothing was raised")


def check_the_accelerator_is_ours() -> None:
    assert str(torch.accelerator.current_accelerator()) == "sim"
    assert torch.accelerator.device_count() == 2
    assert torch.zeros(2, device="sim").device == torch.device("sim", 0)


def check_busy_takes_exactly_its_time() -> None:
    x = torch.randn(4, device="sim", requires_grad=True)
    simdevice.busy(x, 3, 5, "layer").sum().backward()
    torch.accelerator.synchronize()
    assert [(each.tag, each.ns) for each in simdevice.schedule()] == [
        ("layer forward", 3 * MS),
        ("layer backward", 5 * MS),
    ]
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 4


def check_a_full_stream_has_no_gaps() -> None:
    simdevice.occupy(AHEAD_MS)
    for _ in range(20):
        simdevice.occupy(1)
    torch.accelerator.synchronize()
    entries = simdevice.schedule()
    assert entries[-1].end - entries[0].start == (AHEAD_MS + 20) * MS
    assert simdevice.gaps(entries, entries[0].start, entries[-1].end) == []


def check_elapsed_time_is_the_schedules() -> None:
    first, last = event(), event()
    simdevice.occupy(AHEAD_MS)
    first.record()
    simdevice.occupy(4)
    simdevice.occupy(3)
    last.record()
    assert not last.query()
    last.synchronize()
    assert last.query()
    assert first.elapsed_time(last) == 7.0
    assert "enable_timing" in raises(lambda: torch.Event("sim").elapsed_time(last))


def check_an_idle_stream_is_a_gap() -> None:
    simdevice.occupy(1)
    torch.accelerator.synchronize()
    before = time.monotonic_ns()
    time.sleep(0.01)
    simdevice.occupy(1)
    torch.accelerator.synchronize()
    first, second = simdevice.schedule()
    assert second.start - first.end >= 10 * MS
    assert first.end <= before
    assert simdevice.gaps([first, second], first.start, second.end) == [(first.end, second.start)]


def check_an_idle_stream_passes_events_without_its_thread() -> None:
    passed, unfinished, side = event(), event(), torch.Stream(device="sim")
    passed.record()
    assert passed.query()
    side.wait_event(passed)
    assert side.query()
    simdevice.occupy(AHEAD_MS)
    unfinished.record()
    side.wait_event(unfinished)
    assert not unfinished.query()
    assert not side.query()
    torch.accelerator.synchronize()
    assert [each.kind for each in simdevice.schedule()] == ["busy", "wait"]


def check_streams_overlap_and_wait_for_events() -> None:
    home, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    simdevice.occupy(AHEAD_MS, "home")
    with torch.sim.stream(side):  # pyright: ignore
        simdevice.occupy(2 * AHEAD_MS, "side")
    home.wait_stream(side)
    simdevice.occupy(1, "after")
    torch.accelerator.synchronize()
    at_home, beside = simdevice.schedule(home), simdevice.schedule(side)
    assert [each.kind for each in at_home] == ["busy", "wait", "busy"]
    assert at_home[1].end == beside[0].end
    assert at_home[2].start == beside[0].end
    assert simdevice.overlap(beside, at_home[:1]) == at_home[0].end - beside[0].start


def check_a_loaded_machine_changes_no_duration() -> None:
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            sum(range(1000))

    other = threading.Thread(target=load)
    other.start()
    first, last = event(), event()
    simdevice.occupy(AHEAD_MS)
    first.record()
    for _ in range(10):
        simdevice.occupy(2)
    last.record()
    last.synchronize()
    stop.set()
    other.join()
    assert first.elapsed_time(last) == 20.0


def check_a_full_queue_blocks_the_host() -> None:
    simdevice.set_queue_limit(4)
    for _ in range(12):
        simdevice.occupy(2)
    assert simdevice.counters()["full_queue"] >= 1
    x = torch.ones(2, device="sim")
    for _ in range(12):  # released by torch around its operators
        x = x + 1
    assert simdevice.counters()["full_queue_with_gil"] == 0
    simdevice.set_queue_limit(1)
    marks = [torch.Event("sim") for _ in range(4)]
    for release in (False, True):
        simdevice.release_gil_when_full(release)
        for mark in marks:
            simdevice.occupy(1)
            mark.record()
    assert simdevice.counters()["full_queue_with_gil"] >= 1


def check_the_host_runs_ahead() -> None:
    simdevice.occupy(4 * AHEAD_MS)
    x = torch.ones(8, 8, device="sim")
    for _ in range(50):
        x = torch.tanh(x @ x)
    assert not torch.accelerator.current_stream().query()
    counts = simdevice.counters()
    assert counts["operator_blocking"] == counts["copy_blocking"] == 0
    assert torch.isfinite(x).all().item()
    assert simdevice.counters()["operator_blocking"] == 1


def check_copies_block_as_cudas_do() -> None:
    pinned, pageable = torch.ones(1000).pin_memory(), torch.ones(1000)
    assert pinned.is_pinned()
    there = pinned.to("sim", non_blocking=True)
    pageable.to("sim", non_blocking=True)
    pinned.copy_(there, non_blocking=True)
    assert simdevice.counters()["copy_blocking"] == 0
    pinned.to("sim")
    there.cpu()
    assert simdevice.counters()["copy_blocking"] == 2
    simdevice.clear_schedule()
    simdevice.set_copy_rate(0.004)  # 4000 bytes take 1 ms
    there.cpu()
    simdevice.set_copy_rate(0)
    assert [(each.kind, each.ns) for each in simdevice.schedule()] == [("copy", MS)]


def check_kernels_take_a_set_time() -> None:
    x = torch.ones(4, device="sim")
    torch.accelerator.synchronize()
    simdevice.set_kernel_time(500)
    torch.tanh(x)
    torch.accelerator.synchronize()
    simdevice.set_kernel_time(0)
    assert [(each.kind, each.tag, each.ns) for each in simdevice.schedule()] == [("kernel", "aten::tanh", MS // 2)]


def check_counts_are_per_label() -> None:
    with simdevice.blame("hook"):
        mark = torch.Event("sim")
        mark.record()
        mark.query()
    torch.accelerator.synchronize()
    assert simdevice.counters("hook")["query_event"] == 1
    assert simdevice.counters("hook")["record_event"] == 1
    assert simdevice.counters("hook")["synchronize_device"] == 0
    assert simdevice.counters()["synchronize_device"] == 1
    assert simdevice.counters("nobody")["query_event"] == 0


def check_callers_are_named() -> None:
    with simdevice.callers("of_device.py") as calls:
        torch.ones(1, device="sim").item()
    assert [call for call, _ in calls][-1] == "operator_blocking"
    assert "of_device.py:" in calls[-1][1]
    with simdevice.callers("checks.py") as calls:  # which is further up
        torch.ones(1, device="sim").item()
    assert calls == []
    with simdevice.callers("/elsewhere/") as calls:
        torch.accelerator.synchronize()
    assert calls == []


def check_a_context_is_made_where_something_happens() -> None:
    simdevice.forget_contexts()
    assert simdevice.contexts() == [False, False]
    torch.Event("sim:1")
    torch.accelerator.current_stream()
    assert simdevice.contexts() == [False, False]
    torch.ones(1, device="sim:1")
    assert simdevice.contexts() == [False, True]
    simdevice.occupy(0.1)
    assert simdevice.contexts() == [True, True]


def check_a_capture_forbids_queries() -> None:
    before, graph = event(), simdevice.Graph()
    before.record()
    x = torch.zeros(2, device="sim")
    torch.accelerator.synchronize()
    with graph.capture():
        assert torch.sim.is_current_stream_capturing()  # pyright: ignore
        x.add_(1)
        simdevice.occupy(2)
        assert "capturing" in raises(before.query)
        assert "capturing" in raises(torch.accelerator.synchronize)
        event().record()
    assert not torch.sim.is_current_stream_capturing()  # pyright: ignore
    assert x.tolist() == [0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2]
    assert [each.ns for each in simdevice.schedule()] == [2 * MS, 2 * MS]
    counts = simdevice.counters()
    assert (counts["query_in_capture"], counts["synchronize_in_capture"], counts["record_in_capture"]) == (1, 1, 1)


def check_an_error_is_raised_at_the_next_synchronization() -> None:
    torch.ones(2, device="sim").index_select(0, torch.tensor([5], device="sim", dtype=torch.int64))
    assert "out of range" in raises(torch.accelerator.synchronize)
    torch.accelerator.synchronize()


def check_random_numbers_repeat() -> None:
    torch.manual_seed(3)
    first, dropped = torch.rand(4, device="sim"), nn.functional.dropout(torch.ones(100, device="sim"), 0.4)
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="sim"))
    assert torch.equal(dropped, nn.functional.dropout(torch.ones(100, device="sim"), 0.4))
    state = torch.sim.get_rng_state()  # pyright: ignore
    first = torch.randn(4, device="sim")
    torch.sim.set_rng_state(state)  # pyright: ignore
    assert torch.equal(first, torch.randn(4, device="sim"))
    assert len(set(torch.randperm(9, device="sim").tolist())) == 9


def check_memory_is_returned() -> None:
    gc.collect()
    torch.accelerator.synchronize()
    before = torch.sim.memory_allocated()  # pyright: ignore
    x = torch.ones(1000, device="sim")
    assert torch.sim.memory_allocated() == before + 4000  # pyright: ignore
    x.untyped_storage().resize_(0)
    torch.accelerator.synchronize()
    assert torch.sim.memory_allocated() == before  # pyright: ignore
