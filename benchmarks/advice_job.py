"""What benchmarks/advice.py trains: ranks with one fault each, of known length, and with it mended as advised.

Additional compute is a sleep, because on shared cores the same computation takes a different time in each step. Where
a sleep would count as another fault than compute, the rank is busy instead.
"""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from advice_outcome import LIMIT_SECONDS, WARM, Outcome, batch_seconds
from ranks import run_ranks
from support_neighbours import neighbours
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from whatif_network import INTERFACE, MTU, jumbo, shaped
from work import Work, pipeline

import whyidle
from whyidle.advisor.advice.case import Counters
from whyidle.cli.counters import bytes_per_read
from whyidle.torch_hooks import attach

WIDTH, ROWS = 256, 4
STAGE_ROWS, MICROBATCHES = 64, 4
FILES, FILE_BYTES = 16, 16 << 10
"""The small files that a batch is read from."""
SAVE_RATE = 20e6
"""Bytes per second that a slow storage takes."""
LARGE_BYTES = 6 << 20
"""Of each file of a data set that has to fit into memory."""


@dataclass(frozen=True)
class Job:
    """Times in seconds."""

    steps: int = 40
    ranks: int = 1
    compute: float = 0.03
    workers: int = 0
    prefetch: int = 2
    epoch: int = 0
    """Batches of an epoch, for which workers are spawned; 0: there is only one epoch."""
    workers_stay: bool = False
    read: float = 0.0
    decode: float = 0.0
    spike: float = 0.0
    """How much longer a read of every 25th batch takes."""
    buffer: int = 0
    """The reads before the first batch of an epoch."""
    skip: int = 0
    """The batches that the loop takes before its first step, and does not compute on."""
    pieces: int = 0
    """The tensors of a batch; with ``stacked``, one tensor of the same size in total."""
    stacked: bool = False
    folder: str = ""
    """The folder of the files that are read; empty if there are none."""
    sharded_files: bool = False
    collect: bool = False
    """The loop calls gc.collect() in each step, with many objects alive."""
    freeze: bool = False
    """It calls gc.freeze() before the first step."""
    shapes: int = 0
    """How many shapes the batches of a compiled model have, one after the other."""
    dynamic: bool = False
    blocked: float = 0.0
    """How long a call in the loop takes."""
    in_thread: bool = False
    by_hand: bool = False
    """The loop reads its batches itself, in a function called `get_batch`, without a DataLoader."""
    makers: int = 0
    """With ``by_hand``: this number of threads makes batches ahead instead."""
    shards: int = 0
    """The number of shards of an IterableDataset, of which a worker takes each nth; 0: there is no IterableDataset."""
    log: float = 0.0
    """How long a call of `log_metrics` takes in each step; with ``in_thread``, a thread makes it."""
    count: float = 0.0
    """How long the loop counts words between steps, in Python, each ``count_every`` steps."""
    count_every: int = 1
    rank_0_logs: bool = False
    """Only rank 0 calls it."""
    beside: float = 0.0
    """A thread computes in Python for this time and then sleeps for this time, again and again."""
    in_process: bool = False
    """A process does that."""
    evaluate_every: int = 0
    evaluate: float = 0.0
    """How long an evaluation takes on rank 0; with ``all_evaluate``, divided among all ranks."""
    all_evaluate: bool = False
    save_every: int = 0
    save_bytes: int = 0
    asynchronous: bool = False
    all_save: bool = False
    mbit: int = 0
    """The rate of each namespace's link; 0: not limited."""
    mtu: int = MTU
    interface: str = INTERFACE
    nodes: int = 0
    """The number of namespaces, with several ranks in each; 0: one for each rank."""
    sharding: str = ""
    """`flat`: over all ranks, as FSDP. `hybrid`: inside each node, and replicated across nodes."""
    layers: int = 1
    width: int = WIDTH
    bucket_mb: float = 25.0
    backward: float = 0.0
    """The additional time of each layer."""
    accumulate: int = 1
    synced: bool = False
    """Each backward pass reduces the gradients, also if they are accumulated."""
    objects: int = 0
    """The Python objects that each rank gathers from all ranks after a step."""
    tensors_apart: int = 0
    """Tensors that are reduced one by one, or with ``flat`` as one."""
    flat: bool = False
    late: tuple[float, ...] = ()
    """By rank: seconds in which it is busy in each step."""
    turns: float = 0.0
    """... in steps that are its turn."""
    stages: tuple[float, ...] = ()
    """Of a pipeline: seconds of each stage in a step."""

    cpus: int = 0
    """The CPUs that the ranks may use together, by affinity; 0: all."""
    quota: float = 0.0
    """The CPUs that a control group leaves them; 0: all."""
    memory: int = 0
    """The bytes of memory that a control group leaves them; 0: all."""
    others: int = 0
    """Other programs that compute all the time."""
    large: int = 0
    """The large files that an epoch reads, in order."""
    worker_cpu: bool = False
    """Each data worker may use CPU 0 alone."""
    threads: int = 1
    """That is what torch uses in each rank."""
    rows: int = ROWS

    skip_counts: bool = False
    """Whether the time before the first step is measured, too."""

    def run(self, folder: Path, names: tuple[str, ...]) -> Outcome:
        places = [names[rank * self.nodes // self.ranks if self.nodes else rank] for rank in range(self.ranks)]
        used = tuple(dict.fromkeys(places))
        if self.large:
            make_large(Path(self.folder), self.large)
        with (
            shaped(used, self.mbit),
            jumbo(used, self.mtu),
            given(self.cpus, self.quota, self.memory),
            neighbours(self.others),
        ):
            run_ranks(lambda rank: self._train(rank, folder), places, folder, "advice", limit_seconds=LIMIT_SECONDS)
        size = float((folder / "read-0").read_text())
        mtu = {INTERFACE: self.mtu} if self.ranks > 1 else {}
        counters = Counters(cpus=os.cpu_count(), bytes_per_read=size or None, mtu=mtu)
        return Outcome(folder / "ledgers", batch_seconds(folder, self.ranks, self.accumulate), counters)

    def _train(self, rank: int, folder: Path) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = self.interface
        train(self, rank, folder)


@contextlib.contextmanager
def given(cpus: int, quota: float, memory: int) -> Iterator[None]:
    """Limits this process and the ranks that it starts: to some CPUs, and to what control groups leave them."""
    mine = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        if quota:
            limits = {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": round(100_000 * quota)}
            stack.enter_context(_group("cpu", limits))
        if memory:
            stack.enter_context(_group("memory", {"memory.limit_in_bytes": memory}))
        os.sched_setaffinity(0, sorted(mine)[-cpus:] if cpus else mine)
        try:
            yield
        finally:
            os.sched_setaffinity(0, mine)


@contextlib.contextmanager
def _group(controller: str, limits: dict[str, int]) -> Iterator[None]:
    above = Path("/sys/fs/cgroup", controller)
    group = above / f"whyidle-advice-{os.getpid()}"
    group.mkdir()
    for name, value in limits.items():
        (group / name).write_text(str(value))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (above / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(50):
            with contextlib.suppress(OSError):  # the ranks are about to end
                group.rmdir()
                break
            time.sleep(0.1)


def _on_cpu_0(_: int) -> None:
    os.sched_setaffinity(0, {0})


def busy(seconds: float) -> None:
    """By CPU time: a core that others use makes it no shorter."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


class _Batches(Dataset[Any]):
    def __init__(self, job: Job):
        self.job = job

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        job = self.job
        time.sleep(job.read * (1 + (job.buffer if index == 0 else 0)) + (job.spike if index % 25 == 24 else 0.0))
        busy(job.decode)
        if job.large:
            _read_large(job, index)
        elif job.folder:
            _read_files(job, index)
        if job.pieces:
            whole = torch.ones(job.pieces, job.width)
            return whole if job.stacked else [row.clone() for row in whole]
        rows = job.rows + (index % job.shapes if job.shapes else 0)
        return torch.ones(rows, job.width)


class _Shards(IterableDataset[Any]):
    def __init__(self, job: Job):
        self.job = job

    def __iter__(self) -> Iterator[Any]:
        info, samples = get_worker_info(), _Batches(self.job)
        number, of = (info.id, info.num_workers) if info is not None else (0, 1)
        mine = range(number, self.job.shards, of)
        return (samples[index] for index in range(len(samples) if mine else 0))


def _read_files(job: Job, index: int) -> None:
    """A batch from FILES small files, or as much from one shard."""
    folder = Path(job.folder)
    if job.sharded_files:
        _read(folder / f"shard-{index % 8}")
    else:
        for number in range(FILES):
            _read(folder / f"small-{(index * FILES + number) % 128}")


def _read_large(job: Job, index: int) -> None:
    """The part of the data set that this batch of an epoch has."""
    for number in range(index * job.large // job.epoch, (index + 1) * job.large // job.epoch):
        _read(Path(job.folder, f"large-{number}"), again=False)


def make_large(folder: Path, number: int) -> None:
    """Makes the files that are missing. None of them is in memory, which would count for another control group."""
    for path in (folder / f"large-{index}" for index in range(number)):
        if not path.exists():
            path.write_bytes(bytes(LARGE_BYTES))
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path, *, again: bool = True) -> None:
    """``again``: from the disk, also if the file is in memory."""
    with open(path, "rb", buffering=0) as file:
        if again:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass


def make_files(folder: Path) -> None:
    for number in range(128):
        (folder / f"small-{number}").write_bytes(bytes(FILE_BYTES))
    for number in range(8):
        (folder / f"shard-{number}").write_bytes(bytes(FILES * FILE_BYTES))


class _Slow(torch.autograd.Function):
    """Passes its input on; its backward takes a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        time.sleep(ctx.seconds)
        return grads[0], None


class _Layer(nn.Module):
    def __init__(self, job: Job):
        super().__init__()
        self.linear = nn.Linear(job.width, job.width)
        self.backward_seconds = job.backward

    def forward(self, x: Tensor) -> Tensor:
        return _Slow.apply(self.linear(x), self.backward_seconds)  # pyright: ignore[reportReturnType]


class SlowFile(io.BytesIO):
    """Takes SAVE_RATE bytes per second, as a storage would."""

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        time.sleep(size / SAVE_RATE)
        return size


def train(job: Job, rank: int, folder: Path) -> None:
    """Trains all steps of a rank, and writes when each of its batches was done: ns of CLOCK_MONOTONIC, one a line."""
    if job.nodes:
        os.environ["WHYIDLE_NODE"] = f"node-{rank * job.nodes // job.ranks}"
    # As for a process that was started with these CPUs. This one was forked by one that had all of them.
    attach._session._cpus = frozenset(os.sched_getaffinity(0))
    assert whyidle.attach()
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    if job.ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=job.ranks)
    steps = (
        islice(pipeline(job.stages, rank, STAGE_ROWS, MICROBATCHES), job.steps) if job.stages else _replica(job, rank)
    )
    # The time in which a loop skips batches is a part of its first step.
    ends = [time.monotonic_ns()] * (WARM if job.skip_counts else 0)
    ends += [time.monotonic_ns() for _ in steps]
    size = bytes_per_read([os.getpid()])
    whyidle.detach()
    (folder / f"ends-{rank}").write_text("\n".join(map(str, ends)))
    (folder / f"read-{rank}").write_text(str(size or 0))
    if job.ranks > 1:
        dist.barrier()
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _loader(job: Job) -> Iterator[Any]:
    batches = _Batches(job)
    loader = DataLoader(
        _Shards(job) if job.shards else batches,
        None,
        sampler=None if job.shards else range(job.epoch or len(batches)),
        num_workers=job.workers,
        prefetch_factor=job.prefetch if job.workers else None,
        multiprocessing_context="spawn" if job.epoch else None,
        persistent_workers=job.workers_stay,
        worker_init_fn=_on_cpu_0 if job.worker_cpu else None,
    )
    while True:
        yield from loader


def _replica(job: Job, rank: int) -> Iterator[None]:
    net: nn.Module = nn.Sequential(*[Work(job.compute)] * (job.compute > 0), *(_Layer(job) for _ in range(job.layers)))
    model = net
    if job.sharding:
        _shard(net, job)
    elif job.ranks > 1 and not job.tensors_apart:
        model = DistributedDataParallel(net, bucket_cap_mb=job.bucket_mb)  # pyright: ignore[reportArgumentType]
    if job.shapes:
        torch._dynamo.config.recompile_limit = 1 << 16
        model = torch.compile(model, backend="eager", dynamic=job.dynamic or None if job.dynamic else False)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    extra = [torch.zeros(1000) for _ in range(job.tensors_apart)]
    keep = [[number] for number in range(200_000)] if job.collect else []
    if job.freeze:
        gc.collect()
        gc.freeze()
    save, evaluate = _saver(job, rank), _evaluator(job, rank)
    batches = _by_hand(job) if job.by_hand else _loader(job)
    _start_beside(job)
    for _ in range(job.skip):
        next(batches)
    for number in range(job.steps):
        x = next(batches)
        x = x if isinstance(x, Tensor) else torch.stack(x)
        busy(job.late[rank] if job.late else 0.0)
        busy(job.turns if number % job.ranks == rank else 0.0)
        last = (number + 1) % job.accumulate == 0
        with contextlib.nullcontext() if last or job.synced or not hasattr(model, "no_sync") else model.no_sync():  # pyright: ignore
            model(x).square().mean().backward()
        _reduce(extra, job.flat)
        _gather(job, number)
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if job.collect:
            gc.collect()
        _wait(time.sleep, job.blocked, job.in_thread)
        _wait(log_metrics, 0.0 if job.rank_0_logs and rank else job.log, job.in_thread)
        if number % job.count_every == 0:
            count_words(job.count)
        evaluate(net, x, number)
        save(number)
        yield
    del keep


def _shard(net: nn.Module, job: Job) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = (job.nodes, job.ranks // job.nodes) if job.sharding == "hybrid" else (job.ranks,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for module in (*net.children(), net):
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)


def _reduce(tensors: list[Tensor], flat: bool) -> None:
    if tensors and flat:
        dist.all_reduce(torch.cat(tensors))
    elif tensors:
        for tensor in tensors:
            dist.all_reduce(tensor)


def _gather(job: Job, step: int) -> None:
    """Object collectives pickle what they send, and unpickling makes new objects, which set off collections."""
    if job.objects:
        mine = {f"{step}-{number}": {"tokens": [number, number + 1]} for number in range(job.objects)}
        dist.all_gather_object([None] * job.ranks, mine)


def _wait(call: Callable[[float], object], seconds: float, in_thread: bool) -> None:
    if seconds and in_thread:
        threading.Thread(target=call, args=(seconds,), daemon=True).start()
    elif seconds:
        call(seconds)


def count_words(seconds: float) -> None:
    end, counts = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < end:
        counts.update(("a", "b"))


def log_metrics(seconds: float) -> None:
    time.sleep(seconds)


def _by_hand(job: Job) -> Iterator[Any]:
    samples = _Batches(job)

    def get_batch(index: int) -> Any:
        return samples[index]

    if job.makers:
        return _ahead(get_batch, job.makers)
    return map(get_batch, range(len(samples)))


def _ahead(get_batch: Callable[[int], Any], makers: int) -> Iterator[Any]:
    with ThreadPoolExecutor(makers) as pool:
        waiting = deque(pool.submit(get_batch, index) for index in range(makers))
        for index in count(makers):
            waiting.append(pool.submit(get_batch, index))
            yield waiting.popleft().result()


def _start_beside(job: Job) -> None:
    if job.beside:
        start: Any = multiprocessing.get_context("fork").Process if job.in_process else threading.Thread
        start(target=_work_and_rest, args=(job.beside, os.getpid()), name="tokenizer", daemon=True).start()


def _work_and_rest(seconds: float, rank: int) -> None:
    """Until the process of the rank has ended."""
    while rank in (os.getpid(), os.getppid()):
        busy(seconds)
        time.sleep(seconds)


def _evaluator(job: Job, rank: int) -> Callable[[nn.Module, Tensor, int], None]:
    evaluates = job.evaluate_every and (rank == 0 or job.all_evaluate)
    seconds = job.evaluate / (job.ranks if job.all_evaluate else 1)

    @torch.no_grad()
    def evaluate(net: nn.Module, x: Tensor, number: int) -> None:
        if evaluates and number % job.evaluate_every == job.evaluate_every - 1:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                net(x)

    return evaluate


def _saver(job: Job, rank: int) -> Callable[[int], None]:
    size = job.save_bytes // (job.ranks if job.all_save else 1)
    state = {"weights": torch.zeros(max(1, size // 4))}
    saves = job.save_every and (rank == 0 or job.all_save)

    def save(number: int) -> None:
        if not saves or number % job.save_every:
            return
        if job.asynchronous:
            copy = {name: tensor.clone() for name, tensor in state.items()}
            threading.Thread(target=torch.save, args=(copy, SlowFile()), daemon=True).start()
        else:
            torch.save(state, SlowFile())

    return save
