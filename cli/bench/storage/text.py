"""Prints the results of `whyidle bench storage` for people."""

from __future__ import annotations

from typing import Any

from ....advisor.bench.storage.waits import CAUSES
from ...quantities import in_bytes, in_time
from ...tables import aligned

_LONGEST_PATH = 32
_KINDS = {
    "memory": "is in memory: these are not the speeds of storage",
    "remote": "has a server or daemon with its own caches: they cannot be emptied from here",
}


def render(report: dict[str, Any]) -> str:
    parts = [_title(report), _measures(report), _waits(report), _conclusions(report), _notes(report)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _title(report: dict[str, Any]) -> list[str]:
    plan = report["plan"]
    words = []
    if {"load", "samples", "replay"} & set(plan["parts"]):
        samples = plan["files"] * plan["samples_per_file"]
        words.append(
            f"{samples:,} samples of {in_bytes(plan['sample_bytes'])}, "
            f"{plan['workers']} worker{'s' * (plan['workers'] > 1)}, batches of {plan['batch']}"
        )
    if "shards" in plan["parts"]:
        words.append(f"{plan['shards']} shards of {in_bytes(plan['shard_bytes'])}")
    if "checkpoint" in plan["parts"]:
        words.append(f"checkpoints of {in_bytes(plan['checkpoint_bytes'])}")
    lines = [" · ".join(words)] if words else []
    workload = report["workload"]
    return [f"workload {workload['name']}", *lines] if workload else lines


def _measures(report: dict[str, Any]) -> list[str]:
    """A line for each measure and path. Lines of one measure are below each other."""
    names = list(dict.fromkeys(measure["name"] for path in report["paths"] for measure in path["measures"]))
    if not names:
        return []
    rows = [["", "path", "", "", "p50", "p95", "p99"]]
    for name in names:
        first = name
        for path in report["paths"]:
            for measure in path["measures"]:
                if measure["name"] == name:
                    rows.append([first, _short(path), *_cells(measure)])
                    first = ""
    return aligned(rows, left=2)


def _cells(measure: dict[str, Any]) -> list[str]:
    if measure["from_cache"]:
        return ["from cache", "", "", "", ""]
    rate, items = measure["bytes_per_second"], measure["items_per_second"]
    return [
        f"{in_bytes(rate)}/s" if rate else "",
        f"{items:,.0f} {measure['unit']}/s" if items else "",
        *(in_time(measure[f"p{q}_seconds"]) if measure[f"p{q}_seconds"] is not None else "" for q in (50, 95, 99)),
    ]


def _short(path: dict[str, Any]) -> str:
    """A path with its file system, because `/data` alone does not show what is measured."""
    name = path["path"]
    name = name if len(name) <= _LONGEST_PATH else f"…{name[1 - _LONGEST_PATH :]}"
    return f"{name} ({'memory' if path['kind'] == 'memory' else path['file_system'] or '?'})"


def _waits(report: dict[str, Any]) -> list[str]:
    """The waits of the loops by cause."""
    rows = []
    for part in report["plan"]["parts"]:
        for path in report["paths"]:
            if seconds := path["waits"].get(part):
                whole = sum(seconds.values())
                shares = [f"{100 * seconds[cause] / whole:.0f} %" if whole else "" for cause in CAUSES]
                rows.append([part, _short(path), in_time(whole), *shares])
    if not rows:
        return []
    return aligned([["waits for batches", "path", "in all", *CAUSES.values()], *rows], left=2)


def _conclusions(report: dict[str, Any]) -> list[str]:
    lines = []
    for path in report["paths"]:
        if (speedup := path["replay_speedup"]) is not None:
            gain = f"at most {speedup:.2f} times as fast" if speedup > 1.05 else "not faster"
            lines.append(f"{path['path']}: with storage that takes no time, this loop would be {gain}")
        if judged := path["mlperf"]:
            au = judged["au"]
            lines.append(
                f"{path['path']}: AU {'not measured' if au is None else f'{100 * au:.1f} %'}"
                f" · MLPerf Storage's rules are {'met' if judged['met'] else 'not met'} (this is not an MLPerf result)"
            )
            lines += [
                f"  {'yes' if rule['met'] else 'no ':<3}  {rule['name']}: {rule['found']}" for rule in judged["rules"]
            ]
    return lines


def _notes(report: dict[str, Any]) -> list[str]:
    lines = []
    for path in report["paths"]:
        name = path["path"]
        lines += [f"problem  {name}: {' '.join((error['part'], error['error'])).strip()}" for error in path["errors"]]
        if sentence := _KINDS.get(path["kind"]):
            lines.append(f"note     {name} ({path['file_system']}) {sentence}")
        warm = [measure for measure in path["measures"] if measure["from_cache"]]
        if warm:
            shares = max(measure["cached_share"] for measure in warm)
            lines.append(
                f"note     {name}: up to {100 * shares:.0f} % of what was read was still in the page cache, although "
                "the kernel was asked to drop it: no speed is shown for it"
            )
        unknown = [measure["name"] for measure in path["measures"] if measure["cached_share"] is None]
        if unknown:
            lines.append(
                f"note     {name} does not report what is cached: {', '.join(unknown)} may have come from a cache"
            )
        lines += [f"note     {name}: {sentence}" for sentence in path["notes"]]
    workload = report["workload"]
    lines += [f"note     {sentence}" for sentence in workload["notes"]] if workload else []
    return lines
