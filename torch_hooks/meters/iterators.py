"""What the iterator of a loader with workers knows about them. Its fields are those of torch's
`_MultiProcessingDataLoaderIter`; torchdata's loader has the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def owes(iterator: Any) -> int | None:
    """The worker that owes the next batch; -1 if the batch has arrived early, None if there are no more.

    Skips the requests of workers whose part of an IterableDataset is exhausted, as the iterator does. If batches may
    come in any order (torch >= 2.6), the one that was asked last goes on: a slow worker keeps the oldest requests.
    """
    if not in_order(iterator):
        oldest: dict[int, int] = {}
        for index, info in iterator._task_info.items():  # in the order of the requests
            if len(info) != 1:
                return -1
            if iterator._workers_status[info[0]]:
                oldest.setdefault(info[0], index)
        return max(oldest, key=lambda worker: oldest[worker]) if oldest else None
    for index in range(iterator._rcvd_idx, iterator._send_idx):
        info = iterator._task_info.get(index)
        if info is not None:
            if len(info) != 1:
                return -1
            if iterator._workers_status[info[0]]:
                return info[0]
    return None


def in_order(iterator: Any) -> bool:
    return getattr(iterator, "_in_order", True)


def received(iterator: Any) -> int:
    """How many batches have come."""
    return iterator._rcvd_idx if in_order(iterator) else iterator._num_yielded


def exhausted(iterator: Any) -> int:
    """How many workers have yielded all of their part of an IterableDataset."""
    return iterator._workers_status.count(False)


def requested(iterator: Any, worker: int) -> int:
    """How many batches a worker owes."""
    return sum(1 for info in iterator._task_info.values() if len(info) == 1 and info[0] == worker)


def making(iterator: Any) -> Iterator[int]:
    """The workers that have taken a request whose batch has not arrived, by their pids."""
    for worker, process in enumerate(iterator._workers):
        if iterator._workers_status[worker] and taken(iterator, worker) > 0:
            yield process.pid


def taken(iterator: Any, worker: int) -> int:
    """How many requests a worker has taken whose batches have not arrived.

    A worker makes its batches in the order of the requests. So the oldest one that has not arrived is made, and only on
    its way, if the worker has started with the next one.
    """
    return requested(iterator, worker) - iterator._index_queues[worker].qsize()
