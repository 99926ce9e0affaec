"""The cases: a verdict has to name the mount or the link that is slow, and nothing else."""

from __future__ import annotations

from where_places import MB, disk, folder, fuse, losses, nodes, other_user, slow_link, small_packets, window
from where_rows import Case, Change
from where_stores import mounted_store, nfs, store

SLOW = 8 * MB
_READS, _SAVES, _EXCHANGES = "reads.py", "saves.py", "exchanges.py"
_HALVES = (disk("slow", SLOW, files=60), disk("fast", files=60))
_LATE = fuse("slow", 60, files=40)
MBIT = 1_000_000 / 8
"""Bytes a second."""

CASES: tuple[Case, ...] = (
    # The three of the issue, and the same mount with latency.
    Case(
        "slow_interface",
        "two ranks on eth0, which tbf limits to 200 Mbit/s; eth1 is idle",
        (_EXCHANGES,),
        (nodes(), slow_link(0, 200)),
        ranks=2,
        family=("network",),
        lost="exchange",
        named={"eth0": 200 * MBIT},
        may=("eth1",),
        says=("tbf",),
        change=Change("network.link", env={"GLOO_SOCKET_IFNAME": "eth1"}),
    ),
    Case(
        "half_on_slow_mount",
        "half of the files on a disk of 8 MB/s, two workers",
        (_READS, "{slow}", "{fast}"),
        _HALVES,
        named={"slow": SLOW},
        says=("bandwidth",),
        change=Change("data.workers", ("--workers", "{num_workers}"), settings={"num_workers": 14}, advised=False),
    ),
    Case(
        "half_on_slow_mount_14",
        "the same with 14 workers",
        (_READS, "{slow}", "{fast}", "--workers", "14"),
        _HALVES,
        named={"slow": SLOW},
        change=Change("data.workers", ("--workers", "{num_workers}"), settings={"num_workers": 28}, advised=False),
    ),
    Case(
        "saves",
        "four saves of 16 MB with fsync to a disk of 8 MB/s",
        (_SAVES, "{slow}"),
        (disk("slow", SLOW),),
        lost="save",
        named={"slow": SLOW},
        says=("16(\\.\\d)? M",),
        usual=True,
    ),
    Case(
        "late_mount",
        "each read of 1 MB on a FUSE mount takes 60 ms longer, two workers",
        (_READS, "{slow}", "--batch", "1", "--steps", "120"),
        (_LATE,),
        named={"slow": 0},
        never=("bandwidth",),
        change=Change("data.workers", ("--workers", "{num_workers}")),
    ),
    # Other storage.
    Case(
        "object_store",
        "GETs of 1 MB from an object store behind 60 Mbit/s",
        (_READS, "{store}", "--how", "get", "--batch", "1"),
        (nodes(2, 1), store("store", 60, files=60)),
        named={"store": 60 * MBIT},
    ),
    Case(
        "mounted_store",
        "the same, mounted with rclone",
        (_READS, "{bucket}", "--batch", "1"),
        (nodes(2, 1), store("store", 60, files=60), mounted_store("bucket", "store")),
        named={"bucket": 60 * MBIT},
        may=("store",),
    ),
    Case(
        "nfs_mount",
        "files of 1 MB from an NFS server (ganesha) behind 60 Mbit/s",
        (_READS, "{nfs}", "--batch", "1"),
        (nodes(2, 1), nfs("nfs", 60, files=60, mounted=True)),
        named={"nfs": 60 * MBIT},
    ),
    Case(
        "nfs_in_user_space",
        "the same, read with libnfs",
        (_READS, "{nfs}", "--how", "nfs", "--batch", "1"),
        (nodes(2, 1), nfs("nfs", 60, files=60, mounted=False)),
        named={"nfs": 60 * MBIT},
    ),
    Case(
        "small_files",
        "4,000 files of 2 kB on a FUSE mount where each open and stat takes 3 ms",
        (_READS, "{slow}", "--how", "small", "--batch", "1"),
        (fuse("slow", 0, 3, files=80, size=2000, each=50),),
        named={"slow": 0},
        says=("(?i)open|metadata",),
        change=Change("data.workers", ("--workers", "{num_workers}")),
    ),
    Case(
        "mapped_file",
        "files of a disk of 8 MB/s are memory-mapped",
        (_READS, "{slow}", "--how", "mmap", "--batch", "1"),
        (disk("slow", SLOW, files=60),),
        named={"slow": SLOW},
        says=("mapped",),
    ),
    Case(
        "two_slow_mounts",
        "a disk of 8 MB/s, and one of 5 MB/s, in turns",
        (_READS, "{slow}", "{slower}", "--workers", "1"),
        (disk("slow", SLOW, files=45), disk("slower", 5 * MB, files=45)),
        within=0.3,  # by 13 looks at one of them
        named={"slow": None, "slower": None},  # while one is read, the limit of the other saves up
    ),
    Case(
        "one_rank_elsewhere",
        "one of two ranks reads from a disk of 8 MB/s, the other one from a fast one",
        (_READS, "{fast}", "--batch", "1", "--steps", "60"),
        (disk("slow", SLOW, files=80), disk("fast", files=80)),
        ranks=2,
        rank_job={1: (_READS, "{slow}", "--batch", "1", "--steps", "60")},
        family=("storage", "straggler"),
        lost="",
        named={"slow": SLOW},
        late=1,
    ),
    Case(
        "own_reads",
        "the loop itself reads from a disk of 8 MB/s, without workers",
        (_READS, "{slow}", "--workers", "0"),
        (disk("slow", SLOW, files=60),),
        named={"slow": None},  # between reads, the limit saves up a part of a second
    ),
    # Other networks.
    Case(
        "packet_loss",
        "one packet in 50 is lost on eth0",
        (_EXCHANGES, "--steps", "40"),
        (nodes(), losses(0, 0.02)),
        ranks=2,
        family=("network",),
        lost="exchange",
        named={"eth0": 0},
        may=("eth1",),
        says=("(?i)sent again|lost|retransmi",),
    ),
    Case(
        "small_window",
        "receive windows of 8 kB",
        (_EXCHANGES, "--steps", "60"),
        (nodes(), window(8 << 10)),
        ranks=2,
        family=("network",),
        lost="exchange",
        named={"eth0": 0},
        may=("eth1",),
        says=("(?i)window",),
    ),
    Case(
        "small_packets",
        "an MTU of 500 on eth0, whose packets take as long as those of 1500 bytes",
        (_EXCHANGES, "--steps", "20", "--million", "0.25"),
        (nodes(), small_packets(0, 500, 60)),
        ranks=2,
        family=("network",),
        lost="exchange",
        named={"eth0": 0},
        may=("eth1",),
        says=("(?i)mtu\\D{0,10}500",),
    ),
    Case(
        "one_node_on_slow_interface",
        "four nodes on eth1, but one uses eth0, which tbf limits to 100 Mbit/s",
        # gloo connects the rank with the larger address to the other one, from the interface that the route has.
        (_EXCHANGES, "--steps", "15"),
        (nodes(4), slow_link(0, 100)),
        ranks=4,
        env={"GLOO_SOCKET_IFNAME": "eth1"},
        rank_env={2: {"GLOO_SOCKET_IFNAME": "eth0"}},
        family=("network",),
        lost="exchange",
        named={"eth0": 100 * MBIT},
        may=("eth1",),
        late=2,
        change=Change("network.link", env={"GLOO_SOCKET_IFNAME": "eth1"}),
    ),
    Case(
        "two_groups",
        "a group on eth0, which tbf limits to 100 Mbit/s, and one on eth1, which nothing limits",
        (_EXCHANGES, "--groups", "eth0:2", "eth1:2"),
        (nodes(), slow_link(0, 100)),
        ranks=2,
        family=("network",),
        lost="exchange",
        named={"eth0": 100 * MBIT},
        may=("eth1",),
        never=("other rank",),
        usual=True,
    ),
    # Nothing is wrong.
    Case(
        "healthy_files",
        "files on a fast disk",
        (_READS, "{fast}", "--work", "0.08", "--batch", "1"),
        (disk("fast", files=80),),
        family=(),
    ),
    Case(
        "healthy_link",
        "small gradients on a link that nothing limits",
        (_EXCHANGES, "--steps", "80", "--million", "0.05", "--work", "0.05"),
        (nodes(),),
        ranks=2,
        family=(),
        lost="exchange",
    ),
    Case(
        "healthy_saves",
        "saves to a fast disk",
        (_SAVES, "{fast}", "--work", "0.04", "--megabytes", "4"),
        (disk("fast"),),
        family=(),
        lost="save",
    ),
    Case(
        "slow_but_enough",
        "a disk of 8 MB/s that gives what the loop needs",
        (_READS, "{slow}", "--work", "0.25", "--batch", "1", "--steps", "30"),
        (disk("slow", SLOW, files=40),),
        family=(),
    ),
    # Less may be looked at.
    Case(
        "other_user",
        "half_on_slow_mount, as another user without privileges",
        (_READS, "{slow}", "{fast}"),
        (*_HALVES, other_user),
        named={"slow": SLOW},
        usual=True,
    ),
    Case(
        "hidden_workers",
        "the same, and nobody may look at the workers",
        (_READS, "{slow}", "{fast}", "--hidden"),
        (*_HALVES, other_user),
        may=("slow",),
    ),
    Case(
        "folder_on_the_root",
        "files of a directory of the machine's own disk are read fast",
        (_READS, "{plain}", "--work", "0.08", "--batch", "1"),
        (folder("plain", files=60),),
        family=(),
    ),
)
