"""Ways to write the loop of a training. Each trains for the steps of its plan, and writes marks."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cudastandin import shapes
from cudastandin.marks import Marks, stream_number
from cudastandin.plan import LATE, Plan
from cudastandin.training import BATCH, EVALUATIONS, Training

FOLDED = 3
"""The batches of an accumulated step."""


def plain(plan: Plan, marks: Marks) -> None:
    for _ in Training(plan, marks).steps():
        pass


def reads_its_loss(plan: Plan, marks: Marks) -> None:
    for loss in Training(plan, marks).steps():
        assert loss is not None
        loss.item()


def clips(plan: Plan, marks: Marks) -> None:
    """Reads the norm of the gradients from the device in each step."""
    training = Training(plan, marks)
    for batch in training.batches():
        loss = training.backward(batch)
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0, error_if_nonfinite=True).item()
        training.update(loss)


def scales(plan: Plan, marks: Marks) -> None:
    """AMP: the scaler decides by a value on the device whether to step."""
    training, scaler = Training(plan, marks), torch.amp.GradScaler("cuda")
    for batch in training.batches():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = training.model(batch.cuda(non_blocking=True)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
        marks.losses.append(loss.detach())


def accumulates(plan: Plan, marks: Marks) -> None:
    training = Training(plan, marks, folded=FOLDED)
    for number, batch in enumerate(training.batches(), 1):
        whole = number % FOLDED == 0
        with contextlib.nullcontext() if whole else training.model.no_sync():
            loss = training.backward(batch)
        if whole:
            training.update(loss)


def uses_streams(plan: Plan, marks: Marks) -> None:
    """Copies the next batch on a second stream, and does other work on a third."""
    training, copying, other = Training(plan, marks), torch.cuda.Stream(), torch.cuda.Stream()
    batches = training.batches()

    def fetch() -> torch.Tensor | None:
        batch = next(batches, None)
        with torch.cuda.stream(copying):
            return None if batch is None else batch.cuda(non_blocking=True)

    following = fetch()
    while following is not None:
        torch.cuda.current_stream().wait_stream(copying)
        loss = training.passes(following)
        with torch.cuda.stream(other):
            torch.cuda._sleep(20_000_000)
        following = fetch()
        training.update(loss)


def trains_on_another_stream(plan: Plan, marks: Marks) -> None:
    stream = torch.cuda.Stream()
    marks.home = stream_number(stream)
    with torch.cuda.stream(stream):
        plain(plan, marks)


def graphs_a_part(plan: Plan, marks: Marks) -> None:
    """The first half of the model is a graph, in both passes."""
    training = Training(plan, marks)
    sample = torch.ones(BATCH, shapes.WIDTH, device="cuda", requires_grad=True)
    half = torch.cuda.make_graphed_callables(training.model[:2], (sample,))
    rest = training.model[2:]
    training.passes = shapes.passes_of(lambda x: rest(half(x.requires_grad_())))
    for _ in training.steps():
        pass


def graphs_the_step(plan: Plan, marks: Marks) -> None:
    """The whole step is a graph: both passes and the optimizer."""
    training = Training(plan, marks, foreach=True)
    static = torch.ones(BATCH, shapes.WIDTH, device="cuda")
    _replay(training, static, *_graph_of(training, static))


def evaluates_in_memory(plan: Plan, marks: Marks) -> None:
    """Evaluates on batches that are on the device already, so no loader shows where the evaluation begins."""
    training = Training(plan, marks)
    model, batch = shapes.blocks(plan).cuda().eval(), torch.ones(BATCH, shapes.WIDTH, device="cuda")
    for number, _ in enumerate(training.steps(), 1):
        if number % 4 == 0:
            with torch.no_grad():
                for _ in range(EVALUATIONS):
                    model(batch)


def captures_in_between(plan: Plan, marks: Marks) -> None:
    """Trains without graphs, and captures one in the middle."""
    training = Training(plan, marks)
    for number, _ in enumerate(training.steps(), 1):
        if number == plan.steps // 2:
            model = shapes.blocks(plan).cuda()
            static = torch.ones(BATCH, shapes.WIDTH, device="cuda")
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                model(static)
            graph.replay()


def _replay(training: Training, static: torch.Tensor, graph: torch.cuda.CUDAGraph, result: torch.Tensor) -> None:
    """Replays a graph for each batch."""
    for batch in training.batches():
        static.copy_(batch, non_blocking=True)
        graph.replay()
        training.marks.losses.append(result.clone())
        training.limit_lead()


def _graph_of(training: Training, static: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    def step() -> torch.Tensor:
        loss = training.passes(static)
        training.optimizer.step()
        assert loss is not None
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def graphs_a_collective(plan: Plan, marks: Marks) -> None:
    """The graph of the whole step contains collectives: their waits are work of the graph."""
    training = Training(plan, marks, foreach=True)
    passes, parameters = training.passes, [*training.model.parameters()]

    def exchanged(batch: torch.Tensor) -> torch.Tensor | None:
        loss = passes(batch)
        for parameter in parameters:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        return loss

    training.passes = exchanged
    static = torch.ones(BATCH, shapes.WIDTH, device="cuda")
    _replay(training, static, *_graph_of(training, static))


def graphs_its_own_optimizer(plan: Plan, marks: Marks) -> None:
    """The whole step is a graph, and its optimizer is the loop's own code: nothing shows where a step ends."""
    training = Training(plan, marks)
    static = torch.ones(BATCH, shapes.WIDTH, device="cuda")
    parameters = [*training.model.parameters()]

    def step() -> torch.Tensor:
        loss = training.model(static).square().mean()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(gradient, alpha=0.01)
        return loss.detach()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    _replay(training, static, graph, result)


