"""Prints the results of `whyidle traffic` for people."""

from __future__ import annotations

from typing import Any

from ...advisor.traffic.adapters import COLLISION_SHARE
from ...advisor.traffic.collectives import WAYS
from ...advisor.traffic.deadline import DAY
from ...advisor.traffic.shape import SIZES
from ..choice import name_of
from ..quantities import in_bits, in_bytes, in_time, percent
from ..tables import aligned


def predicted(report: dict[str, Any]) -> str:
    parts = [
        [_shape(report)],
        _rows(report),
        _totals(report),
        _storage(report),
        _links(report),
        _deadline(report),
        _assumptions(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _shape(report: dict[str, Any]) -> str:
    sizes = [f"{name} {report['parallel'][name]}" for name in SIZES if report["parallel"][name] > 1]
    nodes = -(-report["ranks"] // report["gpus_per_node"])
    return (
        f"{report['ranks']:,} rank{'s' * (report['ranks'] > 1)} on {nodes:,} node{'s' * (nodes > 1)}"
        f" · {' × '.join(sizes) or 'nothing is split'} · {WAYS[report['algorithm']]}"
    )


def _rows(report: dict[str, Any]) -> list[str]:
    if not report["collectives"]:
        return ["no rank sends data to another rank"]
    header = ["", "", "of one", "a step", "ranks", "inside nodes", "across nodes", "full mesh"]
    rows = [
        [
            f"{row['dimension']}, {row['moment']}",
            row["op"],
            in_bytes(row["size"]),
            f"× {row['times']:,.0f}" if row["times"] >= 1 else f"× {row['times']:.2f}",
            str(row["group"]),
            in_bytes(row["inside_bytes"]),
            in_bytes(row["across_bytes"]),
            in_bytes(row["full_mesh_bytes"]),
        ]
        for row in report["collectives"]
    ]
    return aligned([header, *rows], left=2)


def _totals(report: dict[str, Any]) -> list[str]:
    steps = report["steps_per_epoch"]
    header = ["between GPUs", "inside nodes", "across nodes", "both", "full mesh"]
    rows = [
        [
            what,
            *(in_bytes(times * report[name]) for name in ("inside_bytes", "across_bytes", "bytes", "full_mesh_bytes")),
        ]
        for what, times in (("a step", 1.0), ("an epoch", steps), ("the job", steps * report["epochs"]))
    ]
    return aligned([header, *rows], left=1)


def _storage(report: dict[str, Any]) -> list[str]:
    storage = report["storage"]
    lines = []
    if storage["read_bytes"]:
        lines.append(f"from storage   {in_bytes(storage['read_bytes'])} of tokens a step")
    every = storage["save_every_steps"]
    often = f", {in_bytes(storage['written_bytes'])} a step if one in {every:,.0f} steps saves" if every else ""
    return [*lines, f"to storage     {in_bytes(storage['checkpoint_bytes'])} a checkpoint{often}"]


def _links(report: dict[str, Any]) -> list[str]:
    links, lines = report["links_per_node"], []
    of_links = f"{links} link{'s' * (links > 1)} of a node"
    if (least := report["least_seconds"]) is not None:
        lines.append(
            f"at least {in_time(least)} a step at {in_bits(report['link_bytes_per_second'])} on each of {of_links}"
        )
    if (needed := report["needed_bytes_per_second"]) is not None:
        lines.append(
            f"a step of {in_time(report['step_seconds'])} needs {in_bits(needed)} on each of {of_links}"
            if needed
            else "nothing leaves a node: a step needs no link"
        )
    return lines


def _deadline(report: dict[str, Any]) -> list[str]:
    deadline = report["deadline"]
    if deadline is None:
        return []
    header = [
        f"{deadline['epochs']:,g} epochs in {deadline['days']:,g} days at {deadline['switch_tbps']:g} Tbit/s a switch",
        *("across nodes", "both", "full mesh"),
    ]
    kinds = ("across_nodes", "both", "full_mesh")
    times = [in_time(DAY * deadline["switch_days_of_an_epoch"][kind]) for kind in kinds]
    return aligned(
        [
            header,
            ["switches, at least", *(f"{deadline['switches'][kind]:,}" for kind in kinds)],
            ["one epoch through one switch", *times],
        ],
        left=1,
    )


def _assumptions(report: dict[str, Any]) -> list[str]:
    sources = dict.fromkeys(row["source"] for row in report["collectives"])
    parallel = report["parallel"]
    lines = [
        "Each rank of a group sends the same amount."
        " Headers, retries and small collectives (norms, losses) are left out."
    ]
    lines.append("Ranks of a tensor group stand next to each other, pipeline stages far apart.")
    if parallel["shard"] > 1 and parallel["zero"] == 3:
        lines.append("Parameters are gathered again for the backward pass, in each microbatch.")
    if parallel["pipeline"] > 1 and parallel["tensor"] > 1 and not parallel["split_norms"]:
        lines.append("Each tensor parallel rank sends all activations of its stage to the next stage.")
    if report["least_seconds"] is not None or report["needed_bytes_per_second"] is not None:
        lines.append("All links carry their share at full rate. Compute may hide all of it.")
    if report["deadline"] is not None:
        lines.append(
            "Each byte crosses one switch. Networks with several layers need more, and ports for all adapters."
        )
    return ["assumed", *(f"  · {line}" for line in lines), *(f"  · {source}" for source in sources)]


def measured(report: dict[str, Any]) -> str:
    run = report["measured"]
    parts = [
        [_title(run)],
        _groups(run),
        _stored(report),
        _checked(report),
        _adapters(report),
        traffic_of_adapters(report),
    ]
    parts.append(_notes(report))
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _title(run: dict[str, Any]) -> str:
    here = (
        f"{run['ranks']} of {run['world_size']} ranks"
        if run["world_size"] > run["ranks"]
        else f"{run['ranks']} rank{'s' * (run['ranks'] > 1)}"
    )
    when = "since its start" if run["since_start"] else "just now"
    return (
        f"run {name_of((run['owner'], run['run']))} · {here} · {run['steps']} steps of {in_time(run['seconds'])} {when}"
        f" · {WAYS[run['way']]}"
    )


def _groups(run: dict[str, Any]) -> list[str]:
    if not run["groups"]:
        return ["no collective of a known group was seen"]
    header = ["group", "ranks", "operation", "a rank's input a step", "inside nodes", "across nodes"]
    rows = []
    for group in run["groups"]:
        wire = [in_bytes(group["inside"]), in_bytes(group["across"])]
        if group["unknown"]:
            wire[1] += f" or up to {in_bytes(group['unknown'])} more"
        for at, (op, size) in enumerate(group["handed"].items()):
            first = [group["label"], str(group["size"])] if not at else ["", ""]
            rows.append([*first, op, in_bytes(size), *(wire if not at else ["", ""])])
    lines = aligned([header, *rows], left=3)
    if run["elsewhere"]:
        lines.append(f"{in_bytes(run['elsewhere'])} more for each rank and step, in groups that are not known")
    return lines


def _stored(report: dict[str, Any]) -> list[str]:
    saved, read = report["storage"]["saved"], report["storage"]["read"]
    lines = [f"from storage   {in_bytes(read)} a step, by these ranks and their workers"] if read is not None else []
    return [*lines, f"to storage     {in_bytes(saved)} a step, in checkpoints"] if saved else lines


def _checked(report: dict[str, Any]) -> list[str]:
    if not report["compared"]:
        return []
    header = ["formula against hooks", "", "formula", "hooks", "off by"]
    rows = [
        [one["label"], one["op"], in_bytes(one["predicted"]), in_bytes(one["measured"]), f"{100 * one['off']:+.1f} %"]
        for one in report["compared"]
    ]
    return aligned([header, *rows], left=2)


def _adapters(report: dict[str, Any]) -> list[str]:
    found = report["adapters"]
    if not found:
        return []
    across = found["predicted"]
    lines = [
        f"adapters of node {found['node']} sent {in_bytes(found['sent'])} a step ("
        + ", ".join(f"{name} {in_bytes(size)}" for name, size in found["devices"].items())
        + ")"
    ]
    if across:
        share = f"{100 * (found['sent'] / across - 1):+.1f} %"
        lines.append(
            f"according to the hooks it should be {in_bytes(across)}: {share}, including headers and other traffic"
        )
    else:
        lines.append("according to the hooks, nothing of this run should leave the node")
    return lines


def traffic_of_adapters(report: dict[str, Any]) -> list[str]:
    found = report["adapter_traffic"]
    if not found:
        return []
    header = ["adapters, all runs", "", "speed", "between GPUs", "storage", "everything else"]
    rows = [
        [
            *(one["adapter"], one["direction"], in_bits(one["speed"]) if one["speed"] else "not known"),
            *(_of_speed(one[kind], one["speed"]) for kind in ("gpu", "storage", "rest")),
        ]
        for one in found
    ]
    colliding = [f"{one['adapter']} ({one['direction']})" for one in found if one["collides"]]
    share = percent(COLLISION_SHARE)
    said = (
        "whether they collide is not known: no adapter tells its speed"
        if not any(one["speed"] for one in found)
        else f"they collide on {', '.join(colliding)}: each takes at least {share} of the speed"
        if colliding
        else f"they do not collide: on no adapter do both take {share} of the speed in one direction"
    )
    return [*aligned([header, *rows], left=2), said]


def _of_speed(moved: float, speed: float) -> str:
    return f"{in_bits(moved)} {f'({percent(moved / speed)})' if speed else ''}".rstrip()


def _notes(report: dict[str, Any]) -> list[str]:
    return [f"note  {sentence}" for sentence in report["notes"]]
