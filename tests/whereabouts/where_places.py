"""Slow and fast mounts, nodes and links for the cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from network_nodes import interface, limited, lossy, network_nodes, packet_size, small_window
from network_nodes import missing as missing_nodes
from slow_mounts import Slow, forget, throttled
from slow_mounts import missing as missing_disks
from support_bottlenecks_disks import missing as missing_fuse
from support_bottlenecks_disks import slow_disk, slow_folder
from support_sites import WHYIDLE as RUN_WHYIDLE
from support_sites import clean_env
from support_suite_of_cases import CannotRun
from where_rows import Lab, Setup

MB, MBIT = 1_000_000, 1_000_000
NOBODY = 65534
WHYIDLE = Path(__file__).resolve().parents[2]


def need(lacks: str | None) -> None:
    if lacks:
        raise CannotRun(lacks)


def fill(folder: Path, files: int, size: int, each: int = 0) -> None:
    """Files of random bytes; with ``each``, directories of so many."""
    for number in range(files):
        if each:
            (folder / f"{number:04}").mkdir()
            for small in range(each):
                (folder / f"{number:04}" / f"{small:05}").write_bytes(os.urandom(size))
        else:
            (folder / f"{number:04}").write_bytes(os.urandom(size))
    forget(folder)


def disk(name: str, bytes_per_second: int = 0, *, files: int = 0, size: int = MB) -> Setup:
    """An ext4 file system on a loop device. 0: as fast as the disk below."""

    def setup(lab: Lab) -> None:
        need(missing_disks())
        at = lab.scratch / name
        if bytes_per_second:
            lab.stack.enter_context(throttled(at, bytes_per_second, lab.group))
        else:
            lab.stack.enter_context(slow_disk(at, [], 0))
        at.chmod(0o777)
        fill(at, files, size)
        lab.places[name] = lab.arguments[name] = str(at)

    return setup


def samples(name: str, files: int, size: int = MB) -> Setup:
    """Files of torch.save in a place, each with one sample and its label."""

    def setup(lab: Lab) -> None:
        import torch

        at = Path(lab.places[name])
        for number in range(files):
            sample = torch.randint(0, 256, (size,), dtype=torch.uint8), torch.tensor(number % 10)
            torch.save(sample, at / f"{number:04}")
        forget(at)

    return setup


def folder(name: str, *, files: int = 0, size: int = MB, each: int = 0) -> Setup:
    """A directory on the disk of the machine. It is not a mount, so it is not a place that could be named."""

    def setup(lab: Lab) -> None:
        at = lab.scratch / name
        at.mkdir()
        fill(at, files, size, each)
        lab.arguments[name] = str(at)

    return setup


def fuse(
    name: str, read_ms: int = 0, open_ms: int = 0, *, cached: bool = False, files: int, size: int = MB, each: int = 0
) -> Setup:
    """A FUSE file system that waits: latency, whatever the number of readers."""

    def setup(lab: Lab) -> None:
        need(missing_fuse())
        below = lab.scratch / f"below-{name}"
        below.mkdir()
        fill(below, files, size, each)
        at = lab.scratch / name
        lab.stack.enter_context(slow_folder(below, at, read_ms=read_ms, cached=cached, open_ms=open_ms))
        lab.places[name] = lab.arguments[name] = str(at)

    return setup


def bench(name: str) -> Setup:
    """Measures a place, and keeps its rates beside the ledgers of the job."""

    def setup(lab: Lab) -> None:
        sizes = "--size=32MB --sample-size=1MB --batch-size=2 --workers=2 --checkpoint-size=16MB --repeat=2"
        at = lab.arguments[name]
        words = [*RUN_WHYIDLE, "bench", "storage", at, "--save", "--only=samples,checkpoint", *sizes.split()]
        env = clean_env(WHYIDLE_DIR=str(lab.recorded))
        subprocess.run([*Slow(Path(at), lab.group).inside, *words], env=env, check=True, capture_output=True)

    return setup


def nodes(count: int = 2, links: int = 2) -> Setup:
    def setup(lab: Lab) -> None:
        need(missing_nodes())
        lab.nodes = lab.stack.enter_context(network_nodes(count, links))
        lab.places |= {interface(link): interface(link) for link in range(links)}

    return setup


def slow_link(link: int, mbit: int) -> Setup:
    return lambda lab: lab.stack.enter_context(limited(lab.nodes, link, mbit * MBIT))


def losses(link: int, probability: float) -> Setup:
    def setup(lab: Lab) -> None:
        for node in lab.nodes:  # BBR, the default of some kernels, does not slow down for lost segments
            node.run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
        lab.stack.enter_context(lossy(lab.nodes, link, probability))

    return setup


def window(most_bytes: int) -> Setup:
    return lambda lab: small_window(lab.nodes, most_bytes)


def small_packets(link: int, mtu: int, mbit: int) -> Setup:
    """Packets of at most ``mtu`` bytes, on a link that takes as long for them as for 1500 bytes."""

    def setup(lab: Lab) -> None:
        packet_size(lab.nodes, link, mtu)
        for node in lab.nodes:
            node.run("ip", "link", "set", interface(link), "gso_max_segs", "1")
            shape = f"root stab mtu 2047 mpu 1500 tbf rate {mbit}mbit burst 64kb latency 50ms"
            node.run("tc", "qdisc", "add", "dev", interface(link), *shape.split())

    return setup


def other_user(lab: Lab) -> None:
    """The job runs as nobody. Directories that are closed for nobody, such as /root, have only Python and whyidle in
    them meanwhile, for the processes of this case."""
    lab.user = NOBODY
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, WHYIDLE)}
    closed = {next((each for each in [*path.parents][::-1] if not each.stat().st_mode & 1), None) for path in needed}
    for cover in filter(None, closed):
        below = [path for path in needed if path.is_relative_to(cover)]
        for number, path in enumerate(below):
            (lab.scratch / f"needed-{number}").mkdir()
            done("mount", "--rbind", str(path), str(lab.scratch / f"needed-{number}"))
        done("mount", "-t", "tmpfs", "-o", "mode=755", "cover", str(cover))
        for number, path in enumerate(below):
            path.mkdir(parents=True, exist_ok=True)
            done("mount", "--move", str(lab.scratch / f"needed-{number}"), str(path))


def done(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
