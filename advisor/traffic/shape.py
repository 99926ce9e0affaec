"""The model, the shape of its parallelism, and the collectives of a step that follow from both. Pure functions.

Ranks are numbered as in Megatron-LM and in a DeviceMesh of (pipeline, replicate, shard, sequence, tensor): tensor
parallel ranks are next to each other, pipeline stages are far apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_RANKS = 1 << 20
"""The largest world size. Each rank is placed on its node, which takes time."""
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class ShapeError(ValueError):
    """The given sizes do not fit together. The message says what to give."""


@dataclass(frozen=True)
class Model:
    """The model that is trained. Sizes in elements."""

    parameters: float
    batches: float
    """Optimizer steps per epoch."""
    tokens: float = 0.0
    """Tokens per epoch."""
    layers: float = 0.0
    hidden: float = 0.0
    element: float = 2.0
    """Bytes of an element of an activation or a parameter."""
    gradient: float = 0.0
    """Bytes of an element of a gradient; 0 means the same as ``element``."""
    expert_parameters: float = 0.0
    """How many of the parameters belong to experts."""
    moe_layers: float = 0.0
    """How many of the layers have experts; 0 means all."""
    top_k: float = 1.0
    """The number of experts that each token is sent to."""

    @property
    def gradient_bytes(self) -> float:
        return self.gradient or self.element


@dataclass(frozen=True)
class Parallel:
    """The sizes of the groups; 1 if there is no group of that kind."""

    data: int = 1
    """Replicas whose gradients are averaged."""
    shard: int = 1
    """The ranks among which FSDP or ZeRO shards."""
    tensor: int = 1
    sequence: int = 1
    """The ranks among which DeepSpeed-Ulysses splits each sequence."""
    expert: int = 1
    """The consecutive data-parallel ranks among which experts are distributed."""
    pipeline: int = 1
    zero: int = 3
    """ZeRO's stage; 3 is FSDP."""
    split_norms: bool = False
    """Whether Megatron's sequence parallelism is used in addition to tensor parallelism."""
    microbatches: int = 1

    @property
    def world(self) -> int:
        return self.replicas * self.sequence * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """The number of ranks among which the batch is split."""
        return self.data * self.shard


SIZES: tuple[str, ...] = ("data", "shard", "tensor", "sequence", "expert", "pipeline")
"""The dimensions, in the order of the fields of Parallel."""


@dataclass(frozen=True)
class Calls:
    """The collectives of one kind that every group of a dimension makes in a step."""

    dimension: str
    moment: str
    """FORWARD, BACKWARD or UPDATE."""
    op: str
    """A collective, or `send`: each rank sends to the next one of its group, or back."""
    size: float
    """The bytes of one call, as collectives.py defines them."""
    times: float
    """The number of calls in a step."""
    group: int
    """The ranks of a group."""
    stride: int
    """The difference between the numbers of two neighbouring ranks of a group."""
    source: str


DDP = "one all-reduce of all gradients a step (PyTorch DDP, arXiv 2006.15704)"
HYBRID = "an all-reduce of each shard of the gradients a microbatch (PyTorch FSDP2, set_requires_all_reduce)"
ZERO = "arXiv 1910.02054, section 7: a reduce-scatter and a gather of parameters, from stage 3 on two gathers"
MEGATRON = "arXiv 1909.08053, section 3: two all-reduces a layer forward, and two backward"
MEGATRON_SP = "arXiv 2205.05198, section 4.2: a gather and a reduce-scatter for each all-reduce, and a gather again"
ULYSSES = "arXiv 2309.14509, section 3: all-to-alls of query, key, value and output a layer; grouped keys move less"
GSHARD = "arXiv 2006.16668: two all-to-alls a layer of experts forward, and two backward"
PIPELINE = "arXiv 2104.04473, section 2.2: a stage hands on its activations, and gradients come back"


def check(model: Model, parallel: Parallel) -> None:
    """Raises ShapeError if the model and the shape do not fit together."""
    if model.parameters <= 0:
        raise ShapeError("the number of parameters must be above 0")
    if model.batches <= 0:
        raise ShapeError("an epoch must have at least one step: give --batches")
    if parallel.world > MOST_RANKS:
        raise ShapeError(
            f"{parallel.world:,} ranks are too many (at most {MOST_RANKS:,}): see --dp, --fsdp, --tp, --sp, --pp"
        )
    activations = max(parallel.tensor, parallel.sequence, parallel.expert, parallel.pipeline) > 1
    if activations and not (model.tokens and model.hidden):
        raise ShapeError("this shape sends activations: give --tokens and --hidden")
    if max(parallel.tensor, parallel.sequence, parallel.expert) > 1 and not model.layers:
        raise ShapeError("this shape sends data in each layer: give --layers")
    if parallel.expert > 1 and not model.expert_parameters:
        raise ShapeError("experts reduce their gradients among fewer ranks: give --expert-parameters")
    if model.expert_parameters > model.parameters:
        raise ShapeError("the experts cannot have more parameters than the model: see --expert-parameters")
    if parallel.replicas * parallel.sequence % parallel.expert:
        raise ShapeError(
            f"{parallel.replicas * parallel.sequence} data-parallel ranks cannot be divided into groups of"
            f" {parallel.expert} expert-parallel ranks: see --ep"
        )
    if parallel.expert > 1 and parallel.shard > 1:
        raise ShapeError("there is no formula for experts together with FSDP or ZeRO: leave out --fsdp or --ep")


