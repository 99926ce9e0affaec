"""Loops that save, each in its own way. Prints for each, as JSON: how many checkpoints it has saved, their bytes and
the ns that they took by the loop's own clock, and how much each word of the ledger has grown."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import whyidle
from whyidle.ledger.causes import CAUSE
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach

FOLDER = Path(sys.argv[1])
SAVES, SECONDS = 5, 0.03
net = nn.Linear(256, 256)
spent = {"saves": 0, "ns": 0, "bytes": 0}


@contextmanager
def a_checkpoint() -> Iterator[None]:
    begun = time.monotonic_ns()
    yield
    spent["ns"] += time.monotonic_ns() - begun
    spent["saves"] += 1


def size(*paths: Path) -> None:
    spent["bytes"] += sum(path.stat().st_size for path in paths)


def save_all(folder: Path) -> None:
    """Several files, metadata, and the removal of an old one."""
    folder.mkdir(exist_ok=True)
    time.sleep(SECONDS)
    torch.save(net.state_dict(), folder / "model.pt")
    time.sleep(SECONDS)
    torch.save({"step": 1}, folder / "step.pt")
    (folder / "meta.json").write_text(json.dumps(list(range(5000))))
    time.sleep(SECONDS)
    size(*folder.iterdir())


def recoverables() -> None:
    with a_checkpoint():
        save_all(FOLDER / f"all-{spent['saves']}")


def inline() -> None:
    one, other = FOLDER / "one.pt", FOLDER / "other.pt"
    with a_checkpoint():
        torch.save(net.state_dict(), one)
        time.sleep(SECONDS)
        torch.save({"step": 1}, other)
    size(one, other)


def save_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        for name in ("policy", "optimizer", "variables"):
            with archive.open(f"{name}.pth", "w", force_zip64=True) as member:
                torch.save(net.state_dict(), member)
    time.sleep(SECONDS)


def archive() -> None:
    path = FOLDER / "archive.zip"
    with a_checkpoint():
        save_archive(path)
    size(path)


def save_atomically(path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    path.write_bytes(buffer.getvalue())
    time.sleep(SECONDS)


def in_a_rollout() -> None:
    """As a callback does that is called while an environment runs."""
    with whyidle.phase("rollout"):
        archive()


def through_memory() -> None:
    path = FOLDER / "atomic.pt"
    with a_checkpoint():
        save_atomically(path)
    size(path)


def through_pickle() -> None:
    """Each tensor is saved into memory by itself."""
    path = FOLDER / "through.pkl"
    with a_checkpoint(), path.open("wb") as file:
        pickle.dump(net.state_dict(), file)
    size(path)


def copies() -> None:
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    torch.load(buffer)
    pickle.dumps({"lr": 0.1})


def marked() -> None:
    path = FOLDER / "marked.pt"
    with a_checkpoint(), whyidle.phase("checkpoint"):
        torch.save(net.state_dict(), path)
        time.sleep(SECONDS)
    size(path)


def by_hand() -> None:
    path = FOLDER / "by_hand.bin"
    with a_checkpoint(), whyidle.phase("checkpoint"):
        path.write_bytes(os.urandom(1 << 20))
        time.sleep(SECONDS)
    size(path)


def rank_that_waits() -> None:
    with whyidle.phase("checkpoint"):
        time.sleep(0.001)


def save_and_go_on() -> None:
    """Not a checkpoint as a whole, although it is called so: the training goes on in it."""
    path = FOLDER / "goes_on.pt"
    with a_checkpoint():
        torch.save(net.state_dict(), path)
    size(path)
    steps(2)


def goes_on() -> None:
    save_and_go_on()


LOOPS: tuple[Callable[[], None], ...] = (
    recoverables,
    inline,
    archive,
    in_a_rollout,
    through_memory,
    through_pickle,
    copies,
    marked,
    by_hand,
    rank_that_waits,
    goes_on,
)


def steps(count: int) -> None:
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * count, 256)), 4):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def known() -> dict[str, int]:
    writer = attach._session.writer
    assert writer is not None
    words, at = writer.words, WORD_AT["cause_ns"][0]
    ns = sum(words[at + CAUSE[cause]] for cause in ("checkpoint_write", "checkpoint_cpu"))
    saves, loads = (words[WORD_AT["checkpoints"][0] + kind] for kind in (0, 1))
    faults = words[WORD_AT["faults"][0]]
    return {"saves": saves, "loads": loads, "ns": ns, "bytes": words[WORD_AT["checkpoint_bytes"][0]], "faults": faults}


assert whyidle.attach()
torch.set_num_threads(1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
originals = [id(one) for one in (save_all, save_archive, save_atomically)]  # one that is held is not replaced
for loop in LOOPS:
    steps(2)
    before = known()
    spent.update(dict.fromkeys(spent, 0))
    for _ in range(SAVES):
        loop()
        steps(2)
    grown = {word: value - before[word] for word, value in known().items()}
    print(json.dumps({"loop": loop.__name__, "told": spent, "found": grown}), flush=True)
assert id(save_all) != originals[0]
whyidle.detach()
assert [id(one) for one in (save_all, save_archive, save_atomically)] == originals
shutil.rmtree(FOLDER)
