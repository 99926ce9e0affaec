"""The faults of `whyidle demo --inject`: each slows one part of the training job by a known delay, and records when.

These records are the ground truth to which the verdict is compared. They use the job's own clock and are independent of
whyidle. The training script imports this module from its own directory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import device as Device
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel


_READ_BYTES = 1 << 16
"""What a pipe holds, so that writing it does not block."""


class Trace:
    """Appends intervals to ``<directory>/<name>-<rank>-<pid>``, one `start end` per line, in ns of CLOCK_MONOTONIC."""

    def __init__(self, directory: str, name: str, rank: int):
        self._path = os.path.join(directory, f"{name}-{rank}")
        self._pid = self._fd = -1

    @contextmanager
    def interval(self) -> Iterator[None]:
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self._write(start, time.monotonic_ns())

    def sleep(self, seconds: float) -> None:
        """Blocks for the given time. If it takes longer, the rest was a wait for a CPU and is not part of the fault."""
        start = time.monotonic_ns()
        time.sleep(seconds)
        self._write(start, start + int(seconds * 1e9))

    def read(self, seconds: float) -> None:
        """The same, in a read of 64 KiB that come only then."""
        reads, writes = os.pipe()
        late = threading.Timer(seconds, os.write, (writes, bytes(_READ_BYTES)))
        start = time.monotonic_ns()
        late.start()
        os.read(reads, _READ_BYTES)
        self._write(start, start + int(seconds * 1e9))
        late.join()
        os.close(reads)
        os.close(writes)

    def _write(self, start: int, end: int) -> None:
        if self._pid != os.getpid():  # a data worker has a copy of this object and needs a separate file
            self._pid = os.getpid()
            self._fd = os.open(
                f"{self._path}-{self._pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        os.write(self._fd, b"%d %d\n" % (start, end))


class Fault:
    """No fault. The training loop calls these methods, which do nothing here."""

    def __init__(self, delay_seconds: float, trace: Trace):
        self.delay = delay_seconds
        self.trace = trace

    def reading_a_batch(self) -> None:
        """Called in the data-loading worker, in the middle of its reads, once per batch."""

    def processing_a_batch(self) -> None:
        """Called in the data-loading worker after the bytes of a batch were read."""

    def computing(self, device: Device) -> None:
        """Called in the training loop, between the forward and the backward pass."""

    def reducing(self, model: DistributedDataParallel) -> None:
        """Called once with the model, whose gradients will be reduced."""

    def writing(self, file: BinaryIO) -> BinaryIO:
        """Called with the file of each checkpoint. Returns the file to write to."""
        return file


class SlowStorage(Fault):
    """In each batch, the worker is blocked in a read."""

    def reading_a_batch(self) -> None:
        self.trace.read(self.delay)


class SlowCpu(Fault):
    """In each batch, the worker uses CPU time, like an expensive tokeniser."""

    def processing_a_batch(self) -> None:
        with self.trace.interval():
            end = time.thread_time() + self.delay
            text = "the quick brown fox jumps over the lazy dog " * 40
            while time.thread_time() < end:
                text.split()


class SlowRank(Fault):
    """In each step, the rank computes more matrix products."""

    def computing(self, device: Device) -> None:
        import torch

        matrix = torch.randn(128, 128, device=device)
        with self.trace.interval():
            end = time.monotonic() + self.delay
            while time.monotonic() < end:
                matrix = torch.tanh(matrix @ matrix)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)


class SlowNetwork(Fault):
    """The result of each reduction of gradients arrives later, after every rank has entered the reduction."""

    def reducing(self, model: DistributedDataParallel) -> None:
        import torch
        from torch import distributed

        ranks = distributed.get_world_size()
        # One thread is the link: it takes one reduction after the other. Future.then would not do, because for a
        # finished reduction it runs its callback at once, in the middle of the backward pass.
        link = ThreadPoolExecutor(1, "slow-link")

        def deliver(work: Any, result: Future[torch.Tensor], buffer: torch.Tensor) -> None:
            try:
                work.wait()
                if buffer.is_cuda:
                    torch.cuda.current_stream(buffer.device).synchronize()
                with self.trace.interval():
                    time.sleep(self.delay)
                result.set_result(buffer)
            except Exception as error:
                result.set_exception(error)  # pyright: ignore[reportArgumentType] - wrong in torch's annotations

        def reduce(state: object, bucket: Any) -> Future[torch.Tensor]:
            buffer = bucket.buffer().div_(ranks)
            work = distributed.all_reduce(buffer, async_op=True)
            result: Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
            link.submit(deliver, work, result, buffer)
            return result

        # DDP checks the annotations of its hooks, but annotations in this module are strings.
        reduce.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        model.register_comm_hook(None, reduce)


class SlowCheckpoint(Fault):
    """In each checkpoint, the first write blocks."""

    def writing(self, file: BinaryIO) -> BinaryIO:
        return _SlowFile(file, self.delay, self.trace)  # pyright: ignore[reportReturnType]


class _SlowFile:
    def __init__(self, file: BinaryIO, delay_seconds: float, trace: Trace):
        self._file, self._delay, self._trace = file, delay_seconds, trace

    def write(self, data: bytes) -> int:
        if self._delay:
            self._trace.sleep(self._delay)
            self._delay = 0.0
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


FAULTS: dict[str, Callable[[float, Trace], Fault]] = {
    "none": Fault,
    "storage": SlowStorage,
    "cpu": SlowCpu,
    "network": SlowNetwork,
    "straggler": SlowRank,
    "checkpoint": SlowCheckpoint,
}
