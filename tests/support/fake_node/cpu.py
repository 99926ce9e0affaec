"""CPUs, memory and pressure of the simulated node: /proc/stat, loadavg, meminfo, vmstat and pressure."""

from __future__ import annotations

from pathlib import Path

from whyidle.agent.files import Roots

CPUS = 4

STAT = """\
cpu  1000001 2000 300003 4000004 50005 60 7007 808 9009 10
cpu0 250001 500 75003 1000001 12505 15 1757 202 2259 4
cpu1 250000 500 75000 1000001 12500 15 1750 202 2250 2
cpu2 250000 500 75000 1000001 12500 15 1750 202 2250 2
cpu3 250000 500 75000 1000001 12500 15 1750 202 2250 2
intr 987654321 9 0 0 0 0 0 0 0 1 0 0 0 15 0 0 0 0 31 0 0 0 0 0 0 0 27 0 123456 0 0
ctxt 1234567890
btime 1795214329
processes 424242
procs_running 7
procs_blocked 3
softirq 22334455 0 667697 5 7469995 1647608 0 4 777696 155222 1410552
"""
LOADAVG = "6.25 5.50 4.75 8/1234 424242\n"
MEMINFO = """\
MemTotal:       1056476672 kB
MemFree:        201000001 kB
MemAvailable:   903000003 kB
Buffers:           40004 kB
Cached:         705000005 kB
SwapCached:            0 kB
Active:         30000006 kB
Inactive:       690000007 kB
Unevictable:       20308 kB
Mlocked:           19348 kB
SwapTotal:       8388604 kB
SwapFree:        8388000 kB
Dirty:            909009 kB
Writeback:         10010 kB
AnonPages:      60011011 kB
Mapped:          1212012 kB
Shmem:          13131313 kB
KReclaimable:    4160216 kB
Slab:            4540240 kB
CommitLimit:    536626940 kB
Committed_AS:   151824000 kB
VmallocTotal:   34359738367 kB
AnonHugePages:  10240000 kB
HugePages_Total:       0
HugePages_Free:        0
Hugepagesize:       2048 kB
DirectMap4k:       32768 kB
"""
VMSTAT = """\
nr_free_pages 50250000
nr_zone_inactive_anon 2533
nr_dirty 227252
workingset_nodes 126397
workingset_refault_anon 0
workingset_refault_file 9336417
pgpgin 58245246
pgpgout 66715704
pswpin 21
pswpout 151
allocstall_dma 0
allocstall_dma32 1
allocstall_normal 20
allocstall_movable 300
allocstall_device 0
pgfree 353434343
pgfault 181818181
pgmajfault 54177
pgsteal_direct 8800
pgscan_kswapd 12345
pgscan_direct 9900
pgscan_direct_throttle 0
oom_kill 2
"""
PRESSURE = {
    "cpu": (2_810_988_259, 0),
    "io": (85_464_804, 54_771_052),
    "memory": (1_000_001, 500_002),
    "irq": (None, 33_003),
}


def pressure(some: int | None, full: int | None) -> str:
    rows = (("some", some), ("full", full))
    return "".join(
        f"{kind} avg10=0.26 avg60=0.73 avg300=1.21 total={total}\n" for kind, total in rows if total is not None
    )


def build(roots: Roots) -> None:
    procfs = Path(roots.procfs)
    (procfs / "pressure").mkdir(parents=True, exist_ok=True)
    for file, text in (("stat", STAT), ("loadavg", LOADAVG), ("meminfo", MEMINFO), ("vmstat", VMSTAT)):
        (procfs / file).write_text(text)
    for resource, totals in PRESSURE.items():
        (procfs / "pressure" / resource).write_text(pressure(*totals))
