"""Measures a live run: reads its ledgers and the node's adapters twice."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from ...advisor.traffic import adapters
from ...advisor.traffic.measured import Measured, NotMeasured, measure
from ...advisor.traffic.recognised import NotRecognised, compare, dimension_of, shape_of
from ...advisor.traffic.shape import Model, Parallel, ShapeError
from ...agent.kernel.interfaces import PHYSICAL
from ...agent.metrics import nic
from ...agent.metrics.process import STORAGE_READ
from ...agent.metrics.rdma_port import TRANSMIT_BYTES
from ...ledger.directory import Run, age, read_directory, run_of
from ...ledger.reader import Ledger, LedgerError, read_ledger
from .. import choice, exposition
from . import text

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

_STEP_WAIT_SECONDS, _LOOK_SECONDS = 5.0, 0.002
"""A reading is made just after the end of a step: how long to wait for that end at least, and how often to check."""
_STEPS_WAITED = 2
"""How many mean steps to wait for it, if that is longer."""

_SENT = (nic.BYTES.name, TRANSMIT_BYTES.name)


class Counted(NamedTuple):
    """The bytes that an agent has counted since the start of its node."""

    sent: dict[str, float]
    """Adapter -> bytes sent. Loopback is left out."""
    read: float | None
    """Bytes that the ranks of the run and their workers have read from storage; None if not known."""
    samples: list[Sample]
    """All samples that were asked for."""
    at: float
    """When the agent answered, in seconds of time.monotonic()."""


def run(args: argparse.Namespace, model: Model, parallel: Parallel | None) -> int:
    chosen = choice.choose("traffic", args)
    if chosen is None:
        return 1
    try:
        report = build(args, chosen.run, newest(chosen.run, chosen.ledgers), model, parallel)
    except NotMeasured as error:
        print(f"whyidle traffic: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) + "\n" if args.json else text.measured(report), end="")
    return 0


def newest(run: Run, ledgers: Sequence[Ledger]) -> list[Ledger]:
    """The ledger of each rank's newest attempt."""
    of_rank = {ledger.rank: ledger for ledger in sorted(ledgers, key=age) if run_of(ledger) == run}
    return [of_rank[rank] for rank in sorted(of_rank)]


def build(
    args: argparse.Namespace, run: Run, ledgers: Sequence[Ledger], model: Model, given: Parallel | None
) -> dict[str, Any]:
    """The report as JSON. Raises NotMeasured and ShapeError."""
    way = "gloo" if all(ledger.device == "cpu" for ledger in ledgers) else args.algorithm
    notes: list[str] = []
    sent: dict[str, float] = {}
    read: float | None = None
    kinds: list[adapters.Use] = []
    before: list[Ledger] = []
    if ledgers and all(ledger.alive for ledger in ledgers):
        before, first, early = _look(args, run, ledgers[0].path)
        time.sleep(args.seconds)
        ledgers, last, why = _look(args, run, ledgers[0].path)
        sent = {device: value - first.sent[device] for device, value in last.sent.items() if device in first.sent}
        read = last.read - first.read if first.read is not None and last.read is not None else None
        kinds = _kinds(first, last)
        notes += sorted({early, why} - {""})
    else:
        notes.append("not all ranks are live: the whole time since their start counts. Adapters are not compared")
    moved = measure(ledgers, before, way)
    if moved.ranks < moved.world_size:
        notes.append("ranks without a ledger here are assumed to be on other nodes")
    compared, labels, why = _compare(model, given, moved)
    notes += [why] if why else []
    return {
        "measured": {"way": way, **asdict(moved)},
        "dimensions": labels,
        "compared": [{**asdict(one), "off": one.off} for one in compared],
        "storage": {"saved": moved.saved, "read": read / moved.steps if read is not None and read >= 0 else None},
        "adapters": _adapters(moved, ledgers, sent),
        "adapter_traffic": [{**one._asdict(), "collides": one.collides} for one in kinds],
        "notes": notes,
    }


