"""Alerts on links that are down, slower than before, congested, or that have errors."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..rule import Alert, Group, Record
from .expressions import COUNT, NODE, RATE, TARGET, booted, by_use, fell, last_time, more_than, named, remembered
from .pace import paced

PORT = (*TARGET, "device", "port")
INTERFACE = (*TARGET, "device")


PORT_UP, INTERFACE_UP = "port:whyidle_rdma_port_up:last_seconds", "device:whyidle_nic_up:last_seconds"
PORT_DOWN, PORT_LOST = "port:whyidle_rdma_port_up:zero", "port:whyidle_rdma_port_lost:last_seconds"


def groups(config: Config) -> tuple[Group, ...]:
    rows = (*_degraded(config), *_errors(config), *_congestion(config), *_pauses(config), *_tcp(config))
    # A node that is drained may take its links down before it reboots.
    down = (alert for row in _links(config) for alert in by_use(config, _alert(config, row), "", config.for_slow))
    critical, *patient = paced(config, "network", (*down, *(_alert(config, row) for row in rows)), _records(config))
    return replace(critical, rules=(*_not_up(config), *critical.rules)), *patient


def _records(config: Config) -> tuple[Record, ...]:
    return (
        last_time(config, PORT_UP, f"{config.series('whyidle_rdma_port_up')} == 1", *PORT),
        last_time(config, INTERFACE_UP, f"{config.series('whyidle_nic_up')} == 1", *INTERFACE),
    )


def _not_up(config: Config) -> tuple[Record, Record]:
    """Usually there are no such ports, so the alerts that use them cost little."""
    up = config.series("whyidle_rdma_port_up")
    return (
        Record(PORT_DOWN, f"{up} == 0", why="Ports that are down."),
        Record(
            PORT_LOST,
            f"{remembered(config, PORT_UP)}\nunless {config.on(*PORT)} {up} == 1",
            why="Ports that were up before and are not up now.",
        ),
    )


def _alert(config: Config, row: Alert) -> Alert:
    """Completes a row of the tables below: replaces {port}, {count} and {rate} in its texts."""
    words = {"{port}": "port {{ $labels.port }} of {{ $labels.device }}", "{count}": COUNT, "{rate}": RATE}

    def fill(text: str) -> str:
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        return text

    return replace(
        row,
        expr=named(config, row.expr),
        summary=f"{NODE}: " + fill(row.summary),
        description="On the node at {{ $labels.instance }} " + fill(row.description),
    )


def _links(config: Config) -> tuple[Alert, ...]:
    """Links that are down or gone. This stops a run that uses the node."""
    collector = config.series("whyidle_collector_up", 'collector="rdma"')
    booting = f"unless {config.on(*TARGET)} ({booted(config)})"
    return (
        Alert(
            "WhyidleRdmaLinkDown",
            f"{PORT_DOWN}\nand {config.on(*PORT)} {PORT_LOST}\n{booting}",
            config.for_now,
            "critical",
            "{port} is down.",
            "{port} was up before and cannot carry data now. Jobs that use it stall, or fail after their last "
            "retry. Check the cable and the other end.",
        ),
        Alert(
            "WhyidleRdmaPortGone",
            f"0 * {PORT_LOST}\n"
            f"unless {config.on(*PORT)} {PORT_DOWN}\nunless {config.on(*TARGET)} {collector} == 0\n{booting}\n"
            f"and {config.on(*TARGET)} {config.series('whyidle_build_info')}",
            config.for_soon,
            "critical",
            "{port} is gone.",
            "{port} was up before, but the kernel no longer lists it. The agent still answers. Look at the "
            "kernel's log.",
        ),
    )


def _degraded(config: Config) -> tuple[Alert, ...]:
    rate = config.series("whyidle_rdma_port_rate_bytes_per_second")
    interface = config.series("whyidle_nic_up")
    physical = config.series("whyidle_nic_info", 'kind="physical"')
    bits = "{{ $value | humanize }}B/s"
    return (
        Alert(
            "WhyidleRdmaRateDegraded",
            fell(config, rate, *PORT),
            config.for_soon,
            "warning",
            "{port} is slower than it was.",
            f"{{port}} came up with {bits}, less than before: it lost lanes or speed. A ring is as fast as its "
            "slowest link.",
        ),
        Alert(
            "WhyidleNicLinkDown",
            f"{interface} == 0\nand {config.on(*INTERFACE)} ({remembered(config, INTERFACE_UP)})\n"
            f"and {config.on(*INTERFACE)} {physical}\nunless {config.on(*TARGET)} ({booted(config)})",
            config.for_now,
            "warning",
            "{{ $labels.device }} is down.",
            "the interface {{ $labels.device }} was up before and is down now. Check the cable and the other end.",
        ),
    )


def _errors(config: Config) -> tuple[Alert, ...]:
    of, slow, hour = config.alerts, config.for_slow, config.long_window
    counters = ("whyidle_rdma_receive_errors_total", "whyidle_rdma_symbol_errors_total")
    port_errors = f"sum {config.by(*PORT)} ({config.rate('whyidle_rdma_port_errors_total', slow)} > 0)"
    rates = [f"{config.rate(metric, slow)} > {of.link_errors_per_second}" for metric in counters]
    rates.append(f"{port_errors} > {of.link_errors_per_second}")
    downed = config.series("whyidle_rdma_link_downed_total")
    recovered = config.series("whyidle_rdma_link_recoveries_total")
    exceeded = config.series("whyidle_rdma_retries_exceeded_total")
    both = f"sum {config.by(*INTERFACE)} ({config.rate('whyidle_nic_errors_total', slow)})"
    wire = f"sum {config.by(*INTERFACE)} ({config.rate('whyidle_nic_wire_errors_total', slow)})"
    return (
        Alert(
            "WhyidleRdmaLinkErrors",
            "\nor ".join(rates),
            slow,
            "warning",
            "{port} has errors on its link.",
            "{port} has {rate} errors a second. The cause is a bad cable, transceiver or switch port. Lost "
            "packets are sent again after a timeout.",
        ),
        Alert(
            "WhyidleRdmaLinkFlapping",
            f"{more_than(downed, hour, of.link_flaps)}\nor {more_than(recovered, hour, of.link_flaps)}",
            "0s",
            "warning",
            "{port} goes down and comes up again.",
            f"{{port}} went down or needed error recovery. Times within {hour}: {{count}}. Traffic stops each time.",
        ),
        Alert(
            "WhyidleRdmaRetriesExceeded",
            f"sum {config.by(*PORT)} (increase({exceeded}[{hour}]) > 0)",
            "0s",
            "warning",
            "{port} gave up on a peer.",
            f"queue pairs of {{port}} gave up after their last retry. Within {hour}: {{count}}. Each of these "
            "breaks a connection, and usually ends the job.",
        ),
        Alert(
            "WhyidleNicErrors",
            f"{both} > {of.link_errors_per_second}\nor {wire} > {of.link_errors_per_second}",
            slow,
            "warning",
            "{{ $labels.device }} receives bad packets.",
            "the interface {{ $labels.device }} has {rate} bad packets a second. Check the cable, transceiver "
            "and switch port.",
        ),
    )


def _congestion(config: Config) -> tuple[Alert, ...]:
    of, window = config.alerts, config.window

    def total(metric: str) -> str:
        return f"sum {config.by(*PORT)} ({config.rate(metric, window)})"

    def marked(metric: str) -> str:
        """Ports without marks are left out first: usually these are all, and the rest costs little then."""
        return f"sum {config.by(*PORT)} ({config.rate(metric, window)} > 0)"

    discards = config.rate("whyidle_rdma_transmit_discards_total", window)
    ticks = config.rate("whyidle_rdma_transmit_wait_ticks_total", window)
    sent = total("whyidle_rdma_transmit_bytes_total")
    sending = f"{config.on(*PORT)} ({sent} > {of.transmit_wait_bytes_per_second:g})"
    waits = f"({ticks} > {config.transmit_wait_ticks_per_second:g})\n  / {sending}"
    middle = f"quantile {config.by()} (0.5, {ticks}\n  / {sending})"
    return (
        Alert(
            "WhyidleRdmaCongestion",
            f"{marked('whyidle_rdma_ecn_marked_packets_total')}\n/ {total('whyidle_rdma_receive_packets_total')} "
            f"> {of.congestion_share}\n"
            f"or\n{marked('whyidle_rdma_cnp_handled_total')}\n/ {total('whyidle_rdma_transmit_packets_total')} "
            f"> {of.congestion_share}",
            config.for_slow,
            "warning",
            "{port} has congestion.",
            "{{ $value | humanizePercentage }} of the packets of {port} were marked for congestion, or were "
            "answered with a notification to slow down.",
        ),
        Alert(
            "WhyidleRdmaDiscards",
            f"{discards} > {of.discards_per_second}",
            config.for_slow,
            "warning",
            "{port} discards packets.",
            "{port} discards {rate} packets a second that it should send: its link is down, or the receiver "
            "accepts no packets for too long.",
        ),
        Alert(
            "WhyidleRdmaTransmitWait",
            f"{waits}\n> {config.on()} group_left {of.transmit_wait_factor:g} * {middle}",
            config.for_slow,
            "info",
            "{port} waits for credits much longer than other ports.",
            f"{{port}} has waited for credits more than {of.transmit_wait_factor:g} times as long per byte "
            "as the median port that sends. The receiver at the other end does not keep up.",
        ),
    )


def _pauses(config: Config) -> tuple[Alert, ...]:
    of = config.alerts
    by = config.by(*INTERFACE, "direction")
    paused = f"sum {by} ({config.rate('whyidle_nic_pause_seconds_total', config.window)})"
    frames = f"sum {by} ({config.rate('whyidle_nic_pause_frames_total', config.window)})"
    storms = config.series("whyidle_nic_pause_storms_total")
    who = '{{ if eq $labels.direction "receive" }}the network stops this node{{ else }}this node stops others{{ end }}'
    return (
        Alert(
            "WhyidleNicPaused",
            f"{paused} > {of.pause_share}\n"
            f"or\n{frames} > {of.pause_frames_per_second:g}\nunless {config.on(*INTERFACE)} {paused}",
            config.for_slow,
            "warning",
            f"pause frames on {{{{ $labels.device }}}}: {who}.",
            f"the interface {{{{ $labels.device }}}} {{{{ if le $value 1.0 }}}}could not send because of pause "
            "frames for "
            f"{{{{ $value | humanizePercentage }}}} of the last {config.window}{{{{ else }}}}sees {{rate}} pause "
            f"frames a second{{{{ end }}}}: {who}.",
        ),
        Alert(
            "WhyidleNicPauseStorm",
            f"sum {config.by(*INTERFACE, 'level')} (increase({storms}[{config.long_window}])) > 0",
            "0s",
            "warning",
            "{{ $labels.device }} paused the network for too long.",
            "the interface {{ $labels.device }} stopped others for longer than its limit ({{ $labels.level "
            "}}): the host or its PCIe does not accept packets, and everything that sends to this node stops. "
            "Drain the node.",
        ),
    )


def _tcp(config: Config) -> tuple[Alert, ...]:
    of = config.alerts
    again = config.rate("whyidle_tcp_retransmits_total", config.window)
    sent = config.rate("whyidle_tcp_sent_segments_total", config.window)
    return (
        Alert(
            "WhyidleTcpRetransmits",
            f"{again}\n/ ({sent} > {of.tcp_segments_per_second:g})\n> {of.tcp_retransmit_share}",
            config.for_slow,
            "info",
            "TCP sends {{ $value | humanizePercentage }} of its segments again.",
            "{{ $value | humanizePercentage }} of the TCP segments from the network namespace {{ $labels.namespace }} "
            "are sent again: the network loses packets.",
        ),
    )
