"""Maps the counters of network drivers to the metrics of the collector `nic`."""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric
from .nic import (
    ALLOWANCE,
    DISCARDS,
    ECN_MARKED,
    NO_BUFFER,
    PAUSE_FRAMES,
    PAUSE_SECONDS,
    PAUSE_STORMS,
    PCI_ERRORS,
    PCI_OVERFLOWS,
    PCI_STALLED,
    PRIORITY_DISCARDS,
    WIRE_BYTES,
    WIRE_ERRORS,
)


class Counter(NamedTuple):
    """The metric and labels of a driver's counter. Counters with the same metric and labels are added up."""

    metric: Metric
    labels: tuple[str, ...]  # without the label `device`


_RX, _TX = "receive", "transmit"
_PRIORITIES = tuple(map(str, range(8)))
_PER_PRIORITY = "{p}"

# Names as in the drivers of Linux 6.12. {p} is replaced by each priority, in the name and in the labels.
_DRIVERS: dict[str, dict[str, Counter]] = {
    # Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst. Left out: outbound_pci_stalled_rd and
    # _wr (percentages of the last second only) and {rx,tx}_pause_ctrl_phy (counts the same frames again).
    "mlx5_core": {
        "rx_bytes_phy": Counter(WIRE_BYTES, (_RX,)),
        "tx_bytes_phy": Counter(WIRE_BYTES, (_TX,)),
        "rx_crc_errors_phy": Counter(WIRE_ERRORS, ("crc",)),
        "rx_symbol_err_phy": Counter(WIRE_ERRORS, ("symbol",)),
        "rx_prio{p}_pause": Counter(PAUSE_FRAMES, (_RX, _PER_PRIORITY)),
        "tx_prio{p}_pause": Counter(PAUSE_FRAMES, (_TX, _PER_PRIORITY)),
        "rx_global_pause": Counter(PAUSE_FRAMES, (_RX, "global")),
        "tx_global_pause": Counter(PAUSE_FRAMES, (_TX, "global")),
        "rx_prio{p}_pause_duration": Counter(PAUSE_SECONDS, (_RX, _PER_PRIORITY)),
        "tx_prio{p}_pause_duration": Counter(PAUSE_SECONDS, (_TX, _PER_PRIORITY)),
        "rx_global_pause_duration": Counter(PAUSE_SECONDS, (_RX, "global")),
        "tx_global_pause_duration": Counter(PAUSE_SECONDS, (_TX, "global")),
        "tx_pause_storm_warning_events": Counter(PAUSE_STORMS, ("warning",)),
        "tx_pause_storm_error_events": Counter(PAUSE_STORMS, ("error",)),
        "outbound_pci_stalled_rd_events": Counter(PCI_STALLED, ("read",)),
        "outbound_pci_stalled_wr_events": Counter(PCI_STALLED, ("write",)),
        "outbound_pci_buffer_overflow": Counter(PCI_OVERFLOWS, ()),
        "rx_pci_signal_integrity": Counter(PCI_ERRORS, (_RX,)),
        "tx_pci_signal_integrity": Counter(PCI_ERRORS, (_TX,)),
        "rx_out_of_buffer": Counter(NO_BUFFER, ()),
        "rx_discards_phy": Counter(DISCARDS, (_RX,)),
        "tx_discards_phy": Counter(DISCARDS, (_TX,)),
        "rx_prio{p}_discards": Counter(PRIORITY_DISCARDS, (_PER_PRIORITY, "buffer")),
        "rx_prio{p}_buf_discard": Counter(PRIORITY_DISCARDS, (_PER_PRIORITY, "host_buffer")),
        "rx_prio{p}_cong_discard": Counter(PRIORITY_DISCARDS, (_PER_PRIORITY, "host_congestion")),
        "rx_ecn_mark": Counter(ECN_MARKED, ("network",)),
        "rx_prio{p}_marked": Counter(ECN_MARKED, ("adapter",)),
    },
    # drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c
    "bnxt_en": {
        "rx_bytes": Counter(WIRE_BYTES, (_RX,)),
        "tx_bytes": Counter(WIRE_BYTES, (_TX,)),
        "rx_fcs_err_frames": Counter(WIRE_ERRORS, ("crc",)),
        "rx_pcs_symbol_err": Counter(WIRE_ERRORS, ("symbol",)),
        "rx_pfc_ena_frames_pri{p}": Counter(PAUSE_FRAMES, (_RX, _PER_PRIORITY)),
        "tx_pfc_ena_frames_pri{p}": Counter(PAUSE_FRAMES, (_TX, _PER_PRIORITY)),
        "rx_pause_frames": Counter(PAUSE_FRAMES, (_RX, "global")),
        "tx_pause_frames": Counter(PAUSE_FRAMES, (_TX, "global")),
        "pfc_pri{p}_rx_duration_us": Counter(PAUSE_SECONDS, (_RX, _PER_PRIORITY)),
        "pfc_pri{p}_tx_duration_us": Counter(PAUSE_SECONDS, (_TX, _PER_PRIORITY)),
        "rx_stat_discard": Counter(DISCARDS, (_RX,)),
        "tx_stat_discard": Counter(DISCARDS, (_TX,)),
    },
    # drivers/net/ethernet/intel/ice/ice_ethtool.c. An XOFF frame starts a pause and an XON frame may end it. Both are
    # counted here, because the other drivers count both as pause frames too.
    "ice": {
        "rx_bytes.nic": Counter(WIRE_BYTES, (_RX,)),
        "tx_bytes.nic": Counter(WIRE_BYTES, (_TX,)),
        "rx_crc_errors.nic": Counter(WIRE_ERRORS, ("crc",)),
        "rx_priority_{p}_xon.nic": Counter(PAUSE_FRAMES, (_RX, _PER_PRIORITY)),
        "rx_priority_{p}_xoff.nic": Counter(PAUSE_FRAMES, (_RX, _PER_PRIORITY)),
        "tx_priority_{p}_xon.nic": Counter(PAUSE_FRAMES, (_TX, _PER_PRIORITY)),
        "tx_priority_{p}_xoff.nic": Counter(PAUSE_FRAMES, (_TX, _PER_PRIORITY)),
        "link_xon_rx.nic": Counter(PAUSE_FRAMES, (_RX, "global")),
        "link_xoff_rx.nic": Counter(PAUSE_FRAMES, (_RX, "global")),
        "link_xon_tx.nic": Counter(PAUSE_FRAMES, (_TX, "global")),
        "link_xoff_tx.nic": Counter(PAUSE_FRAMES, (_TX, "global")),
        "rx_dropped.nic": Counter(DISCARDS, (_RX,)),
        "tx_dropped_link_down.nic": Counter(DISCARDS, (_TX,)),
    },
    # drivers/net/ethernet/pensando/ionic/ionic_stats.c
    "ionic": {
        "octets_rx_all": Counter(WIRE_BYTES, (_RX,)),
        "octets_tx_total": Counter(WIRE_BYTES, (_TX,)),
        "frames_rx_bad_fcs": Counter(WIRE_ERRORS, ("crc",)),
        "frames_rx_pripause": Counter(PAUSE_FRAMES, (_RX, "pfc")),
        "frames_tx_pripause": Counter(PAUSE_FRAMES, (_TX, "pfc")),
        "frames_rx_pause": Counter(PAUSE_FRAMES, (_RX, "global")),
        "frames_tx_pause": Counter(PAUSE_FRAMES, (_TX, "global")),
        "rx_pripause_{p}_1us_count": Counter(PAUSE_SECONDS, (_RX, _PER_PRIORITY)),
        "tx_pripause_{p}_1us_count": Counter(PAUSE_SECONDS, (_TX, _PER_PRIORITY)),
        "rx_pause_1us_count": Counter(PAUSE_SECONDS, (_RX, "global")),
        "frames_rx_dropped": Counter(DISCARDS, (_RX,)),
    },
    # drivers/net/ethernet/amazon/ena/ena_ethtool.c
    "ena": {
        "bw_in_allowance_exceeded": Counter(ALLOWANCE, ("bandwidth_in",)),
        "bw_out_allowance_exceeded": Counter(ALLOWANCE, ("bandwidth_out",)),
        "pps_allowance_exceeded": Counter(ALLOWANCE, ("packets",)),
        "conntrack_allowance_exceeded": Counter(ALLOWANCE, ("connections",)),
        "linklocal_allowance_exceeded": Counter(ALLOWANCE, ("link_local",)),
    },
    # drivers/net/ethernet/microsoft/mana/mana_ethtool.c
    "mana": {
        "hc_rx_discards_no_wqe": Counter(NO_BUFFER, ()),
        "hc_rx_pkt_drop_phy": Counter(DISCARDS, (_RX,)),
        "hc_tx_pkt_drop_phy": Counter(DISCARDS, (_TX,)),
    },
}


def _each_priority(counters: dict[str, Counter]) -> dict[str, Counter]:
    found: dict[str, Counter] = {}
    for name, (metric, labels) in counters.items():
        for priority in _PRIORITIES if _PER_PRIORITY in name else ("",):
            filled = tuple(label.replace(_PER_PRIORITY, priority) for label in labels)
            found[name.replace(_PER_PRIORITY, priority)] = Counter(metric, filled)
    return found


DRIVER_COUNTERS: dict[str, dict[str, Counter]] = {
    driver: _each_priority(counters) for driver, counters in _DRIVERS.items()
}
"""Driver -> name of its counter -> metric and labels. Counters of queues and other details are left out."""
