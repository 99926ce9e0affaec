"""Finds NVIDIA GPUs through the kernel, to distinguish a node without GPUs from a node with a broken driver."""

from __future__ import annotations

import os

from ...files import Roots, Unreadable, names, read, word

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: display and 3D controllers
_DRIVERS = ("nvidia", "")
"""The drivers of GPUs of this node; "" if no driver is bound. GPUs passed to a virtual machine have another driver."""


def pci_gpus(roots: Roots) -> list[str]:
    """PCI addresses of the GPUs that are bound to the NVIDIA driver or to no driver."""
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
    """The GPUs that the driver lists in /proc, or (). The result changes when a GPU is added or removed."""
    try:
        return tuple(names(f"{roots.procfs}/driver/nvidia/gpus"))
    except Unreadable:
        return ()
