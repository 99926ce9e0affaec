"""Waits of an accelerator in calls that block the host, too; and events of the training that are given timing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support_stream import SimStream

from whyidle.ledger.reader import parse_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks import machine as machine_module
from whyidle.torch_hooks.device_clock import DeviceClock
from whyidle.torch_hooks.hooks.fsdp import _reduces_in
from whyidle.torch_hooks.hooks.timed_events import TimedEvents
from whyidle.torch_hooks.machine import PhaseMachine
from whyidle.torch_hooks.patching import Patches
from whyidle.torch_hooks.wait_codes import wait_code

MS, SECOND = 1_000_000, 1_000_000_000


@pytest.mark.parametrize(("blocks", "waited_ms"), [(True, 20), (False, 0)])
def test_a_host_that_spins_in_a_call_that_blocks_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: bool, waited_ms: int
) -> None:
    """cudaStreamSynchronize, with which NCCL ends a barrier, uses a CPU until the device is done."""
    strings = {"run": "r", "node": "n", "device": "sim:0", "uuid": ""}
    writer = LedgerWriter(str(tmp_path), strings, {"rank": 0, "world_size": 2, "device_index": 0})
    stream = SimStream(now_ns=10 * SECOND)
    monkeypatch.setattr(machine_module, "_now", stream.now)
    machine = PhaseMachine(writer.words, stream.start_ns)
    machine._awake = stream.now  # type: ignore[assignment]  # the host always has a CPU
    machine.device = DeviceClock(stream, machine._passed.append, stream.start_ns, now=stream.now)
    machine.begin()
    old = machine.enter_wait(wait_code(2), (), blocks)
    stream.wait_for(stream.now() + 20 * MS)
    stream.synchronize()
    machine.leave_wait(old)
    for _ in range(2):
        stream.host(6 * MS)
        machine.cut(machine.phase)
    ledger = parse_ledger(bytes(writer.words), "here", alive=True)
    writer.close()
    assert round(ledger.cause_ns["collective"] / MS) == waited_ms
    assert ledger.faults == 0


class Marked:
    """Like torch.cuda.Event: it takes attributes. In torch 2.11 it does not clear weak references to it."""

    __slots__ = ("__dict__",)


class Plain:
    """Like torch.Event."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("kind", [Marked, Plain])
def test_knows_the_events_that_it_has_given_timing(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    module = SimpleNamespace(Event=lambda enable_timing: kind())
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    recorded: list[Any] = []
    stream = SimpleNamespace(device="sim", record_event=recorded.append)
    faults: list[Exception] = []
    session: Any = SimpleNamespace(machine=SimpleNamespace(device=True), fault=lambda hook, error: faults.append(error))
    patches = Patches()
    timed = TimedEvents(session, "fsdp2", patches)
    timed.of([stream])
    stream.record_event()
    event = timed.recorded_on(stream)
    assert recorded[0] in timed
    assert event in timed
    assert kind() not in timed
    patches.undo()
    assert not faults


@pytest.mark.parametrize("kept", [True, False])
def test_a_wait_for_a_reduce_scatter_is_in_the_group_of_shards(kept: bool) -> None:
    """While FSDP2 waits for it, torch 2.13 has already forgotten its state, and older versions have not."""
    scatter, reduced, last = object(), object(), object()
    group = SimpleNamespace(
        mesh_info=SimpleNamespace(shard_process_group="shards", replicate_process_group="replicas"),
        comm_ctx=SimpleNamespace(
            reduce_scatter_states=[SimpleNamespace(event=scatter)] * kept, _last_post_reduce_events={"stream": last}
        ),
        _reduce_scatter_process_group="shards",
        _all_reduce_process_group="replicas",
        _post_reduce_event=reduced,
    )
    assert [_reduces_in(group, event) for event in (scatter, reduced, last)] == ["shards", "replicas", "replicas"]
