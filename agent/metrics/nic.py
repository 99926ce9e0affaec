"""The metrics of the collector `nic`."""

from __future__ import annotations

from .metric import Metric

_DEVICE = ("device",)
_WAY = ("device", "direction")
_NET_DEV = "/proc/net/dev"
_CLASS = "/sys/class/net/<device>"
_ETHTOOL = "ioctl SIOCETHTOOL, ETHTOOL_GSTATS"
US = 1_000_000
MEGABIT_BYTES = 125_000
"""The kernel gives speeds in Mbit/s."""

BYTES = Metric(
    "whyidle_nic_bytes_total",
    "counter",
    "bytes",
    _WAY,
    "Bytes that the kernel's network stack received and sent on the interface. RDMA traffic is not in it: see "
    "whyidle_nic_wire_bytes_total and the collector rdma.",
    _NET_DEV,
)
PACKETS = Metric(
    "whyidle_nic_packets_total", "counter", "packets", _WAY, "Packets received and sent on the interface.", _NET_DEV
)
ERRORS = Metric(
    "whyidle_nic_errors_total",
    "counter",
    "packets",
    _WAY,
    "Packets that were bad or could not be sent. If it grows, check the cable, transceiver and switch port.",
    _NET_DEV,
)
DROPS = Metric(
    "whyidle_nic_drops_total",
    "counter",
    "packets",
    _WAY,
    "Valid packets that were dropped. If received packets are dropped, the host does not keep up, or no process "
    "wants them.",
    _NET_DEV,
)
FAULTS = Metric(
    "whyidle_nic_faults_total",
    "counter",
    "faults",
    (*_WAY, "kind"),
    "Errors by kind: fifo (the host was too slow), frame (length, checksum or framing), carrier, collision. A kind "
    "that has not occurred has no series.",
    _NET_DEV,
    sparse=True,
)
MISSED = Metric(
    "whyidle_nic_missed_packets_total",
    "counter",
    "packets",
    _DEVICE,
    "Packets that the adapter had no space for, because the host did not empty its queue in time. They count as "
    "drops too.",
    f"{_CLASS}/statistics/rx_missed_errors",
)
CARRIER_CHANGES = Metric(
    "whyidle_nic_carrier_changes_total",
    "counter",
    "changes",
    _DEVICE,
    "How often the link came up or went down. If it grows, the link flaps.",
    f"{_CLASS}/carrier_changes",
)
UP = Metric(
    "whyidle_nic_up",
    "gauge",
    "bool",
    _DEVICE,
    "1 if the operational state of the interface is up, otherwise 0. Absent if the driver does not report it.",
    f"{_CLASS}/operstate",
)
SPEED = Metric(
    "whyidle_nic_speed_bytes_per_second",
    "gauge",
    "bytes_per_second",
    _DEVICE,
    "The negotiated speed of the link, one way. Absent while the link is down, or if the interface has no link.",
    f"{_CLASS}/speed",
    times=MEGABIT_BYTES,
)
MTU = Metric(
    "whyidle_nic_mtu_bytes",
    "gauge",
    "bytes",
    _DEVICE,
    "The longest packet that the interface sends.",
    f"{_CLASS}/mtu",
)
FULL_DUPLEX = Metric(
    "whyidle_nic_full_duplex",
    "gauge",
    "bool",
    _DEVICE,
    "1 if the link is full duplex, 0 if half. Absent while the link is down, or if the interface has no link.",
    f"{_CLASS}/duplex",
)
INFO = Metric(
    "whyidle_nic_info",
    "gauge",
    "info",
    (*_DEVICE, "kind", "driver", "master", "pci_bus_id", "rdma"),
    "Properties of a network interface; always 1. Only the kind physical is separate hardware, so sum over that kind. "
    "The label master is the bond or bridge that it is part of. The label rdma is the InfiniBand or RoCE device of the "
    "same port.",
    _CLASS,
)
LEFT_OUT = Metric(
    "whyidle_nic_left_out_interfaces",
    "gauge",
    "interfaces",
    (),
    "Interfaces that are not reported because they are not hardware, such as the node's ends of veth pairs.",
    _CLASS,
)
NAMESPACE_BYTES = Metric(
    "whyidle_nic_namespace_bytes_total",
    "counter",
    "bytes",
    ("namespace", *_WAY),
    "Bytes received and sent on an interface inside a network namespace of ranks, such as that of a pod. "
    "whyidle_tcp_namespace_info names the rank.",
    "/proc/<pid>/net/dev",
)
NAMESPACE_DROPS = Metric(
    "whyidle_nic_namespace_drops_total",
    "counter",
    "packets",
    ("namespace", *_WAY),
    "Packets dropped on an interface inside a network namespace of ranks, such as that of a pod.",
    "/proc/<pid>/net/dev",
)

