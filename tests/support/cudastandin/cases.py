"""The cases: each shape with each fault, loops of other kinds, and what the report must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cudastandin.plan import LATE, SAVES, Plan

ERROR, LINK_ERROR, GAP_ERROR = 0.02, 0.03, 0.03
"""How much the seconds of a kind may differ, as a share of the wall time: usually, with slow links, and where idle time
inside of compute is sampled."""
LAUNCH_ERROR = {1: GAP_ERROR, 2: 0.06, 4: 0.08}
"""Ranks -> the same for waits, and for compute and idle time together, where hosts that share two cores are never ahead
of their devices, but late with each boundary."""


@dataclass(frozen=True)
class Shape:
    """A function of shapes.py."""

    ranks: int = 2
    slow_gbps: float = 0.05
    """What a slow link carries, so that it takes about as long as the passes."""
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fault -> families, where they are not as usual."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan."""
    stages: float = 1.0
    """How many times as long as its passes a step of a rank takes, because it waits for other stages."""


# Where hosts launch without a break on shared cores, now one is late and now another.
_BUSY_HOSTS = {"launches": ("host", "straggler")}
_PIPELINE = {
    "none": ("pipeline",),
    "slow-rank": ("straggler", "pipeline"),
    "launches": ("host", "pipeline", "straggler"),
    "evaluation": ("straggler", "pipeline"),
}
SHAPES = {
    "single": Shape(1),
    "ddp": Shape(families=_BUSY_HOSTS),
    "ddp_views": Shape(families=_BUSY_HOSTS),
    "ddp_static": Shape(families=_BUSY_HOSTS),
    "ddp_buffers": Shape(families=_BUSY_HOSTS),
    "zero": Shape(families=_BUSY_HOSTS),
    "fsdp1": Shape(families=_BUSY_HOSTS),
    "fsdp2": Shape(families=_BUSY_HOSTS),
    # The hosts of four ranks share two cores. They are ahead of their devices only if these have more to do.
    "hsdp": Shape(4, 0.04, families=_BUSY_HOSTS, changes={"steps": 8, "forward_ms": 15.0}),
    "tp_dp": Shape(4, 0.02, families=_BUSY_HOSTS, changes={"steps": 8, "forward_ms": 45.0}),
    # The links of a pipeline are known after some blocks of eight steps.
    "pipeline": Shape(4, 0.001, families=_PIPELINE, changes={"steps": 32, "forward_ms": 3.5}, stages=1.75),
}


