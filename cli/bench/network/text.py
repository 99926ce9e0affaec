"""Prints the report for people."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from ... import tables
from ...quantities import in_bits, in_bytes, in_time, percent

_MOST_PAIRS = 12
_MOST_NAMED = 8
_AS_FAST = 0.9
"""From this share on, a job counts as fast as the bench, because both vary this much."""


def render(report: Mapping[str, Any]) -> str:
    parts = [_title(report), _collectives(report)]
    if report["pairs"]:
        parts.append(_pairs(report["pairs"]))
    if report["tools"]:
        parts.append([_tool(row) for row in report["tools"]])
    if report["job"]:
        parts.append(_job(report["job"]))
    parts.append(_notes(report))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _title(report: Mapping[str, Any]) -> list[str]:
    nodes, link = report["nodes"], report["link"]
    words = [
        f"{report['ranks']} ranks on {len(nodes)} node{'' if len(nodes) == 1 else 's'}",
        report["backend"],
        report["device"],
        report["dtype"],
    ]
    if link["bytes_per_second"]:
        source = "as given" if link["given"] else link["adapters"]
        words.append(f"a node's link {in_bits(link['bytes_per_second'])} ({source})")
    return [" · ".join(words)]


def _collectives(report: Mapping[str, Any]) -> list[str]:
    several = len({row["label"] for row in report["collectives"]}) > 1
    cells = [
        [
            *(["group"] if several else []),
            *("operation", "size", "a call", "blocks ±", "algbw", "busbw", "of link", "slowest", "data"),
        ]
    ]
    for row in report["collectives"]:
        head = [*([f"{row['label']} ({row['ranks']})"] if several else []), row["op"]]
        cells.append([*head, *(_measured(row) if "error" not in row else ["not supported", *[""] * 7])])
    return tables.aligned(cells, left=2 if several else 1)


def _measured(row: Mapping[str, Any]) -> list[str]:
    spread = (row["most_seconds"] - row["least_seconds"]) / row["seconds"] / 2
    return [
        in_bytes(row["size_bytes"]),
        in_time(row["seconds"]),
        percent(spread, 0),
        f"{in_bytes(row['algbw_bytes_per_second'])}/s",
        in_bits(row["busbw_bytes_per_second"]),
        percent(row["link_share"], 0) if row["link_share"] else "",
        f"rank {row['slowest_rank']}",
        "WRONG" if row["wrong_ranks"] else "right" if row["checked"] else "",
    ]


def _pairs(pairs: Mapping[str, Any]) -> list[str]:
    usual = pairs["usual_bytes_per_second"]
    head = f"pairs    {pairs['measured']:,} of {pairs['of']:,} measured in {in_time(pairs['seconds'])}"
    lines = [head + (f"; usual {in_bits(usual)}" if usual else "")]
    for node in pairs["slow_nodes"]:
        lines.append(f"SLOW     node {node['name']}: {in_bits(node['bytes_per_second'])} to most of its peers")
    for link in pairs["slow_links"]:
        lines.append(f"SLOW     link {_both_ways(link)}")
    if not pairs["judged"]:
        lines.append("         fewer than three pairs: this does not show which one is slow")
    elif not pairs["slow_nodes"] and not pairs["slow_links"]:
        lines.append("         no node and no link is slower than the others")
    if pairs["measured"] <= _MOST_PAIRS:
        lines += [f"         {_both_ways(rate)}" for rate in pairs["rates"]]
    return lines


def _both_ways(rate: Mapping[str, Any]) -> str:
    there, back = in_bits(rate["there_bytes_per_second"]), in_bits(rate["back_bytes_per_second"])
    return f"{rate['one']} – {rate['other']}: {there} there, {back} back"


def _tool(row: Mapping[str, Any]) -> str:
    what = (
        in_bits(row["bytes_per_second"]) if "bytes_per_second" in row else f"no result: {row.get('error', 'unknown')}"
    )
    return f"{row['tool']:8} {row['from']} → {row['to']}: {what}"


def _job(job: Mapping[str, Any]) -> list[str]:
    cells = [["of run " + job["run"], "a step", "a call", "measured at", "bench", "job", "job / bench"]]
    for group in job["groups"]:
        for use in group["operations"]:
            busbw = use["bench_busbw_bytes_per_second"]
            cells.append(
                [
                    f"{group['label']} ({group['ranks']}) {use['op']}",
                    in_bytes(use["step_bytes"]),
                    in_bytes(use["call_bytes"]) if use["call_bytes"] else "not known",
                    in_bytes(use["bench_size_bytes"]) if use["bench_size_bytes"] else "",
                    in_bits(busbw) if busbw else "not measured",
                    *[""] * 2,
                ]
            )
        share, reached = group["job_share"], group["job_busbw_bytes_per_second"]
        cells.append(
            [
                f"{group['label']} ({group['ranks']}) together",
                *[""] * 3,
                f"{in_time(group['bench_step_seconds'])} a step" if group["bench_step_seconds"] else "",
                f"{in_bits(reached)}" if reached else f"{percent(group['unsplit_share'], 0)} unsplit",
                percent(share, 0) if share else "",
            ]
        )
    lines = tables.aligned(cells, left=1)
    for group in job["groups"]:
        if share := group["job_share"]:
            lines += _sentence(group, share)
    return lines


def _sentence(group: Mapping[str, Any], share: float) -> list[str]:
    waited = f"waits {in_time(group['job_step_seconds'])} a step for transfers that the bench does in"
    text = f"{group['label']}: the job {waited} {in_time(group['bench_step_seconds'])}: "
    if share < _AS_FAST:
        text += f"its transfers reach {percent(share, 0)} of the speed of this network"
    elif share <= 1 / _AS_FAST:
        text += "its transfers are as fast as this network allows"
    else:
        text += "it hides a part of them behind compute, so this does not show how fast its transfers are"
    return wrap(text, tables.WIDTH, subsequent_indent="  ")


def _notes(report: Mapping[str, Any]) -> list[str]:
    said = [f"note     {note}" for note in report["notes"]]
    for row in report["collectives"]:
        if row.get("wrong_ranks"):
            named = ", ".join(map(str, row["wrong_ranks"][:_MOST_NAMED]))
            said.append(f"WRONG    {row['op']} of {in_bytes(row['size_bytes'])} gave wrong data on rank {named}")
        if "error" in row:
            said.append(f"note     {row['op']}: {row['error']}")
    if skipped := report["skipped"]:
        more = f" and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
        said.append(f"note     left out for lack of time (--time): {', '.join(skipped[:_MOST_NAMED])}{more}")
    if len(report["nodes"]) > 1 and not report["link"]["bytes_per_second"]:
        said.append("note     the rate of the nodes' links is not known: give it with --link")
    return tables.notes(said)
