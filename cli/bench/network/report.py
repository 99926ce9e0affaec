"""The results as a tree of plain values. --json prints it, and text.py makes text of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....advisor.bench.network.job import JobGroup, step_seconds
from ....advisor.bench.network.operations import least_seconds
from ....advisor.bench.network.pairs import judge


def add_link_shares(
    rows: Sequence[dict[str, Any]], backend: str, nodes: Mapping[str, Sequence[Sequence[int]]], link: float | None
) -> None:
    """Adds `link_share`, the share of the link's rate that a collective reaches. It is None if not known.

    ``nodes``: for each label, the node of each rank of each group.
    """
    for row in rows:
        if "error" in row:
            continue
        least = least_seconds(backend, row["op"], row["size_bytes"], nodes[row["label"]], link) if link else 0.0
        row["link_share"] = least / row["seconds"] if least else None


def of_pairs(found: Any, names: Sequence[str], ranks: Sequence[int], link: float | None) -> dict[str, Any]:
    """The report on pairs. ``found``: pairwise.Pairs, whose members are indexes in ``names`` and ``ranks``."""
    slower = {pair: min(both) for pair, both in found.rates.items()}
    verdict = judge(slower)
    return {
        "members": [{"name": name, "rank": rank} for name, rank in zip(names, ranks, strict=True)],
        "measured": len(found.rates),
        "of": found.of,
        "rounds": found.rounds,
        "measured_again": found.again,
        "seconds": found.seconds,
        "link_bytes_per_second": link,
        "rates": [
            {"one": names[one], "other": names[other], "there_bytes_per_second": there, "back_bytes_per_second": back}
            for (one, other), (there, back) in found.rates.items()
        ],
        "usual_bytes_per_second": verdict.usual if verdict else None,
        "slow_nodes": [
            {"name": names[node], "bytes_per_second": rate} for node, rate in (verdict.nodes if verdict else {}).items()
        ],
        "slow_links": [
            {
                "one": names[one],
                "other": names[other],
                "there_bytes_per_second": found.rates[one, other][0],
                "back_bytes_per_second": found.rates[one, other][1],
            }
            for one, other in (verdict.links if verdict else {})
        ],
        "judged": verdict is not None,
    }


def of_job(name: str, groups: Sequence[JobGroup], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compares the transfers of a job with the results of the bench."""
    return {"run": name, "groups": [_of_group(group, rows) for group in groups]}


def _of_group(group: JobGroup, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    compared = {use.op: _nearest(rows, group, use.op, use.call_bytes) for use in group.uses}
    busbw = {op: float(row["busbw_bytes_per_second"]) for op, row in compared.items() if row}
    bench, reached = step_seconds(group, busbw), group.busbw()
    return {
        "label": group.label,
        "ranks": group.size,
        "operations": [
            {
                "op": use.op,
                "step_bytes": use.step_bytes,
                "call_bytes": use.call_bytes,
                "bench_size_bytes": row["size_bytes"] if (row := compared[use.op]) else None,
                "bench_ranks": row["ranks"] if row else None,
                "bench_busbw_bytes_per_second": busbw.get(use.op),
            }
            for use in group.uses
        ],
        "bench_step_seconds": bench,
        "job_step_seconds": group.waited if reached is not None else None,
        "job_busbw_bytes_per_second": reached,
        "job_share": bench / group.waited if bench is not None and reached is not None else None,
        "unsplit_share": group.unsplit,
    }


def _nearest(
    rows: Sequence[Mapping[str, Any]], group: JobGroup, op: str, size: float | None
) -> Mapping[str, Any] | None:
    """The row with the nearest size, of the same groups, or of the world if there is none.

    If the size of the job's calls is not known, it is the row with the largest size.
    """
    found = [row for row in rows if row["op"] == op and "error" not in row]
    same = [row for row in found if row["label"] == group.label and row["ranks"] == group.size]
    if not (found := same or found):
        return None
    if size is None:
        return max(found, key=lambda row: row["size_bytes"])
    return min(found, key=lambda row: max(row["size_bytes"], size) / min(row["size_bytes"], size))
