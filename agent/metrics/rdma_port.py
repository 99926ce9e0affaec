"""The metrics of every RDMA port: its identity, its state, and the counters that the InfiniBand architecture defines.

The files in ``counters/`` come from drivers/infiniband/core/sysfs.c, which asks the adapter for its PortCounters and,
if it has them, its PortCountersExtended. PortCounters have 4 to 32 bits and stop at their maximum (InfiniBand
architecture, volume 1, 16.1.3.5) until somebody resets them, for example with `perfquery -R`. PortCountersExtended have
64 bits.
"""

from __future__ import annotations

from .metric import Metric
from .rdma_row import PARTS, PORT, Row

_PORT_PATH = "sys/class/infiniband/*/ports/*/"


def _gauge(name: str, unit: str, labels: tuple[str, ...], help_text: str, source: str) -> Metric:
    return Metric(f"whyidle_rdma_{name}", "gauge", unit, labels, help_text, source)


def _counter(name: str, unit: str, labels: tuple[str, ...], help_text: str, files: str, sparse: bool = False) -> Metric:
    source = _PORT_PATH + "counters/" + files
    return Metric(f"whyidle_rdma_{name}_total", "counter", unit, labels, help_text, source, sparse=sparse)


INFO = _gauge(
    "info",
    "info",
    ("device", "driver", "pci_bus_id", "board_id", "fw_ver", "hca_type", "node_guid"),
    "Identity of an RDMA device, to join on; always 1. The driver is that of its PCI function. Labels that the "
    "device does not report are left out.",
    "sys/class/infiniband/*/{device,board_id,fw_ver,hca_type,node_guid}",
)
PORT_INFO = _gauge(
    "port_info",
    "info",
    (*PORT, "link_layer", "netdev", "lid", "width", "generation"),
    "Identity of a port, to join on; always 1. Width and generation are those of the link as it is now, such as 4X and "
    "NDR, and are left out while it is down.",
    _PORT_PATH + "{link_layer,lid,rate,gid_attrs/ndevs/0}",
)
UP = _gauge(
    "port_up",
    "bool",
    PORT,
    "1 if the port can carry data (state ACTIVE), otherwise 0. Ports without a cable are 0 too, so compare with "
    "the past.",
    _PORT_PATH + "state",
)
STATE = _gauge(
    "port_state",
    "state",
    PORT,
    "Logical state of the port: 1 down, 2 initialising (no subnet manager has configured it), 3 armed, 4 active.",
    _PORT_PATH + "state",
)
PHYSICAL_STATE = _gauge(
    "port_physical_state",
    "state",
    PORT,
    "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
    _PORT_PATH + "phys_state",
)
RATE = _gauge(
    "port_rate_bytes_per_second",
    "bytes per second",
    PORT,
    "The speed of the link in one direction, at its current width and generation; absent while it is down. If it is "
    "lower than on other ports of the fabric, or lower than yesterday, the link is degraded.",
    _PORT_PATH + "rate",
)
RECEIVE_BYTES = _counter(
    "receive_bytes",
    "bytes",
    PARTS,
    "Bytes received by RDMA, headers included. Some drivers count parts only: the label traffic names the part, "
    "and the parts add up.",
    "port_rcv_data (times 4), or hw_counters/{rx_bytes,rx_rdma_ucast_bytes,...}",
)
TRANSMIT_BYTES = _counter(
    "transmit_bytes",
    "bytes",
    PARTS,
    "Bytes sent by RDMA, headers included. Some drivers count parts only: the label traffic names the part, and "
    "the parts add up.",
    "port_xmit_data (times 4), or hw_counters/{tx_bytes,tx_rdma_ucast_bytes,...}",
)
RECEIVE_PACKETS = _counter(
    "receive_packets",
    "packets",
    PARTS,
    "Packets received by RDMA. Some drivers count parts only: the label traffic names the part, and the parts add up.",
    "port_rcv_packets, or hw_counters/{rx_pkts,rx_rdma_ucast_pkts,...}",
)
TRANSMIT_PACKETS = _counter(
    "transmit_packets",
    "packets",
    PARTS,
    "Packets sent by RDMA. Some drivers count parts only: the label traffic names the part, and the parts add up.",
    "port_xmit_packets, or hw_counters/{tx_pkts,tx_rdma_ucast_pkts,...}",
)
UNICAST_RECEIVE_PACKETS = _counter(
    "unicast_receive_packets", "packets", PORT, "Unicast packets among those received.", "unicast_rcv_packets"
)
UNICAST_TRANSMIT_PACKETS = _counter(
    "unicast_transmit_packets", "packets", PORT, "Unicast packets among those sent.", "unicast_xmit_packets"
)
MULTICAST_RECEIVE_PACKETS = _counter(
    "multicast_receive_packets", "packets", PORT, "Multicast packets among those received.", "multicast_rcv_packets"
)
MULTICAST_TRANSMIT_PACKETS = _counter(
    "multicast_transmit_packets", "packets", PORT, "Multicast packets among those sent.", "multicast_xmit_packets"
)
TRANSMIT_WAIT = _counter(
    "transmit_wait_ticks",
    "ticks",
    PORT,
    "Ticks during which the port had data to send and no credit to send it. How long a tick is depends on the adapter; "
    "growth means congestion further down the path.",
    "port_xmit_wait",
)
TRANSMIT_DISCARDS = _counter(
    "transmit_discards",
    "packets",
    PORT,
    "Packets that the port discarded instead of sending: it was down or congested, or the packet waited too long.",
    "port_xmit_discards, or hw_counters/tx_roce_discards",
)
RECEIVE_ERRORS = _counter(
    "receive_errors",
    "packets",
    PORT,
    "Packets received with an error. Growth points to a bad cable, transceiver or port.",
    "port_rcv_errors, or hw_counters/rx_roce_errors",
)
SYMBOL_ERRORS = _counter(
    "symbol_errors",
    "errors",
    PORT,
    "Minor errors on the lanes of the link. Steady growth points to a bad cable or transceiver.",
    "symbol_error",
)
LINK_RECOVERIES = _counter(
    "link_recoveries",
    "recoveries",
    PORT,
    "Times the link went through error recovery and came back. Traffic stops until then.",
    "link_error_recovery",
)
LINK_DOWNED = _counter(
    "link_downed",
    "failures",
    PORT,
    "Times the link failed its error recovery and went down. Jobs that use it stall or fail.",
    "link_downed, or hw_counters/link_downed",
)
PORT_ERRORS = _counter(
    "port_errors",
    "errors",
    (*PORT, "error"),
    "Rare errors of the port, by kind. A kind that has not occurred has no series.",
    "{VL15_dropped,local_link_integrity_errors,...}, or hw_counters/{rx_icrc_encapsulated,...}",
    sparse=True,
)
SATURATED = _gauge(
    "saturated_info",
    "info",
    (*PORT, "file"),
    "A counter that has reached its maximum and no longer counts; always 1. Its own series is absent until the "
    "counter is reset (perfquery -R), because its rate is unknown.",
    _PORT_PATH + "counters/*",
)
UNKNOWN_INFO = _gauge(
    "unknown_file_info",
    "info",
    (*PORT, "file"),
    "A counter file that whyidle does not know; always 1. At most 20 are listed per port.",
    "sys/class/infiniband/*/{,ports/*/}hw_counters/*",
)
UNKNOWN = _gauge(
    "unknown_files",
    "files",
    PORT,
    "Number of counter files that whyidle does not know; absent if there are none.",
    "sys/class/infiniband/*/{,ports/*/}hw_counters/*",
)

