"""RDMA adapters as under /sys: one of each vendor, with the kernel's links.

Files and formats are those of drivers/infiniband/core/sysfs.c and of the drivers named below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from whyidle.agent.files import Roots

UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}
DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled"}

NARROW = {  # bits of InfiniBand's PortCounters; all others have 64
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
}
PMA = (
    *NARROW,
    *("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait"),
)
PMA_EXTENDED = (
    *PMA,
    *("unicast_xmit_packets", "unicast_rcv_packets", "multicast_xmit_packets", "multicast_rcv_packets"),
)
MLX5_IB = (
    *("rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "out_of_buffer"),
    *("out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err"),
    *("local_ack_timeout_err", "resp_local_length_error", "resp_cqe_error", "req_cqe_error"),
    *("req_remote_invalid_request", "req_remote_access_errors", "resp_remote_access_errors"),
    *("resp_cqe_flush_error", "req_cqe_flush_error", "req_transport_retries_exceeded", "req_rnr_retries_exceeded"),
)
MLX5_ROCE = (
    *MLX5_IB,
    *("rp_cnp_ignored", "rp_cnp_handled", "np_ecn_marked_roce_packets", "np_cnp_sent", "rx_icrc_encapsulated"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps"),
    "roce_slow_restart_trans",
)
MLX4 = ("rq_num_lle", "sq_num_lle", "sq_num_tree", "sq_num_rree", "rq_num_rnr", "sq_num_rnr", "rq_num_oos", "sq_num_to")
EFA = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs"),
    *("rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wrs"),
    *("rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes", "retrans_bytes", "retrans_pkts"),
    *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),
)
EFA_DEVICE = (
    *("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err"),
    *("create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err"),
)
BNXT = (
    *("active_pds", "active_qps", "watermark_qps", "rx_pkts", "rx_bytes", "tx_pkts", "tx_bytes", "recoverable_errors"),
    *("tx_roce_errors", "tx_roce_discards", "rx_roce_errors", "rx_roce_discards", "to_retransmits"),
    *("seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd", "missing_resp", "unrecoverable_err"),
    *("dup_req", "res_length_mismatch", "res_tx_pci_err", "oos_drop_count", "tx_read_req", "tx_write_req"),
    *("rx_read_req", "rx_write_req", "rx_roce_good_bytes", "rx_out_of_buffer", "tx_cnp_pkts", "rx_cnp_pkts"),
    "rx_ecn_marked_pkts",
)
IONIC = (
    *("tx_rdma_ucast_bytes", "tx_rdma_ucast_pkts", "tx_rdma_mcast_bytes", "tx_rdma_mcast_pkts", "tx_rdma_cnp_pkts"),
    *("rx_rdma_ucast_bytes", "rx_rdma_ucast_pkts", "rx_rdma_mcast_bytes", "rx_rdma_mcast_pkts", "rx_rdma_cnp_pkts"),
    *("rx_rdma_ecn_pkts", "req_rx_pkt_seq_err", "req_rx_rnr_retry_err", "req_tx_retry_excd_err"),
    *("resp_rx_dup_request", "resp_rx_outof_buf", "resp_rx_outouf_seq", "resp_tx_rnr_retry_err"),
    *("tx_rdma_ack_timeout", "tx_rdma_retx_bytes", "tx_rdma_retx_pkts", "rx_rdma_mtu_discard_pkts"),
)
IRDMA = (
    *("ip4InDiscards", "ip4InTruncatedPkts", "ip4OutNoRoutes", "ip6InDiscards", "rxVlanErrors", "tcpRetransSegs"),
    *("ip4InOctets", "ip4InPkts", "ip4OutOctets", "ip4OutPkts", "ip6InOctets", "ip6InPkts", "ip6OutOctets"),
    *("ip6OutPkts", "ip4InMcastPkts", "iwInRdmaReads", "iwInRdmaSends", "iwInRdmaWrites", "iwOutRdmaReads"),
    *("iwOutRdmaSends", "iwOutRdmaWrites", "cnpHandled", "cnpIgnored", "cnpSent", "RxUDP", "TxUDP", "RxECNMrkd"),
    *("RNR sent", "RNR received", "Nak Sequence Error", "RTO", "Rcvd Out of order packets", "CRC errors"),
)
HFI1 = ("RcResend", "RnrNak", "OtherNak", "RcTimeOut", "PktDrop", "RcSeqNak", "RcDupRew", "SeqNak", "TxWait", "RxWords")
HFI1_DEVICE = (
    "DcRcvFcn",
    "DcRcvBcn",
    "DcTotCrc",
    "DcTxReplay",
    "DcRxReplay",
    "RxICrcErr",
    "CcePciCrSt",
    "DRIVER_HW_Errs",
)


@dataclass
class Port:
    """One port."""

    rate: str = "400 Gb/sec (4X NDR)"
    link_layer: str = "InfiniBand"
    state: dict[str, str] = field(default_factory=lambda: UP)
    lid: str = "0x1b"
    counters: tuple[str, ...] = PMA_EXTENDED
    hw_counters: tuple[str, ...] = ()
    netdev: str = ""
    pma: bool = True  # without a link layer, kernels before 5.14 still had the files


@dataclass
class Hca:
    """One device."""

    name: str
    pci: str  # empty for software devices
    driver: str
    ports: tuple[Port, ...]
    files: dict[str, str] = field(default_factory=dict)
    hw_counters: tuple[str, ...] = ()


def _mlx5(name: str, bus: int, *, board: str = "MT_0000000838", **port: object) -> Hca:
    files = {"board_id": board, "fw_ver": "28.39.1002", "hca_type": "MT4129", "hw_rev": "0"}
    return Hca(name, f"0000:{bus:02x}:00.0", "mlx5_core", (Port(**port),), files)  # pyright: ignore[reportArgumentType]


def hcas() -> list[Hca]:
    """All kinds of adapters."""
    roce = {"link_layer": "Ethernet", "lid": "0x0", "hw_counters": MLX5_ROCE}
    ethernet = {"link_layer": "Ethernet", "lid": "0x0", "counters": ()}
    return [
        _mlx5("mlx5_0", 0x1B, hw_counters=MLX5_IB, netdev="ibp27s0"),
        # Some real files have this blank after the link layer.
        _mlx5("mlx5_1", 0x3D, hw_counters=(*MLX5_IB, "rx_flux_capacitor"), lid="0x2c", link_layer="InfiniBand "),
        _mlx5("mlx5_2", 0x5E, board="MT_0000000437", netdev="eth2", **roce),
        _mlx5("mlx5_3", 0x7F, board="MT_0000000437", netdev="eth3", **roce),
        _mlx5("mlx5_4", 0x9A, hw_counters=MLX5_IB, state=DOWN, rate="10 Gb/sec (4X SDR)", lid="0xffff"),
        Hca(
            "mlx4_0",
            "0000:a1:00.0",
            "mlx4_core",
            (
                Port("40 Gb/sec (4X QDR)", lid="0x3", counters=PMA, hw_counters=MLX4, netdev="ibp161s0"),
                Port("40 Gb/sec (4X QDR)", lid="0x4", counters=PMA, hw_counters=MLX4, netdev="ibp161s0d1"),
            ),
            {"board_id": "MT_1090120019", "fw_ver": "2.42.5000", "hca_type": "MT4099", "hw_rev": "1"},
            (*MLX4, "num_cqovf"),
        ),
        # Both report only their GUID. The second one has an empty version, as in Linux from 4.10 on.
        Hca(
            "rdmap16s27",
            "0000:10:1b.0",
            "efa",
            (Port("100 Gb/sec (4X EDR)", hw_counters=EFA, **ethernet),),
            {},
            EFA_DEVICE,
        ),
        Hca(
            "rdmap32s27",
            "0000:20:1b.0",
            "efa",
            (Port("100 Gb/sec (4X EDR)", hw_counters=EFA, **ethernet),),
            {"fw_ver": ""},
        ),
        Hca(
            "bnxt_re0",
            "0000:c1:00.0",
            "bnxt_en",
            (Port("200 Gb/sec (4X HDR)", hw_counters=BNXT, netdev="eth4", **ethernet),),
            {"fw_ver": "227.0.131.0", "hca_type": "BCM57508", "hw_rev": "0x1"},
        ),
        Hca(
            "hfi1_0",
            "0000:c2:00.0",
            "hfi1",
            (Port("100 Gb/sec (4X EDR)", lid="0x5", hw_counters=HFI1),),
            {
                "board_id": "Intel Omni-Path Host Fabric Interface Adapter 100 Series",
                "fw_ver": "1.27.0",
                "hw_rev": "11",
            },
            HFI1_DEVICE,
        ),
        Hca(
            "irdma0",
            "0000:c3:00.0",
            "ice",
            (Port("100 Gb/sec (4X EDR)", "Ethernet", lid="0x1", hw_counters=IRDMA, netdev="eth5", pma=False),),
            {"fw_ver": "1.54", "hca_type": "IRDMA", "hw_rev": "2"},
        ),
        Hca(
            "ionic_0",
            "0000:c4:00.0",
            "ionic",
            (Port(hw_counters=IONIC, netdev="eth6", **ethernet),),
            {"fw_ver": "1.110.0-a-79", "hca_type": "Pollara", "hw_rev": "0"},
        ),
        Hca("rxe0", "", "", (Port("25 Gb/sec (1X EDR)", hw_counters=("sent_pkts", "rcvd_pkts"), **ethernet),)),
    ]


def build(roots: Roots) -> None:
    """Writes all adapters under the sysfs of ``roots``."""
    values = count(1)
    for hca in hcas():
        build_hca(roots, hca, values)
    # A counter of 8 bits that stopped: the link of this port went down more often than it can count.
    _write(Path(roots.sysfs, "class/infiniband/mlx5_4/ports/1/counters/link_downed"), "255")


def build_hcas(roots: Roots, number: int) -> None:
    """Writes as many RoCE adapters as a GPU server has: 21 counters and 31 hw_counters each."""
    values = count(1)
    for index in range(number):
        roce = {"link_layer": "Ethernet", "lid": "0x0", "hw_counters": MLX5_ROCE, "netdev": f"eth{index}"}
        build_hca(roots, _mlx5(f"mlx5_{index}", 0x11 + index, **roce), values)


def build_hca(roots: Roots, hca: Hca, values: Iterator[int]) -> Path:
    """Writes one adapter, and returns its directory."""
    sysfs = Path(roots.sysfs)
    function = sysfs / (f"devices/pci0000:00/0000:00:01.0/{hca.pci}" if hca.pci else "devices/virtual")
    device = function / "infiniband" / hca.name
    attributes = {"node_guid": _guid(hca), "node_type": "1: CA", **hca.files}
    for file, text in attributes.items():
        _write(device / file, text)
    for file in hca.hw_counters:
        _write(device / "hw_counters" / file, str(_value(file, next(values))))
    for number, port in enumerate(hca.ports, 1):
        _build_port(device / "ports" / str(number), port, values)
        if port.netdev:
            _write(function / "net" / port.netdev / "dev_port", str(number - 1))
    if hca.pci:
        driver = sysfs / "bus/pci/drivers" / hca.driver
        driver.mkdir(parents=True, exist_ok=True)
        _link(function / "driver", driver)
        _link(device / "device", function)
        _write(function / "uevent", f"DRIVER={hca.driver}\nPCI_SLOT_NAME={hca.pci}")
    _link(sysfs / "class/infiniband" / hca.name, device)
    return device


def _build_port(folder: Path, port: Port, values: Iterator[int]) -> None:
    attributes = {"rate": port.rate, "link_layer": port.link_layer, "lid": port.lid, "sm_lid": "0x1", **port.state}
    for file, text in attributes.items():
        _write(folder / file, text)
    for file in port.counters:
        _write(folder / "counters" / file, str(_value(file, next(values))) if port.pma else "N/A (no PMA)")
    for file in port.hw_counters:
        _write(folder / "hw_counters" / file, str(_value(file, next(values))))
    if port.hw_counters:
        _write(folder / "hw_counters/lifespan", "10")
    if port.link_layer == "Ethernet" and port.netdev:
        _write(folder / "gid_attrs/ndevs/0", port.netdev)


def _value(file: str, number: int) -> int:
    """A different value for each file, within its number of bits."""
    if bits := NARROW.get(file):
        return 1 + number % ((1 << bits) - 2)
    is_data = any(word in file for word in ("data", "bytes", "Octets"))
    return number * (5_000_000_003 if is_data else 1_001)


def _guid(hca: Hca) -> str:
    return f"946d:ae03:00{sum(hca.name.encode()) % 256:02x}:{len(hca.name):04x}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    # As in the kernel: up to a directory above the target, so that the path ends with the target's name.
    path.symlink_to(os.path.join(os.path.relpath(target.parent, path.parent), target.name))
