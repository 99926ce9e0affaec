"""Network interfaces of a Kubernetes node: an ENA, two ConnectX in a bond with a VLAN, IPoIB, adapters of other
vendors, and interfaces of containers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whyidle.agent.files import Roots

from .kernel import driver

ENA, IPOIB = "0000:00:05.0", "0000:1b:00.0"
ROCE = ("0000:5e:00.0", "0000:7f:00.0")
BNXT, ICE, IONIC = "0000:c1:00.0", "0000:c3:00.0", "0000:c4:00.0"
_BRIDGE = "pci0000:00/0000:00:01.0"
"""The adapters are those of rdma.py, at the same PCI addresses."""


@dataclass(frozen=True)
class Fake:
    """One interface. ``counts`` are the columns of /proc/net/dev."""

    name: str
    counts: tuple[int, ...]
    place: str = "virtual"  # below /sys/devices: the path of its device
    driver: str = ""
    speed: str = ""  # as in the file; empty: EINVAL, and so for duplex
    mtu: int = 1500
    state: str = "up"
    kind: str = ""  # DEVTYPE
    master: str = ""
    lower: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    missed: int = 0
    changes: int = 2


def _counts(rx: int, tx: int, **others: int) -> tuple[int, ...]:
    """Bytes, with packets and other values computed from them; ``others`` by column, as c3=7."""
    counts = [rx, rx // 1000, 0, 0, 0, 0, 0, 5, tx, tx // 900, 0, 0, 0, 0, 0, 0]
    for column, value in others.items():
        counts[int(column[1:])] = value
    return tuple(counts)


FAKES: tuple[Fake, ...] = (
    Fake("lo", _counts(7_340_032_000, 7_340_032_000), mtu=65536, state="unknown", changes=0),
    Fake("eth0", _counts(912_345_678_901, 81_234_567_890, c3=31), f"pci0000:00/{ENA}", "ena", mtu=9001),
    Fake(
        "eth2",
        _counts(123_456_789_012, 98_765_432_109, c2=4, c3=1207, c4=1203, c5=3, c10=2, c14=1),
        f"{_BRIDGE}/{ROCE[0]}",
        "mlx5_core",
        "400000\n",
        9000,
        master="bond0",
        missed=1203,
        changes=5,
    ),
    Fake(
        "eth3",
        _counts(120_456_789_011, 97_765_432_108),
        f"{_BRIDGE}/{ROCE[1]}",
        "mlx5_core",
        "400000\n",
        9000,
        master="bond0",
        changes=3,
    ),
    Fake("ibp27s0", _counts(55_000_000_001, 66_000_000_002), f"{_BRIDGE}/{IPOIB}", "mlx5_core", "400000\n", 2044),
    Fake("eth4", _counts(44_000_000_003, 33_000_000_004), f"{_BRIDGE}/{BNXT}", "bnxt_en", "200000\n", 4200),
    Fake("eth5", _counts(22_000_000_005, 11_000_000_006), f"{_BRIDGE}/{ICE}", "ice", "100000\n", 1500),
    Fake("eth6", _counts(0, 0), f"{_BRIDGE}/{IONIC}", "ionic", "-1\n", 1500, "down"),
    Fake(
        "bond0",
        _counts(243_913_578_023, 196_530_864_217, c3=1210),
        speed="800000\n",
        mtu=9000,
        kind="bond",
        lower=("eth2", "eth3"),
        folders=("bonding",),
        changes=1,
    ),
    Fake(
        "bond0.100", _counts(24_391_357_802, 19_653_086_421), speed="800000\n", mtu=9000, kind="vlan", lower=("bond0",)
    ),
    Fake("docker0", _counts(1_000_001, 2_000_002), kind="bridge", state="down", folders=("bridge", "brif")),
    Fake("cni0", _counts(3_000_003, 4_000_004), kind="bridge", lower=("veth3c1e9f02",), folders=("bridge", "brif")),
    Fake("veth3c1e9f02", _counts(5_000_005, 6_000_006), speed="10000\n", master="cni0", folders=("brport",)),
    Fake("cali5a2b71d90e3", _counts(7_000_007, 8_000_008), speed="10000\n"),
    Fake("cali9c00f1d2a4b", _counts(9_000_009, 10_000_010), speed="10000\n"),
    Fake("tunl0", _counts(0, 0), state="unknown", mtu=1480),
)
LEFT_OUT = ("docker0", "cni0", "veth3c1e9f02", "cali5a2b71d90e3", "cali9c00f1d2a4b", "tunl0")

_MLX5 = {
    "rx_packets": 123456789,
    "rx_ecn_mark": 77,
    "rx0_packets": 60000000,
    "rx1_packets": 63456789,
    "rx_out_of_buffer": 17,
    "rx_vport_rdma_unicast_bytes": 900_000_000_000,
    "rx_bytes_phy": 1_234_567_890_123,
    "tx_bytes_phy": 1_134_567_890_321,
    "rx_crc_errors_phy": 0,
    "rx_symbol_err_phy": 0,
    "rx_discards_phy": 19,
    "tx_discards_phy": 0,
    "tx_pause_storm_warning_events": 0,
    "tx_pause_storm_error_events": 0,
    "rx_pci_signal_integrity": 0,
    "tx_pci_signal_integrity": 2,
    "outbound_pci_stalled_rd": 3,
    "outbound_pci_stalled_wr": 41,
    "outbound_pci_stalled_rd_events": 0,
    "outbound_pci_stalled_wr_events": 12,
    "outbound_pci_buffer_overflow": 6,
    **{f"rx_prio{p}_{what}": 0 for p in range(8) for what in ("discards", "buf_discard", "cong_discard", "marked")},
    "rx_prio3_pause": 40_001,
    "rx_prio3_pause_duration": 2_500_000,
    "tx_prio3_pause": 801,
    "tx_prio3_pause_duration": 125_000,
    "rx_prio3_pause_transition": 20_000,
}
_QUIET = {name: value if name.endswith("_phy") else 0 for name, value in _MLX5.items()}
_ENA = {
    "tx_timeout": 0,
    "bw_in_allowance_exceeded": 1009,
    "bw_out_allowance_exceeded": 13,
    "pps_allowance_exceeded": 0,
    "conntrack_allowance_exceeded": 0,
    "linklocal_allowance_exceeded": 0,
    "conntrack_allowance_available": 136_812,
    "queue_0_tx_cnt": 337_803,
}
_BNXT = {
    "[0]: rx_ucast_packets": 12,
    "rx_bytes": 440_000_000_003,
    "tx_bytes": 330_000_000_004,
    "rx_fcs_err_frames": 2,
    "rx_stat_discard": 14,
    "tx_stat_discard": 0,
    "rx_pfc_ena_frames_pri5": 505,
    "pfc_pri5_rx_duration_us": 750_000,
}
_ICE = {
    "rx_bytes": 22_000_000_005,
    "rx_bytes.nic": 220_000_000_005,
    "tx_bytes.nic": 110_000_000_006,
    "rx_dropped.nic": 25,
    "tx_priority_2_xon.nic": 30,
    "tx_priority_2_xoff.nic": 31,
}
_IONIC = {"tx_packets": 0, "octets_rx_all": 64, "frames_rx_pripause": 9, "rx_pripause_1_1us_count": 250_000}
SCRIPT: list[str] = [
    *driver("eth4", "bnxt_en", BNXT, _BNXT),
    *driver("eth5", "ice", ICE, _ICE),
    *driver("eth6", "ionic", IONIC, _IONIC),
    *driver("eth0", "ena", ENA, _ENA),
    *driver("eth2", "mlx5_core", ROCE[0], _MLX5),
    *driver("eth3", "mlx5_core", ROCE[1], _QUIET),
    *driver("ibp27s0", "mlx5_core[ib_ipoib]", IPOIB, {"rx_packets": 5, "rx_out_of_buffer": 0}),
]
"""The lines for kernel.write."""

_HEAD = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|"
    "bytes    packets errs drop fifo colls carrier compressed\n"
)
_WIDTHS = (8, 7, 4, 4, 4, 5, 10, 9, 8, 7, 4, 4, 4, 5, 7, 10)
SNMP = """\
Ip: Forwarding DefaultTTL InReceives InHdrErrors
Ip: 1 64 7826090 0
Icmp: InMsgs InErrors
Icmp: 2 0
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs \
RetransSegs InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 9375 8873 405 87 213 7819606 7635805 2936 4 616 3
Udp: InDatagrams NoPorts
Udp: 6482 0
"""
NETSTAT = """\
TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPTimeouts TCPMemoryPressuresChrono TCPBacklogDrop TCPRcvQDrop \
TCPToZeroWindowAdv TCPSynRetrans
TcpExt: 0 21 23 311 1500 7 9 50150 61
IpExt: InNoRoutes InOctets InCEPkts
IpExt: 0 86672333418 5003
"""
ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT                          \
                             \t
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0                                                  \
                               \t
bond0\t0000640A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0                                                   \
                               \t
"""


