"""Disks, NFS and Lustre of the simulated node: /proc/diskstats, /sys/block, mountstats, llite and its connections."""

from __future__ import annotations

from pathlib import Path

from whyidle.agent.files import Roots

DISKSTATS = """\
   7       0 loop0 53 0 2118 14 0 0 0 0 0 36 14 0 0 0 0 0 0
   7       1 loop1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   1       0 ram0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   8       0 sda 184523 20571 9876543 4294960000 90341 60177 8765432 98765 3 123456 4294960001 0 0 0 0 4321 8642
   8       1 sda1 184001 20500 9870000 200000 90000 60000 8760000 98000 0 123000 298000 0 0 0 0 0 0
   8       2 sda2 522 71 6543 123 341 177 5432 765 0 456 888 0 0 0 0 0 0
   8      16 sdb 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 3001001 11 768256256 5005005 2002002 22 512512512 4004004 17 6006006 9009009 707 0 808 90 1010 111
 259       1 nvme0n1p1 3001000 11 768256000 5005000 2002000 22 512512000 4004000 0 6006000 9009000 707 0 808808 909 0 0
 259       2 nvme0c0n1 3001 0 76825 505 2002 0 51251 404 0 606 909 0 0 0 0 0 0
 253       0 dm-0 185000 0 9870001 200100 150001 0 8760001 98100 0 123100 298200 0 0 0 0 0 0
   9       0 md0 77077 0 6606606 0 88088 0 7707707 0 0 0 0 0 0 0 0 0 0
 179       0 mmcblk0 1501 0 120120 909 150 0 12012 90 0 1010 999
 179       1 mmcblk0p1 1500 0 120000 900 150 0 12000 90 0 1000 990
 202       1 xvda1 4242 0 424242 420 0 0 0 0 0 42 420 0 0 0 0
  11       0 sr0 9 0 4 2 0 0 0 0 0 2 2 0 0 0 0 0 0
"""
"""Disks with all 17 fields, with the 15 of Linux 4.18 (xvda1) and the 11 of older ones (mmcblk0)."""

BLOCK: dict[str, dict[str, str]] = {
    "sda": {"device/model": "PERC H755 Front \n", "queue/rotational": "1\n"},
    "sdb": {"device/model": "PERC H755 Front \n", "queue/rotational": "1\n"},
    "nvme0n1": {"device/model": "Micron_9300_MTFDHAL7T6TDP               \n", "queue/rotational": "0\n"},
    "nvme0c0n1": {"queue/rotational": "0\n"},
    "dm-0": {"dm/name": "vg0-scratch\n", "queue/rotational": "1\n"},
    "md0": {"md/level": "raid0\n", "queue/rotational": "0\n"},
    "mmcblk0": {"queue/rotational": "0\n"},
}