def waits_beside(plan: Plan, marks: Marks) -> None:
    """Another stream waits for a collective, and then the host waits for that stream, as in torchrec."""
    training, beside = Training(plan, marks), torch.cuda.Stream()
    for batch in training.batches():
        if training.rank == LATE:
            time.sleep(plan.read_ms / 1e3)
        torch.cuda.synchronize()
        with torch.cuda.stream(beside):
            work = dist.all_reduce(torch.ones(8, device="cuda"), async_op=True)
            assert work is not None
            with marks.during(marks.beside):
                work.wait()
                beside.synchronize()
        training.update(training.backward(batch))


def runs_out_of_memory(plan: Plan, marks: Marks) -> None:
    """Asks for more memory than there is, and goes on without it."""
    training = Training(plan, marks)
    for _ in training.steps():
        torch.cuda.reset_peak_memory_stats()
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()


def gathers_objects(plan: Plan, marks: Marks) -> None:
    """Collectives of objects, which read sizes from the device."""
    training, size = Training(plan, marks), dist.get_world_size()
    for number, _ in enumerate(training.steps()):
        found: list[Any] = [None] * size
        dist.all_gather_object(found, {"rank": training.rank, "step": number})
        assert found == [{"rank": rank, "step": number} for rank in range(size)], found
        sent = [number if training.rank == 0 else None]
        dist.broadcast_object_list(sent, 0)
        assert sent == [number], sent


def waits_at_barriers(plan: Plan, marks: Marks) -> None:
    """Each step ends with a barrier."""
    for _ in Training(plan, marks).steps():
        dist.barrier()


def sends_messages(plan: Plan, marks: Marks) -> None:
    """Each rank sends to the next one, and receives from the one before."""
    training, size = Training(plan, marks), dist.get_world_size()
    for number, _ in enumerate(training.steps()):
        ours = torch.full((16,), training.rank * 1000 + number, device="cuda")
        theirs = torch.empty_like(ours)
        before, following = (training.rank - 1) % size, (training.rank + 1) % size
        sends = dist.P2POp(dist.isend, ours, following), dist.P2POp(dist.irecv, theirs, before)
        for work in dist.batch_isend_irecv(list(sends)):
            work.wait()
        if number % 6 == 5:
            assert theirs.tolist() == [before * 1000 + number] * 16, theirs.tolist()


def saves_in_shards(plan: Plan, marks: Marks) -> None:
    """Distributed checkpoints, planned over NCCL."""
    import torch.distributed.checkpoint as dcp

    training, folder = Training(plan, marks), Path(os.environ["ACCOUNT_DIR"])
    for number, _ in enumerate(training.steps(), 1):
        if number % 4 == 0:
            with marks.during(marks.save):
                dcp.save({"model": training.model.state_dict()}, checkpoint_id=folder / f"checkpoint-{number}")


def hangs(plan: Plan, marks: Marks) -> None:
    """The late rank stops before its last step, and never enters the collectives of that step."""
    training = Training(plan, marks)
    for number, _ in enumerate(training.steps(), 1):
        if training.rank == LATE and number == plan.steps - 1:
            Path(os.environ["ACCOUNT_DIR"], "hangs").touch()
            time.sleep(600)


def ends_with_work_in_flight(plan: Plan, marks: Marks) -> None:
    """Ends while its device has work for seconds."""
    for _ in Training(plan, marks).steps():
        pass
    torch.cuda._sleep(3_000_000_000)
    os.environ["STANDIN_LEAVE"] = "1"