def _look(args: argparse.Namespace, run: Run, path: str) -> tuple[list[Ledger], Counted, str]:
    """Waits for the end of a step. Returns the ledgers, the agent's counters, and the reason if these are not known."""
    why = "" if _step_ends(path) else "no step ended when the counters were read, so their bytes are not of whole steps"
    ledgers, _ = read_directory(args.dir, steps=True)
    try:
        found = counted(exposition.ask(args.agent, STORAGE_READ.name, nic.INFO.name, *adapters.METRICS), run)
    except exposition.NoAgent as error:
        return newest(run, ledgers), counted([], run), f"{error}: adapters are not compared"
    return newest(run, ledgers), found, why


def _step_ends(path: str) -> bool:
    """Waits for the end of a step, and returns whether it came."""

    def made() -> tuple[int, float]:
        try:
            ledger = read_ledger(path)
        except LedgerError:
            return -1, 0.0
        return ledger.steps, (ledger.until_ns - ledger.window_ns) / 1e9 / max(1, ledger.steps)

    first, mean = made()
    end = time.monotonic() + max(_STEP_WAIT_SECONDS, _STEPS_WAITED * mean)
    while not (ended := made()[0] != first) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return ended


def counted(found: Iterable[Sample], run: Run) -> Counted:
    """The counters in the samples of an agent."""
    samples, at = list(found), time.monotonic()
    kinds = {one.labels["device"]: one.labels.get("kind", "") for one in samples if one.name == nic.INFO.name}
    if PHYSICAL not in kinds.values():  # in a container
        kinds = {}
    sent: dict[str, float] = {}
    read: float | None = None
    for sample in samples:
        labels = sample.labels
        if sample.name == STORAGE_READ.name:
            if (labels.get("owner", ""), labels.get("run")) == run:
                read = (read or 0.0) + sample.value
        elif (
            sample.name in _SENT
            and kinds.get(labels["device"], PHYSICAL) == PHYSICAL  # what a bond or a VLAN sends, these send
            and labels["device"] != "lo"
            and labels.get("direction", "transmit") == "transmit"
        ):
            sent[labels["device"]] = sent.get(labels["device"], 0.0) + sample.value
    return Counted(sent, read, samples, at)


def _kinds(first: Counted, last: Counted) -> list[adapters.Use]:
    """Traffic between GPUs and of storage, by adapter."""
    before, after = ([(one.name, one.labels, one.value) for one in counted.samples] for counted in (first, last))
    return adapters.uses(before, after, last.at - first.at) if before and after else []


def _compare(model: Model, given: Parallel | None, moved: Measured) -> tuple[list[Any], dict[str, str], str]:
    """Compares the formulas with what the hooks counted. Raises ShapeError.

    Returns the comparison, the dimension of each group, and the reason if there is nothing to compare.
    """
    if given is not None:
        if given.world != moved.world_size:
            raise ShapeError(f"the given shape has {given.world} ranks, but the run has {moved.world_size}")
        shape, labels = given, {group.label: dimension_of(group) for group in moved.groups}
    else:
        try:
            shape, labels = shape_of(moved.groups, moved.world_size)
        except NotRecognised as error:
            return [], {}, str(error)
    if not model.parameters:
        return [], labels, "ledgers do not have the size of the model: give --parameters to compare with formulas"
    return compare(model, shape, moved.groups, labels), labels, ""


def _adapters(moved: Measured, ledgers: Sequence[Ledger], sent: dict[str, float]) -> dict[str, Any] | None:
    nodes = {ledger.node for ledger in ledgers}
    if not sent or len(nodes) != 1:
        return None
    (node,) = nodes
    devices = {name: size / moved.steps for name, size in sent.items() if size > 0}
    return {
        "node": node,
        "devices": devices,
        "sent": sum(devices.values()),
        "predicted": moved.node_across.get(node, 0.0),
    }