def build(roots: Roots) -> None:
    for process in ("1", "."):
        net = Path(roots.procfs, process, "net")
        net.mkdir(parents=True, exist_ok=True)
        (net / "dev").write_text(net_dev(FAKES))
        (net / "snmp").write_text(SNMP)
        (net / "netstat").write_text(NETSTAT)
        (net / "route").write_text(ROUTE)
    for index, fake in enumerate(FAKES):
        add(roots, fake, index + 1)


def net_dev(fakes: tuple[Fake, ...]) -> str:
    lines = []
    for fake in fakes:
        columns = [f"{count:{width}d}" for count, width in zip(fake.counts, _WIDTHS, strict=True)]
        lines.append(f"{fake.name:>6}:{' '.join(columns)}\n")
    return _HEAD + "".join(lines)


def add(roots: Roots, fake: Fake, index: int) -> None:
    """The files of one interface in sysfs."""
    device = Path(roots.sysfs, "devices", fake.place)
    folder = device / "net" / fake.name
    (folder / "statistics").mkdir(parents=True)
    for name, text in {
        "statistics/rx_missed_errors": f"{fake.missed}\n",
        "carrier_changes": f"{fake.changes}\n",
        "operstate": f"{fake.state}\n",
        "mtu": f"{fake.mtu}\n",
        "ifindex": f"{index}\n",
        "uevent": (f"DEVTYPE={fake.kind}\n" if fake.kind else "") + f"INTERFACE={fake.name}\nIFINDEX={index}\n",
    }.items():
        (folder / name).write_text(text)
    for name, text in {"speed": fake.speed, "duplex": fake.speed and "full\n"}.items():
        if text:
            (folder / name).write_text(text)
        else:
            (folder / name).symlink_to(f"/sys/class/net/lo/{name}")  # EINVAL
    for name in fake.folders:
        (folder / name).mkdir()
    if fake.driver:
        drivers = Path(roots.sysfs, "bus/pci/drivers", fake.driver)
        drivers.mkdir(parents=True, exist_ok=True)
        (folder / "device").symlink_to(device)
        if not (device / "driver").is_symlink():
            (device / "driver").symlink_to(drivers)
    if fake.master:
        (folder / "master").symlink_to(f"../{fake.master}")
    for lower in fake.lower:
        (folder / f"lower_{lower}").symlink_to(f"../{lower}")
    classes = Path(roots.sysfs, "class/net")
    classes.mkdir(parents=True, exist_ok=True)
    (classes / fake.name).symlink_to(folder)
