"""The figures that the published estimate prints, beside what its formulas give and what rings move.

``printed`` is quoted from the source. A figure without it is derived: only our evaluation of the formula gives it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import published as source
from .deadline import SWITCH, Deadline, switch_days
from .prediction import Prediction, predict
from .shape import BACKWARD, FORWARD, Model, Parallel

UNITS: dict[str, float] = {"PB": 1e15, "EB": 1e18, "GB": 1e9, "days": 1.0, "": 1.0}
_GPUS_PER_NODE = 8
DEADLINE = Deadline(days=100, epochs=100)
"""The example of the source."""


class Figure(NamedTuple):
    """One figure of the source, or one that follows from its formulas."""

    what: str
    formula: str
    value: float
    """What the source's formula gives; bytes of an epoch unless ``unit`` or ``what`` says otherwise."""
    unit: str
    """A key of UNITS: the unit in which the source prints it."""
    printed: str | None
    """As the source prints it; None if it does not print it."""
    rings: float | None
    """The same if NCCL's rings move the bytes, by the formulas of shape.py. None if rings make no difference."""
    across: float | None
    """The part of ``rings`` that leaves nodes of 8 GPUs: only that goes through switches."""
    notes: tuple[str, ...] = ()
    synchronisations: str | None = None
    """The source's count, as it prints it."""

    @property
    def label(self) -> str:
        return "printed" if self.printed else "derived"

    @property
    def difference(self) -> float | None:
        """By how much ``value`` is above the printed figure, as a share of that figure."""
        if self.printed is None:
            return None
        number = float(re.sub(r"[^0-9.]", "", self.printed))
        return self.value / (number * UNITS[self.unit]) - 1


HALF = (
    "175 is what 1396 / 8 = 174.5 rounds to. But 1396 is itself rounded up from 1395.7: the formula gives 174.47, 0.3 %"
    " less than printed."
)
GATHERS = "PyTorch's FSDP gathers the parameters again for the backward pass, which sends the same amount again."
THOUSANDS = (
    "The printed figure is the formula's divided by 1.048576 = 1024² / 1000²: the source mixes units of 1000 with units"
    " of 1024 in these two rows, and in no other. Its own formula gives 4.9 % more."
)
EACH_LAYER = (
    "The formula counts all of P once for each layer. In Megatron-LM no gradient of a weight crosses the tensor group:"
    " rings move the gradients of activations."
)
EACH_TOKEN = (
    "This count is of an epoch, with one synchronisation for each token: 2L × T. The other counts are of one"
    " mini-batch: 1, L, 2L and G − 1. Megatron-LM makes 2L calls in a mini-batch, each for all of its tokens."
)
ONLY_SUM = "The source prints only the sum, about 85 EB. Its formulas give both parts."
EIGHT_TIMES = "In our rings each of 8 tensor parallel ranks hands its stage's activations on; the source counts one."
ROUNDED = "The source rounds to 178,000. We do not, because its row for the tensor group follows from 178,027.34."
PER_SAMPLE = "The source's bound is true, but its own formulas give more than twice as much."
BITS = (
    "A switch of 51.2 Tbit/s carries 6.4 TB/s, not 51.2 TB/s. With bits and bytes confused, 84.7 EB take 19.2 days"
    " through one switch, and the deadline needs 20 switches, as the source says. The right figures are 8 times as"
    " large. (The rounded 85 EB take 154 days.)"
)


def _moved(parallel: Parallel) -> Prediction:
    model = Model(source.PARAMETERS, source.BATCHES, source.TOKENS, source.LAYERS, source.HIDDEN)
    return predict(model, parallel, _GPUS_PER_NODE, way="ring")


def _mesh() -> Prediction:
    return _moved(Parallel(tensor=source.TENSOR, pipeline=source.PIPELINE, data=source.DATA))


def _rings(moved: Prediction, *moments: str) -> tuple[float, float]:
    """(bytes of an epoch, those that leave the nodes)."""
    rows = [row for row in moved.rows if row.calls.moment in moments]
    return source.BATCHES * sum(row.total for row in rows), source.BATCHES * sum(row.across for row in rows)


def table() -> list[Figure]:
    """The bytes of an epoch, for each kind of parallelism and for the source's last example."""
    return [*_of_groups(), *_of_mesh()]


