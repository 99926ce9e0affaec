"""The parts of a dossier as JSON."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from ...ledger.directory import Run
from ...ledger.reader import Ledger
from ...verdict.diagnosis import Diagnosis
from ...verdict.ends import end_of
from ...verdict.facts import Facts, Process
from ...verdict.hang import open_group, open_seconds
from ...verdict.stuck import stuck_line
from ..parsers.ras import Status, sentences
from . import recorder
from .node import Node, Xid

FORMAT = 1
"""Raise it when a field changes its meaning or is removed."""


def dossier(
    run: Run | None,
    diagnosis: Diagnosis,
    ranks: list[dict[str, Any]],
    counters: Node,
    xids: list[Xid],
    status: Status | None,
    absent: list[str],
    at: str,
) -> dict[str, Any]:
    owner, name = run or ("", "")
    collective = diagnosis.collective
    return {
        "format": FORMAT,
        "sentence": diagnosis.sentence,
        "hung": diagnosis.hung,
        "at": at,
        "node": os.environ.get("WHYIDLE_NODE") or os.environ.get("NODE_NAME") or os.uname().nodename,
        "owner": owner,
        "run": name,
        "seconds": round(diagnosis.seconds, 3),
        "collective": None
        if collective is None
        else {
            "group": collective.group,
            "size": collective.size,
            "sequence": collective.sequence,
            "in": [{"rank": rank, "seconds": round(spent, 3)} for rank, spent in collective.entered.items()],
            "not_in": list(collective.missing),
            "no_ledger_here": list(collective.unknown),
        },
        "culprits": [asdict(culprit) for culprit in diagnosis.culprits],
        "ranks": ranks,
        "gpus": [gpu._asdict() for gpu in counters.gpus],
        "errors": [error._asdict() for error in counters.errors],
        "xids": [{**xid._asdict(), "seconds_ago": round(xid.seconds_ago, 3)} for xid in xids],
        "nccl": None if status is None else status.plain(),
        "nccl_sentences": [] if status is None else sentences(status),
        "absent": absent,
    }


def rank(number: int, ledger: Ledger | None, facts: Facts) -> dict[str, Any]:
    """One rank: what its ledger says, and what its process does."""
    return {
        "rank": number,
        "ledger": None if ledger is None else _ledger(ledger),
        "process": None if facts.process is None else _process(facts.process, threads=True),
        "workers": [_process(worker) for worker in facts.workers],
        "connections": [connection._asdict() for connection in facts.connections],
        "addresses": list(facts.addresses),
        "gpu_busy": facts.gpu_busy,
        "stack": [],
        "flight_recorder": None,
    }


def flight_recorder(found: recorder.Recorder, said: str) -> dict[str, Any]:
    dump = recorder.dump(found)
    return {
        "asked": said,
        "dump": recorder.shown(found.dump) if dump else "",
        "bytes": dump[0] if dump else 0,
        "age_seconds": round(dump[1], 1) if dump else None,
    }


def _ledger(ledger: Ledger) -> dict[str, Any]:
    where = open_group(ledger)
    return {
        "node": ledger.node,
        "device": ledger.device,
        "uuid": ledger.strings["uuid"],
        "attempt": ledger.attempt,
        "alive": ledger.alive,
        "end": "" if ledger.alive else end_of(ledger),
        "phase": ledger.position.phase,
        "seconds": round(open_seconds(ledger, time.monotonic_ns()), 3),
        "steps": ledger.words["steps"][0],
        "line": stuck_line(ledger),
        "group": where.label if where is not None else "",
        "sequence": where.calls if where is not None else None,
        "peer": ledger.open_peer_rank if ledger.open_peer_rank >= 0 else None,
        "calls": {slot.label: slot.calls for slot in ledger.slots},
    }


def _process(process: Process, *, threads: bool = False) -> dict[str, Any]:
    main = process.main
    found: dict[str, Any] = {
        "pid": process.pid,
        "state": process.state,
        "cores": None if process.cores is None else round(process.cores, 3),
        "moved_bytes": process.moved,
        "wchan": main.wchan if main is not None else "",
        "syscall": main.syscall if main is not None else "",
    }
    if threads:
        alike = Counter((one.name, one.state, one.wchan, one.syscall) for one in process.threads)
        found["threads"] = [
            {"count": count, "name": name, "state": state, "wchan": wchan, "syscall": syscall}
            for (name, state, wchan, syscall), count in alike.most_common()
        ]
    return found
