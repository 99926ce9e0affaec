"""The collector `fuse`: requests that wait for an answer from the daemons of FUSE file systems."""

from __future__ import annotations

from ...linux import mountinfo
from ...linux.mountinfo import Mount
from ..collector import Options
from ..files import KeptFiles, Unreadable, number, read_once
from ..metrics.fuse import WAITING
from ..reading import Absent, Reading

MOST = 64
_DENIED = (
    "the requests that FUSE file systems have not answered",
    "only the user who mounted the file system may read /sys/fs/fuse/connections/<number>/waiting",
    "run the agent as root",
)


def create(options: Options) -> FuseCollector:
    return FuseCollector(options.roots.procfs, options.roots.sysfs)


class FuseCollector:
    """Reads the FUSE connections in fusectl, if it is mounted.

    The directory of a connection is named by the device number of its file system, virtiofs included (fuse_ctl_add_conn
    in the kernel's fs/fuse/control.c). Its file is opened again for each read, because a file that was open when its
    connection ended stays empty.
    """

    def __init__(self, procfs: str, sysfs: str):
        self._procfs = procfs
        self._folder = f"{sysfs}/fs/fuse/connections"
        self._files = KeptFiles()
        self._known: tuple[tuple[str, ...], dict[str, Mount]] = ((), {})

    def collect(self, reading: Reading) -> None:
        try:
            found = self._files.names(self._folder)
        except Unreadable as error:
            if error.reason == "denied":
                reading.blind(*_DENIED)
                return
            raise Absent(self._folder) from error
        connections = tuple(name for name in found if name.isdigit())[:MOST]
        if not connections:
            raise Absent(f"FUSE file systems in {self._folder}")
        mounts = self._mounts(connections, reading)
        for name in connections:
            self._waiting(name, mounts, reading)

    def _waiting(self, name: str, mounts: dict[str, Mount], reading: Reading) -> None:
        device = _device(int(name))
        try:
            waiting = number(read_once(f"{self._folder}/{name}/waiting"))
        except Unreadable as error:
            if error.reason == "denied":
                if _DENIED not in reading.blind_spots:
                    reading.blind(*_DENIED)
            elif error.reason not in ("gone", "missing"):  # these mean that it has been unmounted
                reading.error(device, "waiting", error.reason)
            return
        mount = mounts.get(device)
        reading.add(WAITING, (device, mount.fstype, mount.point[:256]) if mount else (device, "", ""), waiting)

    def _mounts(self, connections: tuple[str, ...], reading: Reading) -> dict[str, Mount]:
        """Device number -> its mount on the node. Read again only when the connections have changed."""
        if self._known[0] != connections:
            self._known = connections, self._look(reading)
        return self._known[1]

    def _look(self, reading: Reading) -> dict[str, Mount]:
        for whose in ("1", "self"):
            try:
                found, bad = mountinfo.mounts(self._files.text(f"{self._procfs}/{whose}/mountinfo"))
            except Unreadable as error:
                if error.reason != "missing":
                    reading.error("", f"{whose}/mountinfo", error.reason)
                continue
            if bad:
                reading.error("", f"{whose}/mountinfo", "garbage")
            places: dict[str, Mount] = {}
            for mount in found.values():
                places.setdefault(mount.device, mount)
            return places
        return {}


def _device(number: int) -> str:
    """major:minor of a device number in the kernel's form, which has the minor in the lower 20 bits (MINORBITS)."""
    return f"{number >> 20}:{number & 0xFFFFF}"
