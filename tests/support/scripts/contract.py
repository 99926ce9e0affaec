"""What attach and detach guarantee to the process that calls them: ``contract.py NAME``. Prints `kept` at its end."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import account  # noqa: F401
import torch
import torch._dynamo
import torch.distributed._functional_collectives
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch._C import _distributed_c10d as c10d
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader, dataloader

try:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp._fsdp_param_group import FSDPParamGroup

import whyidle
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach as attached

OWNERS: tuple[Any, ...] = (
    torch,
    torch.serialization,
    torch.autograd.Variable,
    DistributedDataParallel,
    dataloader._BaseDataLoaderIter,
    DataLoader,
    c10d.Work,
    c10d.ProcessGroup,
    torch.distributed._functional_collectives,
    state_dict_saver,
    state_dict_loader,
    gc,
    os,
    FSDPParamGroup,
)


def everything() -> dict[tuple[str, str], int]:
    """The identity of every attribute that is patched, and of every list of callbacks."""
    found = {(str(owner), name): id(value) for owner in OWNERS for name, value in vars(owner).items()}
    handler = torch._dynamo.callback.callback_handler
    lists = (gc.callbacks, handler.start_callbacks, handler.end_callbacks, optim._global_optimizer_post_hooks.values())
    return found | {("list", str(i)): hash(tuple(map(id, values))) for i, values in enumerate(lists)}


def steps(number: int) -> None:
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for batch in DataLoader(torch.ones(number * 2, 8), 2):
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def detach_restores_every_original() -> None:
    steps(1)
    before = everything()
    for _ in range(2):
        assert whyidle.attach()
        during = everything()
        assert whyidle.attach(), "twice is once"
        assert everything() == during
        changed = {name for name in before if during[name] != before[name]}
        assert len(changed) > 30, changed
        steps(3)
        whyidle.detach()
        assert everything() == before
        whyidle.detach()
    steps(1)


def nothing_is_touched() -> None:
    """With WHYIDLE=0."""
    before = everything()
    assert not whyidle.attach()
    with whyidle.phase("eval"):
        steps(2)
    whyidle.step()
    assert everything() == before
    assert not Path(os.environ["WHYIDLE_DIR"]).exists()


def no_tensor_is_held() -> None:
    whyidle.attach()
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for batch in DataLoader(torch.ones(20, 8), 2):
        loss = net(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    gone = [weakref.ref(one) for one in (net, optimizer, batch, loss, net.weight)]
    del net, optimizer, batch, loss
    assert [ref() for ref in gone] == [None] * len(gone), "and without a garbage collection"


class Broken:
    """Stands for code of whyidle that raises at every call."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError("ours")


def what_fails_inside_is_off() -> None:
    whyidle.attach()
    steps(2)
    session = attached._session
    words = session.writer.words  # type: ignore[union-attr]
    good, session.loop.steps = session.loop.steps, Broken()  # type: ignore[assignment]
    steps(30)
    assert {session.states[hook] for hook in ("step", "backward")} == {"failed"}
    session.loop.steps = good
    before = words[WORD_AT["faults"][0]]
    assert before >= 20
    session.machine.books = Broken()  # type: ignore[assignment, union-attr]
    steps(30)
    torch.save(torch.ones(3), Path(os.environ["ACCOUNT_DIR"], "x.pt"))
    with whyidle.phase("eval"):
        steps(2)
    whyidle.step()
    assert words[WORD_AT["faults"][0]] > before


def a_thread_of_the_program_takes_no_slot() -> None:
    """If another thread uses a group first, waits in it are held back from the first step in which the loop waits
    there."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - a backend whose collectives do nothing

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("fake", store=store, rank=0, world_size=4)
    groups = [dist.new_group([0, 1]), dist.new_group([0, 2])]
    whyidle.attach()
    steps(2)
    session = attached._session
    machine, exchange = session.machine, session.exchange
    assert exchange is not None

    def collective(group: Any, helper: bool) -> None:
        if helper:  # as in the backward pass on an accelerator: autograd's thread runs while the loop waits
            machine.helper = threading.get_ident()  # type: ignore[union-attr]
        dist.all_reduce(torch.ones(2), group=group)
        machine.helper = 0  # type: ignore[union-attr]

    def in_thread(group: Any, *, helper: bool) -> None:
        thread = threading.Thread(target=collective, args=(group, helper))
        thread.start()
        thread.join()

    in_thread(groups[0], helper=False)
    assert exchange.groups.slots == {}
    collective(groups[0], helper=False)
    in_thread(groups[1], helper=True)
    assert [group.ranks for group in exchange.groups.slots.values()] == [(0, 1), (0, 2)]
    assert [offer.held_from for offer in exchange._offers] == [3, 3]
    assert all(machine.books.held[slot] for slot in exchange.groups.slots)  # type: ignore[union-attr]
    dist.destroy_process_group()


def a_thread_that_fetches_batches_is_not_the_training() -> None:
    """With `whyidle run`, a thread of the program asks for a batch before the loop does anything."""
    attached.arm()
    batches: queue.Queue[Any] = queue.Queue(1)

    def fetch() -> None:
        for batch in DataLoader(torch.ones(20, 8), 2):
            batches.put(batch)

    thread = threading.Thread(target=fetch)
    thread.start()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(10):
        model(batches.get()).sum().backward()
        optimizer.step()
    thread.join()
    words = attached._session.writer.words  # type: ignore[union-attr]
    assert [words[WORD_AT[name][0]] for name in ("steps", "backwards", "batches")] == [
        10,
        10,
        9,
    ]  # the first one began it


def a_process_that_a_rank_starts_is_a_rank_if_it_trains() -> None:
    """A rank may start a process that evaluates, with its environment, or data workers that import its script."""
    assert whyidle.attach()
    for trains in (False, True):
        if pid := os.fork():
            assert os.waitpid(pid, 0)[1] == 0
            continue
        try:
            assert not whyidle.attach()
            for batch in DataLoader(torch.ones(20, 8), 2):
                assert attached._session.writer is None
                if trains:
                    torch.nn.Linear(8, 1)(batch).sum().backward()
                    break
            assert (attached._session.writer is not None) == trains
            os._exit(0)
        finally:
            os._exit(1)


def no_second_is_in_two_ledgers_of_one_process() -> None:
    """As in a notebook: attached, detached and attached again."""
    before = 0
    for _ in range(2):
        assert whyidle.attach()
        words = attached._session.writer.words  # type: ignore[union-attr]
        assert words[WORD_AT["start_ns"][0]] >= before
        steps(2)
        whyidle.detach()
        before = time.monotonic_ns()


def no_ledger_can_be_made() -> None:
    """One directory after the other, each unusable for a different reason."""
    for directory in os.environ["BAD_DIRS"].split(":"):
        os.environ["WHYIDLE_DIR"] = directory
        assert not whyidle.attach(), directory
        assert not whyidle.attach(), directory
        steps(3)
        whyidle.detach()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("kept")
