"""Alerts on GPUs that are broken, throttled or gone."""

from __future__ import annotations

from dataclasses import replace

from .. import xids
from ..config import Config
from ..promql import labelled, lines
from ..rule import Alert, Group, Record
from .expressions import COUNT, NODE, TARGET, by_use, fell, last_time, named, remembered, started
from .pace import paced

GPU = ("gpu", "uuid")
UNKNOWN_XID = "It is not in whyidle's table of XIDs: look at dmesg and NVIDIA's catalogue."
MEMORY_XIDS = "48|94|95|140|171|172"
"""XIDs that mean that ECC could not correct a memory error."""
SEEN = "gpu:whyidle_gpu_info:last_seconds"
LOST, BAD_ROW = "gpu:whyidle_gpu_lost:one", "gpu:whyidle_gpu_row_remap_failure:one"
HELD_DOWN = "hw_thermal|sw_thermal|hw_power_brake|reliability|board_limit"
"""Reasons for low clocks that nobody intends. Left out: a GPU at full load reaches its power cap (sw_power_cap) as
intended, and sync_boost means that another GPU has the reason."""


def groups(config: Config) -> tuple[Group, ...]:
    seen = last_time(config, SEEN, config.series("whyidle_gpu_info"), *TARGET, *GPU)
    stops = (alert for row in _broken(config) for alert in by_use(config, _alert(config, row), config.window))
    critical, *patient = paced(config, "gpu", (*stops, *(_alert(config, row) for row in faults(config))), (seen,))
    return replace(critical, rules=(*_flags(config), *critical.rules)), *patient


def _flags(config: Config) -> tuple[Record, Record]:
    """Usually no GPU has them, so the alerts that use them, critical and not, cost little."""
    lost, row = config.series("whyidle_gpu_lost"), config.series("whyidle_gpu_row_remap_failure")
    return (
        Record(LOST, f"{lost} == 1", why="GPUs that are lost."),
        Record(BAD_ROW, f"{row} == 1", why="GPUs with a row of memory that could not be replaced."),
    )


def _alert(config: Config, fault: Alert) -> Alert:
    """Completes a row of the tables below: puts `GPU <number> of <node>` and the like before its texts."""
    gpu = "GPU {{ $labels.gpu }}"
    return replace(
        fault,
        expr=named(config, fault.expr),
        summary=f"{gpu} of {NODE} {fault.summary}",
        description=f"{gpu} ({{{{ $labels.uuid }}}}) of the node at {{{{ $labels.instance }}}} {fault.description}",
    )


def faults(config: Config) -> tuple[Alert, ...]:
    return (*_xids(config), _gone(config), *_memory(config), _hot(config), *_held_back(config))


def xid_events(config: Config, matchers: str, window: str) -> str:
    """How many XIDs that meet ``matchers`` occurred within a window, by GPU and number."""
    return started(config, "whyidle_gpu_xid_events_total", matchers, window, *TARGET, *GPU, "xid")


def _broken(config: Config) -> tuple[Alert, ...]:
    """Faults that stop a run and need a technician at the node."""
    of = config.alerts
    told = xid_events(config, f'xid=~"{xids.pattern("service")}"', of.service_window)
    return (
        Alert(
            "WhyidleGpuLost",
            LOST,
            config.for_now,
            "critical",
            "is lost.",
            "no longer answers its driver, or needs a reset. No process can use it until then. Drain the node.",
        ),
        Alert(
            "WhyidleGpuService",
            f"{told}\nor\nsum {config.by(*TARGET, *GPU)} ({BAD_ROW})",
            config.for_now,
            "critical",
            "needs a technician{{ with $labels.xid }}: XID {{ . }}{{ end }}.",
            "{{ if $labels.xid }}reported XID {{ $labels.xid }}. "
            + xids.template("service", "")
            + "{{ else }}has a bad row of memory that could not be replaced by a spare one. Replace the GPU."
            + f"{{{{ end }}}} After an XID this alert stays for {of.service_window}.",
        ),
    )


def _xids(config: Config) -> tuple[Alert, ...]:
    hour = config.long_window
    hardware = f"{xids.pattern('reset')}|{xids.pattern('service')}"
    return (
        Alert(
            "WhyidleGpuXidReset",
            xid_events(config, f'xid=~"{xids.pattern("reset")}"', hour),
            "0s",
            "warning",
            "needs a reset: XID {{ $labels.xid }}.",
            f"reported XID {{{{ $labels.xid }}}}. {xids.template('reset', '')} Events within {hour}: {COUNT}.",
        ),
        Alert(
            "WhyidleGpuXid",
            xid_events(config, f'xid!~"{hardware}"', hour),
            "0s",
            "info",
            "reported XID {{ $labels.xid }}.",
            f"reported XID {{{{ $labels.xid }}}}. {xids.template('software', UNKNOWN_XID)} "
            f"Events within {hour}: {COUNT}.",
        ),
    )


