"""``torch.sim``: the functions of a device's module that torch, FSDP, device meshes and users call, as in
``torch.cuda``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

_C: Any = sys.modules["_simdevice"]
_initialized = True
_loaded_by = os.getpid()


def _index(device: Any = None) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _C.current_device() if index is None else index


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    # Streams are threads, which a forked child does not have.
    return os.getpid() != _loaded_by


def device_count() -> int:
    return _C.DEVICES


def current_device() -> int:
    return _C.current_device()


def set_device(device: Any) -> None:
    _C.set_device(_index(device))


def get_device_name(device: Any = None) -> str:
    return f"simulated device {_index(device)}"


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """With the UUID in ``SIMDEVICE_UUID``, so that an agent can find it among the GPUs of a node."""
    return SimpleNamespace(name=get_device_name(device), uuid=os.environ.get("SIMDEVICE_UUID", ""))


def synchronize(device: Any = None) -> None:
    _C.synchronize(_index(device))


def is_current_stream_capturing() -> bool:
    return _C.capturing()


@contextmanager
def device(where: Any) -> Iterator[None]:
    before = _C.current_device()
    _C.set_device(_index(where))
    try:
        yield
    finally:
        _C.set_device(before)


# A function and not a class: elapsed_time() rejects subclasses of torch.Event.


def Event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
    return torch.Event("sim", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class Stream(torch.Stream):
    """A Python class, like torch.cuda.Stream."""

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        return super().__new__(cls, device=f"sim:{_index(device)}", priority=priority)


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Any = None) -> torch.Stream:
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_device_type())


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def _device_type() -> int:
    return torch.accelerator.current_stream(0).device_type


# -- random numbers


def manual_seed(seed: int) -> None:
    _C.default_generator(_C.current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(_C.DEVICES):
        _C.default_generator(index).manual_seed(seed)


def seed() -> None:
    _C.default_generator(_C.current_device()).seed()


def initial_seed() -> int:
    return _C.default_generator(_C.current_device()).initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    return _C.default_generator(_index(device)).get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    _C.default_generator(_index(device)).set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(_C.DEVICES)]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        set_rng_state(state, index)


# -- memory


def empty_cache() -> None:
    pass


def memory_allocated(device: Any = None) -> int:
    return _C.allocated(_index(device))


def memory_reserved(device: Any = None) -> int:
    return _C.allocated(_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]
