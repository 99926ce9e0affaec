"""Prints the published estimate: what the source prints, what its formulas give, and what rings really move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from textwrap import wrap

from ...advisor.traffic import published as source
from ...advisor.traffic.deadline import Deadline
from ...advisor.traffic.published_figures import UNITS, Figure, others, table
from ..tables import WIDTH, aligned

_HEADER = ("its formulas give", "it prints", "label", "off by", "rings really move", "across nodes", "notes")
_INPUTS = {
    "parameters": source.PARAMETERS,
    "layers": source.LAYERS,
    "hidden": source.HIDDEN,
    "tokens": source.TOKENS,
    "samples": source.SAMPLES,
    "batch": source.BATCH,
    "group": source.GROUP,
    "mesh": {"tensor": source.TENSOR, "pipeline": source.PIPELINE, "data": source.DATA},
}
_INTRODUCTION = (
    "A published estimate of Llama-3-70B on C4, one epoch, bf16, groups of G = 8, full mesh: each rank sends to each"
    " other rank. P = 70·10⁹ parameters, L = 80 layers, H = 8192, T = 156·10⁹ tokens, N mini-batches.",
    "“printed”: the source prints this figure. “derived”: only its formula gives it. “off by”: by how much its formula"
    " exceeds the printed figure. “Across nodes” is the part of the rings that leaves nodes of 8 GPUs. Only this part"
    " needs switches.",
)


def published(deadline: Deadline, as_json: bool) -> str:
    """The published estimate, as JSON or as the text of docs/traffic.md."""
    moved, following = table(), others(deadline)
    if as_json:
        return json.dumps({"inputs": _INPUTS, "table": _told(moved), "figures": _told(following)}, indent=2) + "\n"
    notes = list(dict.fromkeys(note for figure in (*moved, *following) for note in figure.notes))
    parts = [
        *(wrap(sentence, WIDTH) for sentence in _INTRODUCTION),
        aligned(
            [
                ("bytes of an epoch", "synchronisations", *_HEADER),
                *((one.what, one.synchronisations or "", *_cells(one, notes)) for one in moved),
            ],
            left=1,
            last_left=True,
        ),
        aligned(
            [("what follows from it", *_HEADER), *((one.what, *_cells(one, notes)) for one in following)],
            left=1,
            last_left=True,
        ),
        aligned(
            [("formula of", ""), *((one.what, one.formula) for one in (*moved, *following) if one.formula)], left=2
        ),
        [line for number, note in enumerate(notes, 1) for line in _note(number, note)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _told(figures: Sequence[Figure]) -> list[dict[str, object]]:
    return [{**one._asdict(), "label": one.label, "difference": one.difference} for one in figures]


def _cells(one: Figure, notes: Sequence[str]) -> tuple[str, ...]:
    rings, across = ("" if part is None else in_unit(part, one.unit) for part in (one.rings, one.across))
    percent = None if one.difference is None else round(100 * one.difference, 1)
    off = "" if percent is None else f"{percent:+.1f} %" if percent else "0.0 %"
    numbers = " ".join(f"[{notes.index(note) + 1}]" for note in one.notes)
    return in_unit(one.value, one.unit), one.printed or "", one.label, off, rings, across, numbers


def in_unit(value: float, unit: str) -> str:
    """A figure in the source's unit. Bytes in PB or EB, or a number without unit."""
    value /= UNITS[unit]
    digits = 0 if value >= 100 or not unit or not value else 1 if value >= 2 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def _note(number: int, note: str) -> list[str]:
    label = f"[{number}] "
    return wrap(note, WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