def _gone(config: Config) -> Alert:
    info = config.series("whyidle_gpu_info")
    collector = config.series("whyidle_collector_up", 'collector="gpu"')
    return Alert(
        "WhyidleGpuGone",
        f"0 * (\n  ({remembered(config, SEEN)})\n"
        f"  unless {config.on(*TARGET, 'uuid')} {info}\n  unless {config.on(*TARGET)} {collector} == 0\n"
        f"  and {config.on(*TARGET)} {config.series('whyidle_build_info')}\n)",
        config.for_soon,
        "warning",
        "is gone.",
        "was there before, but the driver no longer lists it. The agent still answers. Look at the kernel's log.",
    )


def _memory(config: Config) -> tuple[Alert, ...]:
    hour = config.long_window
    uncorrected = config.series("whyidle_gpu_ecc_errors_total", 'kind="uncorrected", since="volatile"')
    told = xid_events(config, f'xid=~"{MEMORY_XIDS}"', hour)
    pending = config.series("whyidle_gpu_row_remap_pending")
    retirement = config.series("whyidle_gpu_page_retirement_pending")
    return (
        Alert(
            "WhyidleGpuEccUncorrected",
            f"sum {config.by(*TARGET, *GPU)} (increase({uncorrected}[{hour}]) > 0)\n"
            f"unless {config.on(*TARGET, *GPU)} ({told})",
            "0s",
            "warning",
            "had memory errors that ECC could not correct.",
            f"had memory errors that ECC could not correct, and reported no XID. Errors within {hour}: {COUNT}. "
            "The process that used this memory was ended, or continued with wrong data. Drain the node and reset "
            "the GPU.",
        ),
        Alert(
            "WhyidleGpuMemoryResetPending",
            f"{pending} == 1 or {retirement} == 1",
            config.for_slow,
            "warning",
            "needs a reset to take bad memory out of use.",
            "has bad memory, which is taken out of use at its next reset. Until then processes may use this memory. "
            "Reset the GPU between two jobs.",
        ),
    )


def _hot(config: Config) -> Alert:
    of = config.alerts
    chip = f"{config.series('whyidle_gpu_temperature_celsius')} > {of.gpu_celsius}"
    memory = f"{config.series('whyidle_gpu_memory_temperature_celsius')} > {of.gpu_memory_celsius}"
    return Alert(
        "WhyidleGpuHot",
        lines(labelled(chip, "part", "chip"), labelled(memory, "part", "memory")),
        config.for_soon,
        "warning",
        "is too hot: its {{ $labels.part }} has {{ $value }} °C.",
        "is too hot: its {{ $labels.part }} has {{ $value }} °C. It will lower its clocks, or stop. Check the "
        "cooling of the node.",
    )


def _held_back(config: Config) -> tuple[Alert, ...]:
    of, window, slow = config.alerts, config.window, config.for_slow
    by = config.by(*TARGET, *GPU)
    throttled = config.rate("whyidle_gpu_throttled_seconds_total", window, f'reason=~"{HELD_DOWN}"')
    width = config.series("whyidle_gpu_pcie_link_width_lanes")
    widest = config.series("whyidle_gpu_pcie_link_width_max_lanes")
    errors = config.series("whyidle_gpu_nvlink_errors_total", 'kind=~"crc_data|recovery"')
    limit = config.series("whyidle_gpu_power_limit_watts")
    return (
        Alert(
            "WhyidleGpuThrottled",
            f"max {config.by(*TARGET, *GPU, 'reason')} ({throttled} > {of.gpu_throttled_share})",
            slow,
            "warning",
            "is throttled: {{ $labels.reason }}.",
            f"ran with lowered clocks for {{{{ $value | humanizePercentage }}}} of the last {window}, for the reason "
            "{{ $labels.reason }}. Every rank that waits for it in a collective is slowed down too.",
        ),
        Alert(
            "WhyidleGpuPowerLimitLowered",
            fell(config, limit, *TARGET, *GPU),
            slow,
            "info",
            "has a lower power limit than before.",
            "has a power limit of {{ $value }} W, less than before. It is slower than GPUs with a higher limit, "
            "and other ranks wait for it.",
        ),
        Alert(
            "WhyidleGpuPcieDegraded",
            f"{width} < {widest}",
            slow,
            "warning",
            "has lost PCIe lanes.",
            "runs on {{ $value }} PCIe lanes, fewer than the GPU and its slot support. Copies to and from it "
            "take longer. Reseat the card.",
        ),
        Alert(
            "WhyidleGpuNvlinkErrors",
            f"sum {by} (increase({errors}[{slow}]) > 0) > {of.nvlink_errors}",
            slow,
            "warning",
            "has errors on its NVLinks.",
            f"had checksum errors and recoveries on its NVLinks. Within {slow}: {COUNT}.",
        ),
    )