_OPERATIONS_3 = (
    *("NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "WRITE", "CREATE", "MKDIR", "SYMLINK"),
    *("MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF", "COMMIT"),
)
_OPERATIONS_4 = (
    *("NULL", "READ", "WRITE", "COMMIT", "OPEN", "OPEN_CONFIRM", "OPEN_NOATTR", "OPEN_DOWNGRADE", "CLOSE", "SETATTR"),
    *("FSINFO", "RENEW", "SETCLIENTID", "SETCLIENTID_CONFIRM", "LOCK", "LOCKT", "LOCKU", "ACCESS", "GETATTR", "LOOKUP"),
    *("LOOKUP_ROOT", "REMOVE", "RENAME", "LINK", "SYMLINK", "CREATE", "PATHCONF", "STATFS", "READLINK", "READDIR"),
    *("SERVER_CAPS", "DELEGRETURN", "GETACL", "SETACL", "FS_LOCATIONS", "RELEASE_LOCKOWNER", "SECINFO"),
    *("FSID_PRESENT", "EXCHANGE_ID", "CREATE_SESSION", "DESTROY_SESSION", "SEQUENCE", "GET_LEASE_TIME"),
    *("RECLAIM_COMPLETE", "LAYOUTGET", "GETDEVICEINFO", "LAYOUTCOMMIT", "LAYOUTRETURN", "SECINFO_NO_NAME"),
    *("TEST_STATEID", "FREE_STATEID", "GETDEVICELIST", "BIND_CONN_TO_SESSION", "DESTROY_CLIENTID", "SEEK"),
    *("ALLOCATE", "DEALLOCATE", "LAYOUTSTATS", "CLONE", "COPY", "OFFLOAD_CANCEL", "LOOKUPP", "LAYOUTERROR"),
    *("COPY_NOTIFY", "GETXATTR", "SETXATTR", "LISTXATTRS", "REMOVEXATTR", "READ_PLUS"),
)

_USED_3 = {
    "GETATTR": "401 402 0 48120 44912 21 306 351",
    "LOOKUP": "77 77 0 9240 8624 7 177 190",
    "ACCESS": "33 33 0 3960 3960 3 66 72",
    "READ": "5000 5012 2 640000 5242880000 15000 95000 111000",
    "WRITE": "300 300 0 314572800 48000 900 2700 3700",
    "COMMIT": "8 8 0 1024 1024 0 888 889",
    "FSINFO": "2 2 0 240 160 0 4 4",
}
_USED_4 = {
    "NULL": "4 4 0 176 96 1 5 6 0",
    "READ": "70000 70000 0 14000000 73400320000 31000 420000 455000 7",
    "WRITE": "6000 6001 1 6291456000 1056000 61000 72000 134000 0",
    "COMMIT": "60 60 0 10800 6240 0 6600 6606 0",
    "OPEN": "1200 1200 0 384000 480000 120 3600 3733 12",
    "OPEN_NOATTR": "34 34 0 10880 13600 3 102 105 0",
    "CLOSE": "1234 1234 0 276416 217184 12 1357 1370 0",
    "ACCESS": "55 55 0 9900 9240 5 110 116 0",
    "GETATTR": "8080 8080 0 1470560 2020000 80 9009 9100 0",
    "LOOKUP": "910 910 0 185640 225680 9 1820 1830 101",
    "SEQUENCE": "999 999 0 127872 79920 0 1998 2000 0",
}


def _per_operation(names: tuple[str, ...], used: dict[str, str], unused: str) -> str:
    return "\tper-op statistics\n" + "".join(f"\t{name:>12}: {used.get(name, unused)}\n" for name in names) + "\n"


NFS_3 = (
    "device nfs1.cluster:/export/data\\040sets mounted on /mnt/data\\040sets with fstype nfs statvers=1.0\n"
    "\topts:\trw,vers=3,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,"
    "proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.20.0.5,mountvers=3,mountport=635,mountproto=udp,local_lock=none\n"
    "\tage:\t86400\n"
    "\tcaps:\tcaps=0x3fef,wtmult=4096,dtsize=1048576,bsize=0,namlen=255\n"
    "\tsec:\tflavor=1,pseudoflavor=1\n"
    "\tevents:\t900 10 20 30 40 50 60 70 80 90 100 110 120 130 140 150 160 170 180 190 200 210 220 230 240 250 260 \n"
    "\tbytes:\t5300000000 314000000 0 0 5242880000 314572800 1280000 76800 \n"
    "\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)\n"
    "\txprt:\ttcp 875 1 2 0 13 5821 5820 1 123456 654 64 2222 33333\n"
    + _per_operation(_OPERATIONS_3, _USED_3, "0 0 0 0 0 0 0 0")
)


def _nfs_4(device: str, mount: str) -> str:
    return (
        f"device {device} mounted on {mount} with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,"
        "proto=tcp,nconnect=4,timeo=600,retrans=2,sec=sys,clientaddr=10.20.0.77,local_lock=none\n"
        "\tage:\t7200\n"
        "\timpl_id:\tname='',domain='',date='0,0'\n"
        "\tcaps:\tcaps=0xfffbc0bf,wtmult=512,dtsize=1048576,bsize=0,namlen=255\n"
        "\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x803,acl=0x3,sessions,pnfs=not configured,lease_time=90,"
        "lease_expired=0\n"
        "\tsec:\tflavor=1,pseudoflavor=1\n"
        "\tevents:\t1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 \n"
        "\tbytes:\t80000000000 6300000000 4096 8192 73400320000 6291456000 17920000 1536000 \n"
        "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
        "\txprt:\ttcp 0 0 1 0 4 20001 20000 0 50001 101 31 1001 10001\n"
        "\txprt:\ttcp 0 0 1 0 3 20002 20001 0 50002 102 32 1002 10002\n"
        "\txprt:\ttcp 0 0 1 0 9 20003 20002 1 50003 103 33 1003 10003\n"
        "\txprt:\ttcp 0 0 3 0 -1 20004 20003 1 50004 104 34 1004 10004\n"
        + _per_operation(_OPERATIONS_4, _USED_4, "0 0 0 0 0 0 0 0 0")
    )


MOUNTSTATS = (
    "device rootfs mounted on / with fstype rootfs\n"
    "device /dev/mapper/vg0-root mounted on / with fstype ext4\n"
    "device proc mounted on /proc with fstype proc\n"
    "no device mounted on /run/lock with fstype tmpfs \n"
    "device auto.home mounted on /home with fstype autofs\n"
    + NFS_3
    + "device overlay mounted on /var/lib/docker/overlay2/abc/merged with fstype overlay\n"
    + _nfs_4("[fd00::5]:/scratch", "/mnt/scratch")
    + "device 10.0.0.1@o2ib:/lscratch mounted on /lustre/scratch with fstype lustre\n"
    # How Kubernetes mounts a volume: the same file system, bound into a pod.
    + _nfs_4("[fd00::5]:/scratch/team", "/var/lib/kubelet/pods/0b1c/volumes/kubernetes.io~nfs/scratch")
)
MOUNTSTATS_OF_CONTAINER = (
    "device overlay mounted on / with fstype overlay\ndevice proc mounted on /proc with fstype proc\n"
)
MOUNTINFO = r"""22 1 253:1 / / rw,relatime shared:1 - ext4 /dev/mapper/vg0-root rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
24 22 0:22 / /run/lock rw,nosuid,nodev,noexec,relatime shared:15 - tmpfs none rw,size=5120k
40 22 0:40 / /home rw,relatime shared:31 - autofs auto.home rw,fd=6,pgrp=1411,timeout=300,minproto=5,maxproto=5,indirect
50 22 0:51 / /mnt/data\040sets rw shared:32 - nfs nfs1.cluster:/export/data\040sets rw,vers=3,proto=tcp,addr=10.0.3.7
60 22 0:61 / /var/lib/docker/overlay2/abc/merged rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
70 22 0:52 / /mnt/scratch rw,relatime shared:33 - nfs4 [fd00::5]:/scratch rw,vers=4.2,proto=tcp,nconnect=4
80 22 0:71 / /lustre/scratch rw,relatime shared:34 - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/lscratch rw,flock,lazystatfs
81 22 0:72 / /lustre/home rw,relatime shared:35 - lustre 10.0.0.1@o2ib:/lhome rw,flock,lazystatfs
82 22 0:81 / /mnt/objects rw,nosuid,nodev,relatime shared:36 - fuse.gcsfuse gcsfuse rw,user_id=0,group_id=0
90 22 0:52 /team /var/lib/kubelet/pods/0b1c/volumes/kubernetes.io~nfs/scratch rw shared:33 - nfs4 [fd00::5]:/scratch rw
"""
"""The mounts above, as process 1 of the node sees them. `whole` writes the mountinfo of the node."""

SCRATCH = "lscratch-ffff9bc043537800"
HOME = "lhome-ffff9bc0a1b2c3d4"
LLITE_215 = """\
snapshot_time             1783960164.279418700 secs.nsecs
start_time                1783705564.331211471 secs.nsecs
elapsed_time              254599.948207229 secs.nsecs
read_bytes                812345 samples [bytes] 1 4194304 3407872123456 14287000000000000000
write_bytes               4567 samples [bytes] 167 4194304 19155386368 80000000000000
read                      812345 samples [usecs] 3 902123 4061725000 99999999999
write                     4567 samples [usecs] 9 501234 91340000 88888888888
open                      20202 samples [usecs] 14 90134 6060600 777777777
close                     20201 samples [usecs] 9 9019 2020100 66666666
mmap                      12 samples [usecs] 1 9 48 300
page_fault                3456 samples [usecs] 1 50000 691200 5555555
getattr                   30303 samples [usecs] 3 60606 3030300 4444444
statfs                    17 samples [usecs] 2 3904 16809 16988546
rename                    5 samples [usecs] 100 200 750 115000
unlink                    4 samples [usecs] 95 95 380 36100
inode_permission          70707 samples [usecs] 2 3137 212121 10096913
"""
LLITE_210 = """\
snapshot_time             1534770326.579119384 secs.nsecs
dirty_pages_hits          1234 samples [regs]
dirty_pages_misses        567 samples [regs]
read_bytes                901 samples [bytes] 4096 1048576 94371840
write_bytes               109 samples [bytes] 98303 4194304 335544320
brw_read                  3 samples [pages] 4096 4096 12288
ioctl                     5 samples [regs]
open                      210 samples [regs]
close                     209 samples [regs]
fsync                     8 samples [regs]
readdir                   40 samples [regs]
getattr                   1001 samples [regs]
setxattr                  1 samples [regs]
"""


def _import(name: str, target: str, state: str) -> str:
    return (
        f"import:\n    name: {name}\n    target: {target}_UUID\n    state: {state}\n"
        "    connect_flags: [ write_grant, server_lock, version, request_portal ]\n"
        "    connection:\n       failover_nids: [ 10.0.0.11@o2ib, 10.0.0.12@o2ib ]\n"
        "       current_connection: 10.0.0.11@o2ib\n       connection_attempts: 1\n       generation: 1\n"
        "       in-progress_invalidations: 0\n       idle: 3 sec\n"
        "    rpcs:\n       inflight: 0\n       unregistering: 0\n       timeouts: 0\n       avg_waittime: 2514 usec\n"
    )


CONNECTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("mdc", "lscratch-MDT0000", SCRATCH, "FULL"),
    ("osc", "lscratch-OST0000", SCRATCH, "FULL"),
    ("osc", "lscratch-OST0001", SCRATCH, "IDLE"),
    ("osc", "lscratch-OST0002", SCRATCH, "DISCONN"),
    ("mdc", "lhome-MDT0000", HOME, "FULL"),
    ("osc", "lhome-OST0000", HOME, "EVICTED"),
)


