"""Where processes and devices are: NUMA nodes, the CPUs that a process may use, its memory policy, CPU frequencies.

Formats: Documentation/admin-guide/mm/numaperf.rst and pm/cpufreq.rst of the kernel, proc_pid_status(5),
proc_pid_stat(5), numa(7), `cpumask_print_to_pagebuf` in lib/cpumask.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..files import Unreadable

_RANGE = re.compile(rb"(\d{1,6})(?:-(\d{1,6}))?")
_MOST = 1 << 16
_ALLOWED = {
    name: re.compile(rb"^" + name.encode() + rb"_allowed_list:\s*(\S*)\s*$", re.MULTILINE) for name in ("Cpus", "Mems")
}
_PROCESSOR = 36
"""Field 39 of proc_pid_stat(5), counted from the state, which is field 3."""
_POLICY = re.compile(
    rb"[0-9a-f]{6,16} ((?:weighted )?[a-z]+(?: \(many\))?(?:=[a-z|]+)?(?::[0-9,-]+)?)\s"  # mpol_to_str, mm/mempolicy.c
)
HARDWARE_GOVERNS = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose governor `powersave` lets the processor choose any frequency."""


class Node(NamedTuple):
    """One NUMA node."""

    cpus: frozenset[int]
    """Empty for a node that is only memory, such as that of a GPU."""
    socket: int
    """-1 if it is not known."""


def numbers(data: bytes) -> frozenset[int]:
    """The numbers of a list such as `0-3,8`, which may be empty. Raises Unreadable."""
    found: set[int] = set()
    for part in filter(None, data.strip().split(b",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise Unreadable("garbage")
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < _MOST:
            raise Unreadable("garbage")
        found.update(range(first, last + 1))
    return frozenset(found)


def node_of_device(data: bytes) -> int | None:
    """The value of a device's `numa_node`. None for -1: the firmware does not tell. Raises Unreadable."""
    text = data.strip()
    if text == b"-1":
        return None
    if not text.isdigit() or len(text) > 5:
        raise Unreadable("garbage" if text else "empty")
    return int(text)


def allowed(status: bytes, what: str) -> frozenset[int]:
    """The CPUs (``Cpus``) or memory nodes (``Mems``) that a process may use. Raises Unreadable."""
    match = _ALLOWED[what].search(status)
    if match is None:
        raise Unreadable("garbage" if status.strip() else "empty")
    return numbers(match[1])


def processor(stat: bytes) -> int:
    """The CPU on which a thread ran last. Raises Unreadable."""
    fields = stat[stat.rfind(b")") + 2 :].split(None, _PROCESSOR + 1)
    if len(fields) <= _PROCESSOR or not fields[_PROCESSOR].isdigit():
        raise Unreadable("garbage" if stat.strip() else "empty")
    return int(fields[_PROCESSOR])


def policy(numa_maps: bytes) -> str:
    """The memory policy of a process, from the begin of `numa_maps`: `default`, `bind:0`, … Empty: not known.

    The first mapping is the program's file, which has the policy of the process.
    """
    match = _POLICY.match(numa_maps)
    return match[1].decode() if match else ""


def nodes_of(cpus: Iterable[int], nodes: Mapping[int, Node]) -> tuple[int, ...]:
    """The nodes that have these CPUs."""
    wanted = frozenset(cpus)
    return tuple(sorted(number for number, node in nodes.items() if node.cpus & wanted))


def is_far(ran_on: int, device_on: int, nodes: Mapping[int, Node]) -> bool | None:
    """Whether a device is at another socket than a CPU. None if that is not known.

    The nodes of one socket (sub-NUMA clusters, NPS) do not count as far.
    """
    one, other = nodes.get(ran_on), nodes.get(device_on)
    if one is None or other is None or not other.cpus:
        return None  # a node without CPUs is at no socket that is known
    if one.socket >= 0 and other.socket >= 0:
        return one.socket != other.socket
    return ran_on != device_on


def frequency_limit(governor: str, driver: str, least: int, most: int, hardware: int) -> float | None:
    """The highest frequency that the governor chooses, as a share of what the hardware can. None: not known."""
    if not 0 < most <= 10 * hardware or least > most:
        return None
    still = governor == "powersave" and driver not in HARDWARE_GOVERNS
    return min(1.0, (least if still else most) / hardware)