_U4, _U8, _U16, _U32 = ((1 << bits) - 1 for bits in (4, 8, 16, 32))

COUNTERS: dict[str, Row] = {
    # Bytes divided by four. 64 bits with PortCountersExtended, otherwise 32. A 64-bit counter soon exceeds the maximum
    # of a 32-bit counter.
    "port_rcv_data": Row(RECEIVE_BYTES, ("",), times=4, ceiling=_U32),
    "port_xmit_data": Row(TRANSMIT_BYTES, ("",), times=4, ceiling=_U32),
    "port_rcv_packets": Row(RECEIVE_PACKETS, ("",), ceiling=_U32),
    "port_xmit_packets": Row(TRANSMIT_PACKETS, ("",), ceiling=_U32),
    "unicast_rcv_packets": Row(UNICAST_RECEIVE_PACKETS),
    "unicast_xmit_packets": Row(UNICAST_TRANSMIT_PACKETS),
    "multicast_rcv_packets": Row(MULTICAST_RECEIVE_PACKETS),
    "multicast_xmit_packets": Row(MULTICAST_TRANSMIT_PACKETS),
    "port_xmit_wait": Row(TRANSMIT_WAIT, ceiling=_U32),
    "port_xmit_discards": Row(TRANSMIT_DISCARDS, ceiling=_U16),
    "port_rcv_errors": Row(RECEIVE_ERRORS, ceiling=_U16),
    "symbol_error": Row(SYMBOL_ERRORS, ceiling=_U16),
    "link_error_recovery": Row(LINK_RECOVERIES, ceiling=_U8),
    "link_downed": Row(LINK_DOWNED, ceiling=_U8),
    "port_rcv_remote_physical_errors": Row(PORT_ERRORS, ("remote_physical",), ceiling=_U16),
    "port_rcv_switch_relay_errors": Row(PORT_ERRORS, ("switch_relay",), ceiling=_U16),
    "port_xmit_constraint_errors": Row(PORT_ERRORS, ("transmit_constraint",), ceiling=_U8),
    "port_rcv_constraint_errors": Row(PORT_ERRORS, ("receive_constraint",), ceiling=_U8),
    "local_link_integrity_errors": Row(PORT_ERRORS, ("local_link_integrity",), ceiling=_U4),
    "excessive_buffer_overrun_errors": Row(PORT_ERRORS, ("excessive_buffer_overrun",), ceiling=_U4),
    "VL15_dropped": Row(PORT_ERRORS, ("vl15_dropped",), ceiling=_U16),
}
"""The files in ``counters/``."""

METRICS: tuple[Metric, ...] = (
    INFO,
    PORT_INFO,
    UP,
    STATE,
    PHYSICAL_STATE,
    RATE,
    RECEIVE_BYTES,
    TRANSMIT_BYTES,
    RECEIVE_PACKETS,
    TRANSMIT_PACKETS,
    UNICAST_RECEIVE_PACKETS,
    UNICAST_TRANSMIT_PACKETS,
    MULTICAST_RECEIVE_PACKETS,
    MULTICAST_TRANSMIT_PACKETS,
    TRANSMIT_WAIT,
    TRANSMIT_DISCARDS,
    RECEIVE_ERRORS,
    SYMBOL_ERRORS,
    LINK_RECOVERIES,
    LINK_DOWNED,
    PORT_ERRORS,
    SATURATED,
    UNKNOWN_INFO,
    UNKNOWN,
)