FUSE = {"81": "3\n", "95": "0\n", str(8 << 20 | 17): "1\n"}
"""Waiting requests, by the number of the file system: one of the node, one only in a container, one on a disk."""


def build(roots: Roots) -> None:
    """One file system of Lustre has its counters in debugfs; the other has them in procfs, as before 2.12."""
    procfs, sysfs = Path(roots.procfs), Path(roots.sysfs)
    write(procfs / "diskstats", DISKSTATS)
    for disk, attributes in BLOCK.items():
        for file, text in attributes.items():
            write(sysfs / "block" / disk / file, text)
    write(procfs / "1/mountstats", MOUNTSTATS)
    write(procfs / "self/mountstats", MOUNTSTATS_OF_CONTAINER)
    for number, waiting in FUSE.items():
        write(sysfs / "fs/fuse/connections" / number / "waiting", waiting)
    debugfs, old = sysfs / "kernel/debug/lustre", procfs / "fs/lustre"
    write(debugfs / "llite" / SCRATCH / "stats", LLITE_215)
    write(sysfs / "fs/lustre/llite" / SCRATCH / "blocksize", "4194304\n")
    write(old / "llite" / HOME / "stats", LLITE_210)
    for kind, target, client, state in CONNECTIONS:
        root = debugfs if client == SCRATCH else old
        name = f"{target}-{kind}-{client.rpartition('-')[2]}"
        write(root / kind / name / "import", _import(name, target, state))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
