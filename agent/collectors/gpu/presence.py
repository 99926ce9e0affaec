"""Whether this node has NVIDIA GPUs, as the kernel tells: to tell a node without from one whose driver died."""

from __future__ import annotations

import os

from ...files import Roots, Unreadable, names, read, word

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: display and 3D controllers
_DRIVERS = ("nvidia", "")
"""Of a GPU that is lent to a virtual machine, another driver has hold."""


def pci_gpus(roots: Roots) -> list[str]:
    """PCI addresses of the GPUs that the NVIDIA driver has hold of, or that none has."""
    folder = f"{roots.sysfs}/bus/pci/devices"
    try:
        return [address for address in names(folder) if _is_gpu(f"{folder}/{address}")]
    except Unreadable:
        return []


def _is_gpu(path: str) -> bool:
    try:
        if word(read(f"{path}/vendor")) != _NVIDIA or not word(read(f"{path}/class")).startswith(_DISPLAY):
            return False
    except Unreadable:
        return False
    try:
        driver = os.path.basename(os.readlink(f"{path}/driver"))
    except OSError:
        driver = ""
    return driver in _DRIVERS


def driver_loaded(roots: Roots) -> bool:
    return os.path.exists(f"{roots.procfs}/driver/nvidia/version")


def driver_gpus(roots: Roots) -> tuple[str, ...]:
    """The GPUs that the driver lists; empty if it does not. Changes when one comes or goes."""
    try:
        return tuple(names(f"{roots.procfs}/driver/nvidia/gpus"))
    except Unreadable:
        return ()