@dataclass(frozen=True)
class Fault:
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan."""
    late: int | None = None
    """The rank that the verdict must name, where there are several."""
    error: float = ERROR
    wait_error: Mapping[int, float] = field(default_factory=dict)
    """Ranks -> what waits and idle time may differ, if it is more."""
    alone: bool = True
    """Whether a single rank can have it."""
    together: tuple[str, ...] = ()
    limit: str = ""


READ_MS = 50.0
"""For how long the device is idle while a batch is read slowly."""
PASSES = 12
"""How many times as long as the forward pass of a block the passes of a step take: four blocks, and both passes."""
NO_GAPS: dict[str, Any] = {
    "together": ("busy", "idle"),
    "limit": "looks know little of a short run, and only estimate idle time in compute where kernels take some µs",
}
LAUNCHES: dict[str, Any] = {"operations": 60, "forward_ms": 0.0, "steps": 80}
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none"),
        Fault("slow-reads", {"read_ms": READ_MS}, LATE),
        Fault("slow-rank", {"slower": 1.6}, LATE, alone=False),
        Fault("slow-link", error=LINK_ERROR, alone=False),
        Fault("launches", LAUNCHES, error=GAP_ERROR, wait_error=LAUNCH_ERROR, **NO_GAPS),
        Fault("save", {"save_every": 3}, SAVES),
        Fault("evaluation", {"evaluate_every": 3}, SAVES, alone=False),
    )
}
USUAL: dict[str, tuple[str, ...]] = {
    "none": ("compute",),
    "slow-reads": ("storage",),
    "slow-rank": ("straggler",),
    "slow-link": ("network",),
    "launches": ("host",),
    "save": ("storage",),
    "evaluation": ("straggler",),
}
"""Fault -> families that the verdict may have."""


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    ranks: int
    families: tuple[str, ...] = ()
    """Families that the verdict may have."""
    late: int | None = None
    """The rank that the verdict must name."""
    more_steps: int = 0
    """How many steps more than those of the plan may be counted: those before a capture."""
    error: float = ERROR
    """How much the seconds of a kind may differ, as a share of the wall time."""
    wait_error: float = 0.0
    """The same for waits and idle time, if it is more, because hosts are late with each boundary."""
    env: Mapping[str, str] = field(default_factory=dict)
    together: tuple[str, ...] = ()
    """Kinds of which only the sum is compared."""
    limit: str = ""
    """Why, if whyidle cannot tell these kinds apart."""


def _of_shape(name: str, shape: Shape, fault: Fault) -> Case:
    plan = replace(Plan(name), **{**shape.changes, **fault.changes})
    if plan.read_ms:
        # The host reads while its device is busy.
        plan = replace(plan, read_ms=shape.stages * PASSES * plan.forward_ms + READ_MS)
    env = {"STANDIN_GBPS": str(shape.slow_gbps)} if fault.name == "slow-link" else {}
    families = {**USUAL, **shape.families}[fault.name]
    return Case(
        f"{name}-{fault.name}",
        plan,
        shape.ranks,
        families,
        late=fault.late if shape.ranks > 1 else None,
        error=fault.error,
        wait_error=fault.wait_error.get(shape.ranks, 0.0),
        env=env,
        together=fault.together,
        limit=fault.limit,
    )


def _loop(name: str, loop: str, shape: str = "single", families: tuple[str, ...] = ("compute",), **more: Any) -> Case:
    plan = Plan(shape, loop, **more.pop("plan", {}))
    return Case(name, plan, SHAPES[shape].ranks, families, **more)


GRAPH_STEPS = 4
"""Steps of the optimizer before a graph of the whole step is replayed: three before the capture, and the capture."""
LOOPS = (
    _loop("reads-its-loss", "reads_its_loss", error=GAP_ERROR),
    _loop(
        *("reads-its-loss-launches", "reads_its_loss"),
        families=("host",),
        plan={**LAUNCHES, "steps": 200},
        error=GAP_ERROR,
        **NO_GAPS,
    ),
    _loop("clips", "clips", error=GAP_ERROR),
    _loop("clips-ddp", "clips", "ddp", error=GAP_ERROR),
    # Its host launches for some 30 ms after it has read the norm, and a short run has too few looks at that.
    _loop(
        *("clips-fsdp2", "clips", "fsdp2"),
        plan={"steps": 8, "forward_ms": 30.0},
        error=GAP_ERROR,
        together=("busy", "idle"),
    ),
    _loop("scales", "scales", error=GAP_ERROR),
    _loop("accumulates", "accumulates", "ddp", plan={"steps": 5}),
    _loop("uses-streams", "uses_streams"),
    _loop("another-stream", "trains_on_another_stream"),
    _loop("another-stream-ddp", "trains_on_another_stream", "ddp"),
    _loop("graphs-a-part", "graphs_a_part", error=GAP_ERROR, plan={"steps": 24}),
    _loop("graphs-the-step", "graphs_the_step", more_steps=GRAPH_STEPS, error=GAP_ERROR),
    _loop(
        *("graphs-the-step-slow-reads", "graphs_the_step"),
        families=("storage",),
        plan={"read_ms": PASSES * 6.0 + READ_MS},
        more_steps=GRAPH_STEPS,
        error=GAP_ERROR,
    ),
    Case(
        "graphs-a-collective",
        Plan("single", "graphs_a_collective"),
        2,
        ("compute",),
        more_steps=GRAPH_STEPS,
        error=GAP_ERROR,
        together=("busy", "waits"),
    ),
    _loop("graphs-its-own-optimizer", "graphs_its_own_optimizer", error=GAP_ERROR),
    _loop("evaluates-in-memory", "evaluates_in_memory"),
    _loop("captures-in-between", "captures_in_between"),
    _loop("runs-out-of-memory", "runs_out_of_memory"),
    _loop("gathers-objects", "gathers_objects", "ddp", error=GAP_ERROR),
    # As with CUDA itself, a host that waits for its device uses a CPU. So the wait for the slow rank is not its work.
    Case(
        "waits-at-barriers",
        Plan("single", "waits_at_barriers", slower=2.0),
        2,
        ("straggler",),
        late=LATE,
        error=GAP_ERROR,
        env={"STANDIN_SPINS": "1"},
    ),
    _loop("sends-messages", "sends_messages", "ddp", error=GAP_ERROR),
    # Inside of a save the ranks wait for each other, and a wait counts as a wait.
    _loop("saves-in-shards", "saves_in_shards", "fsdp2", error=GAP_ERROR, together=("save", "waits")),
    _loop(
        *("ddp-copies", "plain", "ddp_buffers"),
        env={"STANDIN_HBM_GBPS": "1"},
        together=("busy", "waits"),
        limit="DDP waits for each bucket and copies it back in one function in C++, and no event is between these",
    ),
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
