"""A dossier as text for a ticket. Its last section is the dossier as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...verdict.diagnosis import call_text

MOST_ROWS = 64
MARK = "The same as JSON"
_HEAD = ("rank", "node", "phase", "for s", "steps", "at", "process", "state", "cores", "waits in")


def render(dossier: Mapping[str, Any]) -> str:
    """The dossier for people. Ends with a newline."""
    sections = [
        [dossier["sentence"], "", _title(dossier)],
        _collective(dossier),
        _ranks(dossier),
        *_details(dossier),
        _nccl(dossier),
        _counters(dossier),
        [f"not available: {sentence}" for sentence in dossier["absent"]],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def with_json(dossier: Mapping[str, Any]) -> str:
    return f"{render(dossier)}\n{MARK}\n\n{json.dumps(dossier, indent=2)}\n"


def _title(dossier: Mapping[str, Any]) -> str:
    name = f"{dossier['owner']}/{dossier['run']}" if dossier["owner"] else dossier["run"] or "a run without ledgers"
    return f"run {name} · seen from node {dossier['node']} · {dossier['at']}"


def _collective(dossier: Mapping[str, Any]) -> list[str]:
    one = dossier["collective"]
    if one is None:
        return []
    size = f" ({one['size']} ranks)" if one["size"] else ""
    lines = [f"collective  {call_text(one['group'], one['size'], one['sequence'])}{size}"]
    lines += [f"in it       rank {entry['rank']}, for {entry['seconds']:.1f} s" for entry in one["in"][:MOST_ROWS]]
    if one["not_in"]:
        lines.append(f"not in it   {_numbers(one['not_in'])}")
    if one["no_ledger_here"]:
        lines.append(f"not known   {_numbers(one['no_ledger_here'])} (no ledger here)")
    return lines


def _ranks(dossier: Mapping[str, Any]) -> list[str]:
    rows = [list(_HEAD), *(_row(entry) for entry in dossier["ranks"][:MOST_ROWS])]
    if len(rows) == 1:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(entry: Mapping[str, Any]) -> list[str]:
    ledger, process = entry["ledger"] or {}, entry["process"] or {}
    ended = ledger.get("end") or ""
    wait = ", ".join(filter(None, [process.get("wchan"), process.get("syscall")]))
    cores = process.get("cores")
    cells = (
        entry["rank"],
        ledger.get("node"),
        ended or ledger.get("phase") or "no ledger",
        f"{ledger['seconds']:.1f}" if ledger and not ended else None,
        ledger.get("steps"),
        ledger.get("line"),
        process.get("pid"),
        process.get("state"),
        f"{cores:.2f}" if cores is not None else None,
        wait,
    )
    return ["-" if cell in (None, "") else str(cell) for cell in cells]


def _details(dossier: Mapping[str, Any]) -> Iterator[list[str]]:
    culprits = {culprit["rank"] for culprit in dossier["culprits"]}
    for entry in dossier["ranks"]:
        if entry["rank"] in culprits and (lines := _detail(entry)):
            yield [f"rank {entry['rank']}", *lines]
    for entry in dossier["ranks"]:
        if entry["stack"]:
            yield [f"stack of rank {entry['rank']}", *(f"  {line}" for line in entry["stack"])]
        recorder = entry["flight_recorder"]
        if recorder and recorder["dump"]:
            yield [
                f"flight recorder of rank {entry['rank']}: {recorder['dump']}, {recorder['bytes']} bytes, written "
                f"{recorder['age_seconds']:.0f} s ago. It is a pickle: load it as the user of the training, with "
                "torchfrtrace"
            ]


def _detail(entry: Mapping[str, Any]) -> list[str]:
    process = entry["process"] or {}
    lines = [
        f"  {one['count']} thread{'s' if one['count'] > 1 else ''} {one['name']}: {one['state']}"
        + (f", in {one['wchan']}" if one["wchan"] else "")
        for one in process.get("threads", [])[:16]
    ]
    lines += [
        f"  child process {worker['pid']}: {worker['state']}" + (f", in {worker['wchan']}" if worker["wchan"] else "")
        for worker in entry["workers"]
    ]
    lines += [
        f"  connection {one['local']} to {one['remote']}: {one['unacknowledged']} bytes not acknowledged, sent "
        f"again {one['retries']} times"
        for one in entry["connections"]
    ]
    if entry["gpu_busy"] is not None:
        lines.append(f"  its GPU ran kernels {entry['gpu_busy']:.0%} of the time")
    return lines


def _nccl(dossier: Mapping[str, Any]) -> list[str]:
    return [f"NCCL  {line}".rstrip() for line in dossier["nccl_sentences"]]


def _counters(dossier: Mapping[str, Any]) -> list[str]:
    lines = []
    for gpu in dossier["gpus"]:
        busy = "" if gpu["busy"] is None else f", busy {gpu['busy']:.0%} of the time"
        watts = "" if gpu["watts"] is None else f", {gpu['watts']:.0f} W"
        lines.append(f"GPU {gpu['gpu']} ({gpu['uuid']}){busy}{watts}")
    for error in dossier["errors"]:
        labels = ", ".join(f"{name} {value}" for name, value in error["labels"].items())
        grown = f", {error['grown']:g} of them now" if error["grown"] else ""
        lines.append(f"error {error['name']} ({labels}): {error['total']:g}{grown}")
    for xid in dossier["xids"]:
        lines.append(f"XID {xid['xid']} of the GPU at {xid['pci']}, {xid['seconds_ago']:.0f} s before this was written")
    return lines


def _numbers(ranks: list[int]) -> str:
    """`rank 3`, `ranks 3, 5`; long lists are cut."""
    shown = ", ".join(map(str, ranks[:MOST_ROWS]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{' and more' if len(ranks) > MOST_ROWS else ''}"