def _of_groups() -> list[Figure]:
    group = source.GROUP
    data, shard, tensor, stages = (
        _moved(shape)
        for shape in (Parallel(data=group), Parallel(shard=group), Parallel(tensor=group), Parallel(pipeline=group))
    )

    sharded, activations, handed_on = source.fully_sharded(group), source.tensor_forward(group), source.pipeline(group)
    reduced, gradients = source.data_parallel(group), source.tensor_backward(group)
    data_forward, data_backward = _rings(data, FORWARD), _rings(data, BACKWARD)
    shard_forward, shard_backward = _rings(shard, FORWARD), _rings(shard, BACKWARD)
    tensor_forward, tensor_backward = _rings(tensor, FORWARD), _rings(tensor, BACKWARD)
    tokens = "160 × 156·10⁹"
    return [
        _row("data parallel, forward", "", 0.0, None, data_forward, "0"),
        _row("data parallel, backward", "2NPG(G−1)", reduced, "1396 PB", data_backward, "1"),
        _row("FSDP, forward", "2NP(G−1)", sharded, "175 PB", shard_forward, "80", HALF),
        _row("FSDP, backward", "2NP(G−1)", sharded, "175 PB", shard_backward, "80", HALF, GATHERS),
        _row(
            *("tensor parallel, forward", "4LTH(G−1)G", activations, "21,840 PB", tensor_forward, tokens),
            *(THOUSANDS, EACH_TOKEN),
        ),
        _row(
            *("tensor parallel, backward", "4NPL(G−1)", gradients, "26,622 PB", tensor_backward, "160"),
            *(THOUSANDS, EACH_LAYER),
        ),
        _row("pipeline, forward", "2TH(G−1)", handed_on, "17.9 PB", _rings(stages, FORWARD), "7"),
        _row("pipeline, backward", "2TH(G−1)", handed_on, "17.9 PB", _rings(stages, BACKWARD), "7"),
    ]


def _row(
    what: str, formula: str, value: float, printed: str | None, rings: tuple[float, float], count: str, *notes: str
) -> Figure:
    return Figure(what, formula, value, "PB", printed, *rings, notes, count)


def _of_mesh() -> list[Figure]:
    moved = _mesh()
    forward = source.mesh_forward(source.TENSOR, source.PIPELINE)
    backward = source.mesh_backward(source.TENSOR, source.PIPELINE, source.DATA)
    formula = "2NP·Gdp[2L(Gtp−1)/Gpp + (Gdp−1)] + 2TH(Gpp−1)"
    return [
        Figure(
            *("8 × 8 × 16, forward", "2TH(2L·Gtp(Gtp−1) + Gpp−1)", forward, "EB", None),
            *_rings(moved, FORWARD),
            (ONLY_SUM, EIGHT_TIMES),
        ),
        Figure(
            *("8 × 8 × 16, backward", formula, backward, "EB", None),
            *_rings(moved, BACKWARD),
            (ONLY_SUM, EACH_LAYER, EIGHT_TIMES),
        ),
        Figure(
            *("8 × 8 × 16, both", "", forward + backward, "EB", "about 85 EB"),
            *_rings(moved, FORWARD, BACKWARD),
        ),
    ]


def others(deadline: Deadline = DEADLINE) -> list[Figure]:
    """The figures that follow from the table. A deadline or a switch that is not the source's adds a figure."""
    moved = _of_mesh()[-1].value, *_rings(_mesh(), FORWARD, BACKWARD)
    a_sample, days = (tuple(map(one, moved)) for one in (lambda part: part / source.SAMPLES, switch_days))
    return [
        Figure(
            *("mini-batches of an epoch, N", "364.6 million samples / 2048", source.BATCHES, "", "about 178,000"),
            *(None, None, (ROUNDED,)),
        ),
        _following("bytes for each sample", a_sample, "GB", "more than 100 GB", PER_SAMPLE),
        _following(f"one epoch through one switch of {SWITCH} Tbit/s", days, "days", "about 20 days", BITS),
        _needed(DEADLINE, moved, "at least 20", BITS),
        *([_needed(deadline, moved, None)] if deadline != DEADLINE else []),
    ]


def _needed(deadline: Deadline, moved: tuple[float, ...], printed: str | None, *notes: str) -> Figure:
    what = f"switches of {deadline.switch_tbps:g} Tbit/s for {deadline.epochs:g} epochs in {deadline.days:g} days"
    return _following(what, tuple(float(deadline.switches(part)) for part in moved), "", printed, *notes)


def _following(what: str, values: tuple[float, ...], unit: str, printed: str | None, *notes: str) -> Figure:
    """``values``: by the source's formulas, with rings, and the part of the rings that leaves the nodes."""
    value, rings, across = values
    return Figure(what, "", value, unit, printed, rings, across, notes)
