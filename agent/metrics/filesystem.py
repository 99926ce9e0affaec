"""The metrics of the collector `filesystem`."""

from __future__ import annotations

from .metric import Metric
from .ranks import RANK

_MOUNT = ("mount", "fstype", "source", "device")
_STATVFS = "statvfs(<pid>/root/<mount>)"

INFO = Metric(
    "whyidle_filesystem_rank_info",
    "gauge",
    "info",
    (*RANK, *_MOUNT, "use"),
    "A file system on which a rank or its workers recently had files open or mapped, for reading or for writing (use). "
    "The label mount is its path for the rank. The label device is its disk, named as in the metrics of disks, "
    "otherwise the number of the file system. From samples: a file that is open only for a moment can be missed. "
    "Always 1.",
    "<pid>/{fd,fdinfo,maps,mountinfo}",
)
OPEN_FILES = Metric(
    "whyidle_filesystem_open_files",
    "gauge",
    "files",
    (*RANK, *_MOUNT),
    "Files that a rank and its workers have open on a file system of the network: the sum over its processes, each "
    "counted at its latest sample. Processes are sampled in turn, with at most 64 files of each. Absent for "
    "a rank that uses no such file system.",
    "<pid>/{fd,fdinfo,mountinfo}",
)
SIZE = Metric(
    "whyidle_filesystem_size_bytes",
    "gauge",
    "bytes",
    _MOUNT,
    "Size of a file system that ranks use.",
    f"{_STATVFS}, f_blocks",
)
AVAILABLE = Metric(
    "whyidle_filesystem_available_bytes",
    "gauge",
    "bytes",
    _MOUNT,
    "Space that users other than root can still fill. When it runs out, checkpoints fail.",
    f"{_STATVFS}, f_bavail",
)
INODES_FREE = Metric(
    "whyidle_filesystem_free_inodes",
    "gauge",
    "inodes",
    _MOUNT,
    "How many more files the file system can hold. Absent if it does not limit the number of files.",
    f"{_STATVFS}, f_ffree",
)
READONLY = Metric(
    "whyidle_filesystem_readonly",
    "gauge",
    "bool",
    _MOUNT,
    "1 if the file system is mounted read-only, otherwise 0. It often becomes read-only when a disk fails.",
    f"{_STATVFS}, f_flag",
)

METRICS: tuple[Metric, ...] = (INFO, OPEN_FILES, SIZE, AVAILABLE, INODES_FREE, READONLY)
