"""The cases: each shape with each fault, loops of other kinds, and what the report must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cudastandin.plan import LATE, SAVES, Plan

ERROR, LINK_ERROR, GAP_ERROR = 0.02, 0.03, 0.03
"""How much the seconds of a kind may differ, as a share of the wall time: usually, with slow links, and where idle time
inside of compute is sampled."""


@dataclass(frozen=True)
class Shape:
    """A function of shapes.py."""

    ranks: int = 2
    slow_gbps: float = 0.05
    """What a slow link carries, so that it takes about as long as the passes."""
    usual: tuple[str, ...] = ("compute",)
    """The family without a fault."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan."""


SHAPES = {
    "single": Shape(1),
    "ddp": Shape(),
    "ddp_views": Shape(),
    "ddp_static": Shape(),
    "ddp_buffers": Shape(),
    "zero": Shape(),
    "fsdp1": Shape(),
    "fsdp2": Shape(),
    # The hosts of four ranks share two cores. They are ahead of their devices only if these have more to do.
    "hsdp": Shape(4, changes={"steps": 8, "forward_ms": 15.0}),
    "tp_dp": Shape(4, 0.01, changes={"steps": 8, "forward_ms": 25.0}),
    # The links of a pipeline are known after some blocks of eight steps.
    "pipeline": Shape(4, 0.001, ("pipeline",), {"steps": 32, "forward_ms": 4.0}),
}


@dataclass(frozen=True)
class Fault:
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan."""
    families: tuple[str, ...] = ()
    """Families that the verdict may have."""
    late: int | None = None
    """The rank that the verdict must name, where there are several."""
    error: float = ERROR
    alone: bool = True
    """Whether a single rank can have it."""
    wrong: str = ""
    """Why the cases are known to fail, if they are."""


READ_MS = 50.0
"""For how long the device is idle while a batch is read slowly."""
PASSES = 12
"""How many times as long as the forward pass of a block the passes of a step take: four blocks, and both passes."""
NO_GAPS = "idle time inside of compute is still called compute"
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none"),
        Fault("slow-reads", {"read_ms": READ_MS}, ("storage",), LATE),
        Fault("slow-rank", {"slower": 1.6}, ("straggler",), LATE, alone=False),
        Fault("slow-link", {}, ("network",), error=LINK_ERROR, alone=False),
        Fault("launches", {"operations": 60, "forward_ms": 0.0, "steps": 60}, ("host",), None, GAP_ERROR, wrong=NO_GAPS),
        Fault("save", {"save_every": 4}, ("storage",), SAVES),
        Fault("evaluation", {"evaluate_every": 4}, ("straggler",), SAVES, alone=False),
    )
}


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    ranks: int
    families: tuple[str, ...] = ()
    """Families that the verdict may have."""
    late: int | None = None
    """The rank that the verdict must name."""
    error: float = ERROR
    """How much the seconds of a kind may differ, as a share of the wall time."""
    env: Mapping[str, str] = field(default_factory=dict)
    wrong: str = ""
    """Why it is known to fail, if it is."""


def _of_shape(name: str, shape: Shape, fault: Fault) -> Case:
    plan = replace(Plan(name), **{**shape.changes, **fault.changes})
    if plan.read_ms:
        # The host reads while its device is busy.
        plan = replace(plan, read_ms=PASSES * plan.forward_ms + READ_MS)
    env = {"STANDIN_GBPS": str(shape.slow_gbps)} if fault.name == "slow-link" else {}
    late = fault.late if shape.ranks > 1 else None
    families = fault.families or shape.usual
    return Case(f"{name}-{fault.name}", plan, shape.ranks, families, late, fault.error, env, fault.wrong)


def _loop(name: str, loop: str, shape: str = "single", families: tuple[str, ...] = ("compute",), **more: Any) -> Case:
    plan = Plan(shape, loop, **more.pop("plan", {}))
    return Case(name, plan, SHAPES[shape].ranks, families, **more)


WHOLE_GRAPHS = "steps of a loop that replays a graph of the whole step are not counted"
COPIES_BACK = "DDP's copies of buckets and its broadcasts of buffers count as waits"
LOOPS = (
    _loop("reads-its-loss", "reads_its_loss", error=GAP_ERROR, wrong=NO_GAPS),
    _loop("reads-its-loss-launches", "reads_its_loss", families=("host",), error=GAP_ERROR, wrong=NO_GAPS,
          plan={"operations": 60, "forward_ms": 0.0, "steps": 60}),
    _loop("clips", "clips", error=GAP_ERROR, wrong=NO_GAPS),
    _loop("clips-ddp", "clips", "ddp", error=GAP_ERROR, wrong=NO_GAPS),
    _loop("clips-fsdp2", "clips", "fsdp2", error=GAP_ERROR, wrong=NO_GAPS),
    _loop("scales", "scales", error=GAP_ERROR, wrong=NO_GAPS),
    _loop("accumulates", "accumulates", "ddp", plan={"steps": 5}),
    _loop("uses-streams", "uses_streams"),
    _loop("another-stream", "trains_on_another_stream"),
    _loop("another-stream-ddp", "trains_on_another_stream", "ddp"),
    _loop("graphs-a-part", "graphs_a_part"),
    _loop("graphs-the-step", "graphs_the_step", wrong=WHOLE_GRAPHS),
    _loop("graphs-the-step-slow-reads", "graphs_the_step", families=("storage",), wrong=WHOLE_GRAPHS, plan={"read_ms": PASSES * 6.0 + READ_MS}),
    _loop("captures-in-between", "captures_in_between"),
    _loop("runs-out-of-memory", "runs_out_of_memory"),
    _loop("gathers-objects", "gathers_objects", "ddp", error=GAP_ERROR),
    _loop("sends-messages", "sends_messages", "ddp", error=GAP_ERROR),
    _loop("saves-in-shards", "saves_in_shards", "fsdp2", ("storage", "cpu", "host", "compute"), error=GAP_ERROR),
    _loop("ddp-copies", "plain", "ddp", error=0.005, wrong=COPIES_BACK, env={"STANDIN_KERNEL_NS": "300000"}),
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(
            _of_shape(name, shape, fault)
            for name, shape in SHAPES.items()
            for fault in FAULTS.values()
            if shape.ranks > 1 or fault.alone
        ),
        *LOOPS,
    )
}
