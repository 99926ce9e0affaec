"""Measures checkpoints: how long a save takes until it is on storage, and a restore until the tensors are loaded."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from . import caches
from .files import files_below, sync_directory, sync_files
from .plan import BenchError, Found, Measure, Plan, Tell

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]
_TENSORS = 16
_UNSUPPORTED = (errno.ENODEV, errno.EOPNOTSUPP)
"""Errors of file systems that cannot map files, which safetensors needs."""


class Format(NamedTuple):
    """A checkpoint format. ``save`` takes the state and an empty directory. ``load`` fills the state's tensors in
    place."""

    name: str
    save: Callable[[State, str], None]
    load: Callable[[State, str], None]
    start: Callable[[State, str], Callable[[], None]] | None = None
    """Starts a save in the background, instead of ``save``. Returns a function that waits for its end."""


def formats() -> tuple[list[Format], list[str]]:
    """Returns the formats that are installed here, and a sentence for each one that is not."""
    found, missing = [Format("torch.save", _save_torch, _load_torch)], []
    try:
        import safetensors.torch  # noqa: F401
    except ImportError:
        missing.append("safetensors is not installed here: pip install safetensors")
    else:
        found.append(Format("safetensors", _save_safetensors, _load_safetensors))
    found.append(Format("DCP", _save_dcp, _load_dcp))
    found.append(Format("DCP async", _save_dcp, _load_dcp, _start_dcp))
    return found, missing


def measure(place: str, plan: Plan, tell: Tell) -> Found:
    """Measures saves and restores in each format. Raises OSError, BenchError."""
    import torch

    elements = max(1, plan.checkpoint_bytes // 4 // _TENSORS)
    generator = torch.Generator().manual_seed(0)
    state: State = {f"layer.{at}.weight": torch.rand(elements, generator=generator) for at in range(_TENSORS)}
    room: State = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    found, missing = formats()
    _warm_up(found, place)
    measures: list[Measure | str] = [*missing]
    for at, form in enumerate(found):
        directory = os.path.join(place, str(at))
        os.mkdir(directory)
        try:
            measures += _measure(
                form, directory, plan, state, room, lambda done, at=at: tell((at + done) / len(found), "")
            )
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            measures.append(f"{form.name} does not work on this file system: {error.strerror or error}")
        shutil.rmtree(directory)
    return measures


def _measure(
    form: Format, place: str, plan: Plan, state: State, room: State, tell: Callable[[float], None]
) -> list[Measure]:
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    saves: list[float] = []
    blocked: list[float] = []
    restores: list[float] = []
    cached: list[float | None] = []
    begun = time.perf_counter()
    for turn in range(plan.repeat):
        directory = os.path.join(place, f"checkpoint-{turn}")
        os.mkdir(directory)
        before = time.perf_counter()
        if form.start is not None:
            finish = form.start(state, directory)
            blocked.append(time.perf_counter() - before)
            finish()
        else:
            form.save(state, directory)
        sync_files(files_below(directory))
        sync_directory(directory)
        saves.append(time.perf_counter() - before)
        tell((turn + 0.5) / plan.repeat)
        if form.start is None:
            cached.append(caches.drop(files_below(directory)))
            before = time.perf_counter()
            form.load(room, directory)
            restores.append(time.perf_counter() - before)
            _compare(form, state, room)
        shutil.rmtree(directory)
        tell((turn + 1) / plan.repeat)
        if plan.seconds and time.perf_counter() - begun > plan.seconds:
            break
    turns = len(saves)
    whole = Measure(f"{form.name}: save and fsync", size * turns, 0, "", sum(saves), saves)
    if form.start is not None:
        return [Measure(f"{form.name}: save blocks", 0, 0, "", sum(blocked), blocked, direct=False), whole]
    worst = None if None in cached else max((share for share in cached if share is not None), default=None)
    return [whole, Measure(f"{form.name}: restore", size * turns, 0, "", sum(restores), restores, worst)]


def _warm_up(found: list[Format], place: str) -> None:
    """Saves and restores a tiny state in each format, so that imports of the first call do not count as storage
    time."""
    import torch

    for form in found:
        with suppress(OSError), TemporaryDirectory(dir=place) as directory:
            form.save({"weight": torch.zeros(1)}, directory)
            form.load({"weight": torch.empty(1)}, directory)
            if form.start is not None:
                form.start({"weight": torch.zeros(1)}, directory)()


def _compare(form: Format, state: State, room: State) -> None:
    import torch

    for name, tensor in state.items():
        if not torch.equal(tensor, room[name]):
            raise BenchError(f"{form.name} restored values that differ from the saved ones")
        room[name].zero_()


def _save_torch(state: State, directory: str) -> None:
    import torch

    torch.save(state, os.path.join(directory, "checkpoint.pt"))


def _load_torch(room: State, directory: str) -> None:
    import torch

    _fill(room, torch.load(os.path.join(directory, "checkpoint.pt"), weights_only=True))


def _save_safetensors(state: State, directory: str) -> None:
    from safetensors.torch import save_file

    save_file(state, os.path.join(directory, "checkpoint.safetensors"))


def _load_safetensors(room: State, directory: str) -> None:
    from safetensors.torch import load_file

    _fill(room, load_file(os.path.join(directory, "checkpoint.safetensors")))


def _fill(room: State, loaded: State) -> None:
    """Copies the loaded tensors, as load_state_dict does. This also reads tensors that were only mapped so far."""
    for name, tensor in room.items():
        tensor.copy_(loaded[name])


def _save_dcp(state: State, directory: str) -> None:
    from torch.distributed import checkpoint

    checkpoint.save(state, checkpoint_id=directory)


def _load_dcp(room: State, directory: str) -> None:
    from torch.distributed import checkpoint

    checkpoint.load(room, checkpoint_id=directory)


def _start_dcp(state: State, directory: str) -> Callable[[], None]:
    from torch.distributed import checkpoint

    saving: Any = checkpoint.async_save(state, checkpoint_id=directory)
    future = getattr(saving, "upload_completion", saving)  # the result depends on the version and on the stager
    return lambda: future.result()