def calls(model: Model, parallel: Parallel) -> Iterator[Calls]:
    """Yields the collectives of a step. Raises ShapeError."""
    check(model, parallel)
    yield from _data(model, parallel)
    yield from _sharded(model, parallel)
    if parallel.tensor > 1:
        yield from _tensor(model, parallel)
    if parallel.sequence > 1:
        yield from _sequence(model, parallel)
    if parallel.expert > 1:
        yield from _expert(model, parallel)
    if parallel.pipeline > 1:
        yield from _pipeline(model, parallel)


def _local(parameters: float, parallel: Parallel) -> float:
    """The parameters of a rank before any sharding. Tensor parallelism and the pipeline divide them evenly."""
    return parameters / (parallel.tensor * parallel.pipeline)


def _tokens(model: Model, parallel: Parallel) -> float:
    """The tokens of a step in one replica. Sequence parallelism divides them again."""
    return model.tokens / model.batches / parallel.replicas


def _data(model: Model, parallel: Parallel) -> Iterator[Calls]:
    of_experts = model.expert_parameters if parallel.expert > 1 else 0.0
    dense = _local(model.parameters - of_experts, parallel) * model.gradient_bytes
    if parallel.shard > 1:
        group, stride = parallel.data, parallel.tensor * parallel.sequence * parallel.shard
        dense /= parallel.sequence * parallel.shard
    else:
        group, stride = parallel.data * parallel.sequence, parallel.tensor
    if group > 1:
        hybrid = parallel.shard > 1 and parallel.zero == 3
        times, source = (parallel.microbatches, HYBRID) if hybrid else (1, DDP)
        yield Calls("data", BACKWARD, "all_reduce", dense, times, group, stride, source)
    copies = group // parallel.expert
    if of_experts and copies > 1:
        size = _local(of_experts, parallel) * model.gradient_bytes / parallel.expert
        yield Calls("data", BACKWARD, "all_reduce", size, 1, copies, stride * parallel.expert, DDP)


def _sharded(model: Model, parallel: Parallel) -> Iterator[Calls]:
    if parallel.shard == 1:
        return
    group, stride = parallel.shard * parallel.sequence, parallel.tensor
    local = _local(model.parameters, parallel)
    parameters, gradients = local * model.element, local * model.gradient_bytes
    if parallel.zero < 3:
        # With stage 2 no rank keeps whole gradients, so each microbatch reduces them. Stage 1 waits for the last one.
        times = parallel.microbatches if parallel.zero == 2 else 1
        yield Calls("shard", BACKWARD, "reduce_scatter", gradients, times, group, stride, ZERO)
        yield Calls("shard", UPDATE, "all_gather", parameters, 1, group, stride, ZERO)
        return
    for moment, op, size in (
        (FORWARD, "all_gather", parameters),
        (BACKWARD, "all_gather", parameters),
        (BACKWARD, "reduce_scatter", gradients),
    ):
        yield Calls("shard", moment, op, size, parallel.microbatches, group, stride, ZERO)


def _tensor(model: Model, parallel: Parallel) -> Iterator[Calls]:
    size = _tokens(model, parallel) / parallel.sequence * model.hidden * model.element
    twice = 2 * model.layers / parallel.pipeline
    if not parallel.split_norms:
        for moment in (FORWARD, BACKWARD):
            yield Calls("tensor", moment, "all_reduce", size, twice, parallel.tensor, 1, MEGATRON)
        return
    for moment, op, times in (
        (FORWARD, "all_gather", twice),
        (FORWARD, "reduce_scatter", twice),
        (BACKWARD, "all_gather", 2 * twice),
        (BACKWARD, "reduce_scatter", twice),
    ):
        yield Calls("tensor", moment, op, size, times, parallel.tensor, 1, MEGATRON_SP)


def _sequence(model: Model, parallel: Parallel) -> Iterator[Calls]:
    size = _tokens(model, parallel) / parallel.sequence * model.hidden * model.element / parallel.tensor
    times = 4 * model.layers / parallel.pipeline
    for moment in (FORWARD, BACKWARD):
        yield Calls("sequence", moment, "all_to_all", size, times, parallel.sequence, parallel.tensor, ULYSSES)


def _expert(model: Model, parallel: Parallel) -> Iterator[Calls]:
    tokens = _tokens(model, parallel) / parallel.sequence
    size = tokens * model.top_k * model.hidden * model.element / parallel.tensor
    times = 2 * (model.moe_layers or model.layers) / parallel.pipeline
    for moment in (FORWARD, BACKWARD):
        yield Calls("expert", moment, "all_to_all", size, times, parallel.expert, parallel.tensor, GSHARD)


def _pipeline(model: Model, parallel: Parallel) -> Iterator[Calls]:
    size = _tokens(model, parallel) / parallel.sequence * model.hidden * model.element / parallel.microbatches
    if parallel.split_norms:
        size /= parallel.tensor
    stride = parallel.world // parallel.pipeline
    for moment in (FORWARD, BACKWARD):
        yield Calls("pipeline", moment, "send", size, parallel.microbatches, parallel.pipeline, stride, PIPELINE)
