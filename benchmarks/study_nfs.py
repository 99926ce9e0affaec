"""The NFS tier of benchmarks/study.py: a server (NFS-Ganesha) on a separate node, which each rank's node mounts.

If the kernel has a client of NFS 4, it mounts. Otherwise libnfs does, behind FUSE (study_nfs.c).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fake_node.kernel import COMPILER
from support_bottlenecks_disks import missing as lacks_fuse
from support_ledgers import until
from whatif_network import SPARE, address, shaped

if TYPE_CHECKING:
    from study_tiers import Node

MBIT = 400
SOURCE = Path(__file__).with_name("study_nfs.c")
LIBRARIES = ("fuse3", "libnfs")
START_SECONDS = 20.0
_GANESHA = """
NFS_CORE_PARAM {{ Protocols = 3,4; mount_path_pseudo = true; Enable_NLM = false; Enable_RQUOTA = false;
                  Enable_UDP = false; }}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {state}; }}
EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; Protocols = 3,4; Transports = TCP; SecType = sys;
         Access_Type = RW; Squash = none; FSAL {{ Name = VFS; }} }}
"""
_OWN_RUN = 'mount -t tmpfs run /run && mkdir /run/ganesha /run/rpcbind && rpcbind -w && exec "$@"'
_OWN = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def kernel_mounts() -> bool:
    return "\tnfs4\n" in Path("/proc/filesystems").read_text()


def lacks_nfs() -> str | None:
    """What this machine lacks, or None."""
    if not shutil.which("ganesha.nfsd") or not shutil.which("rpcbind"):
        return "needs ganesha.nfsd and rpcbind (Debian: nfs-ganesha, nfs-ganesha-vfs, rpcbind)"
    if kernel_mounts():
        return None if shutil.which("mount.nfs4") else "needs mount.nfs4 (Debian: nfs-common)"
    if lacking := lacks_fuse():
        return lacking
    if not COMPILER or subprocess.run(["pkg-config", "--exists", *LIBRARIES], check=False).returncode:
        return "needs a kernel with a client of NFS 4, or libnfs-dev"
    return None


@contextlib.contextmanager
def nfs(node: Node) -> Iterator[tuple[Path, ...]]:
    *ranks, server = node.names
    with contextlib.ExitStack() as stack:
        stack.enter_context(shaped(node.names, MBIT, SPARE))
        stack.enter_context(_served(node, server))
        places = []
        for number, name in enumerate(ranks):
            at = node.memory / f"nfs-{number}"
            at.mkdir()
            stack.enter_context(_mounted(name, address(len(ranks), 1), at))
            places.append(at)
        yield tuple(places)


@contextlib.contextmanager
def _served(node: Node, name: str) -> Iterator[None]:
    state, log, config = (node.memory / f"ganesha{end}" for end in ("", ".log", ".conf"))
    state.mkdir()
    config.write_text(_GANESHA.format(path=node.files, state=state))
    words = ["ganesha.nfsd", "-F", "-f", str(config), "-L", str(log), "-p", str(state / "pid")]
    inside = ["nsenter", f"--net=/run/netns/{name}", *_OWN, "sh", "-c", _OWN_RUN, "sh"]
    with _running([*inside, *words], log.with_suffix(".out")):
        until(lambda: log.exists() and "NFS SERVER INITIALIZED" in log.read_text(), START_SECONDS)
        yield


@contextlib.contextmanager
def _mounted(name: str, server: str, at: Path) -> Iterator[None]:
    enter = ["nsenter", f"--net=/run/netns/{name}"]
    with contextlib.ExitStack() as stack:
        if kernel_mounts():
            subprocess.run([*enter, "mount", "-t", "nfs4", f"{server}:/export", str(at)], check=True)
        else:
            program = at.with_name(f"{at.name}-client")
            flags = subprocess.run(
                ["pkg-config", "--cflags", "--libs", *LIBRARIES], capture_output=True, text=True, check=True
            )
            assert COMPILER
            subprocess.run([COMPILER, "-O1", str(SOURCE), "-o", str(program), *flags.stdout.split()], check=True)
            words = [*enter, str(program), server, "/export", str(at)]
            stack.enter_context(_running(words, at.with_name(f"{at.name}.out")))
        stack.callback(subprocess.run, ["umount", "-l", str(at)], check=False, capture_output=True)
        until(lambda: os.path.ismount(at), START_SECONDS)
        yield


@contextlib.contextmanager
def _running(words: Sequence[str], said: Path) -> Iterator[None]:
    """In a separate session: Ctrl-C ends it through the lines below."""
    with (
        open(said, "wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True) as program,
    ):
        try:
            yield
        finally:
            program.kill()