WIRE_BYTES = Metric(
    "whyidle_nic_wire_bytes_total",
    "counter",
    "bytes",
    _WAY,
    "Bytes on the wire of the port, RDMA and headers included, where the driver counts them.",
    _ETHTOOL,
)
WIRE_ERRORS = Metric(
    "whyidle_nic_wire_errors_total",
    "counter",
    "errors",
    (*_DEVICE, "kind"),
    "Errors on the wire: crc (packets with a wrong checksum), symbol (packets or symbols that error correction could "
    "not save). If it grows, check the cable and the transceiver. A kind that has not occurred has no series.",
    _ETHTOOL,
    sparse=True,
)
PAUSE_FRAMES = Metric(
    "whyidle_nic_pause_frames_total",
    "counter",
    "frames",
    (*_WAY, "priority"),
    "Pause frames: received ones stop this node's sending (congestion in the network), sent ones stop others (this "
    "node does not keep up). The label priority is 0 to 7 for PFC, pfc if the driver does not count by priority, and "
    "global for plain flow control. Absent while there were none.",
    _ETHTOOL,
    sparse=True,
)
PAUSE_SECONDS = Metric(
    "whyidle_nic_pause_seconds_total",
    "counter",
    "seconds",
    (*_WAY, "priority"),
    "For how long pause frames stopped sending: received frames stop this node, sent frames stop others. Absent "
    "while there were none.",
    _ETHTOOL,
    sparse=True,
    per=US,
)
PAUSE_STORMS = Metric(
    "whyidle_nic_pause_storms_total",
    "counter",
    "storms",
    (*_DEVICE, "level"),
    "How often the adapter paused others for too long: longer than its warning limit (warning), or so long that "
    "it had to drop packets instead (error). The host or its PCIe is stuck.",
    _ETHTOOL,
    sparse=True,
)
PCI_STALLED = Metric(
    "whyidle_nic_pci_stalled_seconds_total",
    "counter",
    "seconds",
    (*_DEVICE, "operation"),
    "Seconds in which PCIe held up the adapter's reads or writes for more than 30 % of the time. If it grows, the "
    "bottleneck is inside the node.",
    _ETHTOOL,
)
PCI_OVERFLOWS = Metric(
    "whyidle_nic_pci_overflow_packets_total",
    "counter",
    "packets",
    _DEVICE,
    "Packets dropped because PCIe did not take them fast enough.",
    _ETHTOOL,
)
PCI_ERRORS = Metric(
    "whyidle_nic_pci_errors_total",
    "counter",
    "errors",
    _WAY,
    "Signal errors on the adapter's PCIe link. If it grows, reseat the card. Absent while there were none.",
    _ETHTOOL,
    sparse=True,
)
NO_BUFFER = Metric(
    "whyidle_nic_out_of_buffer_total",
    "counter",
    "packets",
    _DEVICE,
    "Packets for which the host had no receive buffer ready. If it grows, the host is too slow.",
    _ETHTOOL,
)
DISCARDS = Metric(
    "whyidle_nic_discards_total",
    "counter",
    "packets",
    _WAY,
    "Packets that the port of the adapter discarded because it had no buffer, or could not send.",
    _ETHTOOL,
)
PRIORITY_DISCARDS = Metric(
    "whyidle_nic_priority_discards_total",
    "counter",
    "packets",
    (*_DEVICE, "priority", "reason"),
    "Received packets that the adapter discarded, by priority and reason: buffer, host_buffer (the host's share of "
    "buffers), host_congestion. Absent while there were none.",
    _ETHTOOL,
    sparse=True,
)
ECN_MARKED = Metric(
    "whyidle_nic_ecn_marked_packets_total",
    "counter",
    "packets",
    (*_DEVICE, "by"),
    "Received packets with a congestion mark, set by the network or by the adapter itself (the host does not keep "
    "up). Absent while there were none.",
    _ETHTOOL,
    sparse=True,
)
ALLOWANCE = Metric(
    "whyidle_nic_allowance_exceeded_packets_total",
    "counter",
    "packets",
    (*_DEVICE, "allowance"),
    "Packets queued or dropped because a cloud instance used more than its allowance: bandwidth_in, bandwidth_out, "
    "packets, connections, link_local.",
    _ETHTOOL,
)

METRICS: tuple[Metric, ...] = (
    BYTES,
    PACKETS,
    ERRORS,
    DROPS,
    FAULTS,
    MISSED,
    CARRIER_CHANGES,
    UP,
    SPEED,
    MTU,
    FULL_DUPLEX,
    INFO,
    LEFT_OUT,
    NAMESPACE_BYTES,
    NAMESPACE_DROPS,
    WIRE_BYTES,
    WIRE_ERRORS,
    PAUSE_FRAMES,
    PAUSE_SECONDS,
    PAUSE_STORMS,
    PCI_STALLED,
    PCI_OVERFLOWS,
    PCI_ERRORS,
    NO_BUFFER,
    DISCARDS,
    PRIORITY_DISCARDS,
    ECN_MARKED,
    ALLOWANCE,
)
