"""The panel that shows what an alert is about, and how panels are numbered: links lead to a panel by its number."""

from __future__ import annotations

import zlib

OF_RUN: dict[str, str] = {
    "WhyidleLostTo": "What is to blame",
    "WhyidleUnattributed": "Where its time goes, by cause",
    "WhyidleRunIdle": "What each rank was doing",
    "WhyidleStartupSlow": "What each rank was doing",
    "WhyidleStepsSlower": "Step time",
    "WhyidleGoodputLow": "Where its time goes, by cause",
    "WhyidleRanksMissing": "Ranks, now",
    "WhyidleCrashLoop": "Where its time goes, by cause",
    "WhyidleCollectiveHung": "What each rank was doing",
    "WhyidleCollectiveStuck": "What each rank was doing",
    "WhyidleComputeStuck": "What each rank was doing",
    "WhyidleLateRank": "Late ranks, and by what",
    "WhyidleCheckpointSlower": "Seconds per save",
    "WhyidleRecompute": "Where its time goes, by cause",
    "WhyidleHookFailed": "Hooks",
    "WhyidleHookFaults": "Hooks",
}
"""Alert on a run -> the panel of the dashboard Run that shows it."""
OF_NODE: dict[str, tuple[str, str]] = {
    "WhyidleGpuAllocatedIdle": ("node", "Busy, as the driver sees it"),
    "WhyidleCollectorDown": ("node", "Collectors: rounds without an answer"),
    "WhyidleReadErrors": ("node", "Values that could not be read"),
    "WhyidleGpuLost": ("node", "GPUs with a fault"),
    "WhyidleGpuService": ("node", "XID events"),
    "WhyidleGpuXidReset": ("node", "XID events"),
    "WhyidleGpuXid": ("node", "XID events"),
    "WhyidleGpuGone": ("node", "GPUs with a fault"),
    "WhyidleGpuEccUncorrected": ("node", "Memory errors"),
    "WhyidleGpuMemoryResetPending": ("node", "Memory that was replaced, or is due to be"),
    "WhyidleGpuHot": ("node", "Temperature"),
    "WhyidleGpuThrottled": ("node", "Clocks held down"),
    "WhyidleGpuPowerLimitLowered": ("node", "Power, and what it is held to"),
    "WhyidleGpuPcieDegraded": ("node", "PCIe links, of what slot and GPU allow"),
    "WhyidleGpuNvlinkErrors": ("node", "Errors on PCIe and NVLink"),
    "WhyidleRdmaLinkDown": ("node", "Links"),
    "WhyidleRdmaPortGone": ("node", "Ports"),
    "WhyidleRdmaRateDegraded": ("node", "Ports"),
    "WhyidleNicLinkDown": ("node", "Links of interfaces"),
    "WhyidleRdmaLinkErrors": ("node", "Errors of the link"),
    "WhyidleRdmaLinkFlapping": ("node", "Errors of the link"),
    "WhyidleRdmaRetriesExceeded": ("node", "Connections given up"),
    "WhyidleNicErrors": ("node", "Packets lost at interfaces"),
    "WhyidleRdmaCongestion": ("node", "Congestion marks and notifications"),
    "WhyidleRdmaDiscards": ("node", "Discards, and receivers that were not ready"),
    "WhyidleRdmaTransmitWait": ("node", "Waits for credits"),
    "WhyidleNicPaused": ("node", "Pause frames"),
    "WhyidleNicPauseStorm": ("node", "The host behind the adapter"),
    "WhyidleTcpRetransmits": ("node", "TCP segments sent again"),
    "WhyidleNfsNotResponding": ("node", "NFS: connections"),
    "WhyidleFilesystemReadOnly": ("node", "Room on them"),
    "WhyidleNfsSlow": ("node", "NFS: time of a request"),
    "WhyidleLustreDisconnected": ("node", "Lustre: connections by state"),
    "WhyidleCheckpointSpaceLow": ("node", "Room on them"),
    "WhyidleClockWrong": ("node", "Clock against Prometheus"),
}
"""Alert on a node -> the dashboard, and its panel, that show it."""


def panel_id(title: str) -> int:
    """The number of a panel in its dashboard. It depends on the title alone, so that a link outlives other changes."""
    return 1 + zlib.crc32(title.encode()) % 999_999
