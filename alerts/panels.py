"""Which panel shows what an alert is about, and the numbers of panels, which links use."""

from __future__ import annotations

import zlib

OF_RUN: dict[str, str] = {
    "WhyidleLostTo": "What is to blame",
    "WhyidleUnattributed": "Where its time goes, by cause",
    "WhyidleRankFarFromDevice": "Ranks, now",
    "WhyidleRunIdle": "What each rank was doing",
    "WhyidleStartupSlow": "What each rank was doing",
    "WhyidleStepsSlower": "Step time",
    "WhyidleGoodputLow": "Where its time goes, by cause",
    "WhyidleGpuUnused": "Where its time goes, by cause",
    "WhyidleGpusSpare": "Ranks, now",
    "WhyidleRankOutOfMemory": "Ranks, now",
    "WhyidleRankCount": "Ranks, now",
    "WhyidleCrashLoop": "Where its time goes, by cause",
    "WhyidleCollectiveHung": "What each rank was doing",
    "WhyidleCollectiveStuck": "What each rank was doing",
    "WhyidleComputeStuck": "What each rank was doing",
    "WhyidleLateRank": "Late ranks, and what made them late",
    "WhyidleCheckpointSlower": "Seconds per save",
    "WhyidleRecompute": "Where its time goes, by cause",
    "WhyidleHookFailed": "Hooks",
    "WhyidleHookFaults": "Hooks",
}
"""Alert on a run -> title of the panel that shows it, on the dashboard Run."""
OF_NODE: dict[str, tuple[str, str]] = {
    "WhyidleGpuAllocatedIdle": ("node", "Busy, by GPU"),
    "WhyidleCollectorDown": ("health", "Collector runs without a result"),
    "WhyidleReadErrors": ("health", "Values that could not be read"),
    "WhyidleGpuLost": ("node", "Faults in the time range"),
    "WhyidleGpuService": ("node", "Faults over time"),
    "WhyidleGpuXidReset": ("node", "Faults over time"),
    "WhyidleGpuXid": ("node", "Faults over time"),
    "WhyidleGpuGone": ("node", "Faults in the time range"),
    "WhyidleGpuEccUncorrected": ("node-hardware", "Errors of memory and links"),
    "WhyidleGpuMemoryResetPending": ("node-hardware", "Memory that was replaced, or is due to be"),
    "WhyidleGpuHot": ("node-hardware", "Temperature"),
    "WhyidleGpuThrottled": ("node", "Clocks held down"),
    "WhyidleGpuPowerLimitLowered": ("node-hardware", "Power, and its limit"),
    "WhyidleGpuPcieDegraded": ("node-hardware", "Links, as a share of the maximum"),
    "WhyidleGpuNvlinkErrors": ("node-hardware", "Errors of memory and links"),
    "WhyidleRdmaLinkDown": ("node-hardware", "Ports"),
    "WhyidleRdmaPortGone": ("node-hardware", "Ports"),
    "WhyidleRdmaRateDegraded": ("node-hardware", "Ports"),
    "WhyidleNicLinkDown": ("node-hardware", "Interfaces"),
    "WhyidleRdmaLinkErrors": ("node-hardware", "Errors of links"),
    "WhyidleRdmaLinkFlapping": ("node-hardware", "Errors of links"),
    "WhyidleRdmaRetriesExceeded": ("node-hardware", "Operations and connections that failed"),
    "WhyidleNicErrors": ("node-hardware", "Packets lost at interfaces"),
    "WhyidleRdmaCongestion": ("node-hardware", "Congestion marks and notifications"),
    "WhyidleRdmaDiscards": ("node-hardware", "Discards, and receivers that were not ready"),
    "WhyidleRdmaTransmitWait": ("node-hardware", "Waits for credits"),
    "WhyidleNicPaused": ("node-hardware", "Pause frames, and the host behind the adapter"),
    "WhyidleNicPauseStorm": ("node-hardware", "Pause frames, and the host behind the adapter"),
    "WhyidleTcpRetransmits": ("node", "TCP segments sent again"),
    "WhyidleNfsNotResponding": ("node-hardware", "NFS: connections"),
    "WhyidleFilesystemReadOnly": ("node", "File systems that the ranks use"),
    "WhyidleNfsSlow": ("node-hardware", "NFS: time of a request"),
    "WhyidleLustreDisconnected": ("node-hardware", "Lustre file systems"),
    "WhyidleCheckpointSpaceLow": ("node", "File systems that the ranks use"),
    "WhyidleClockWrong": ("health", "Clocks with the largest error"),
}
"""Alert on a node -> the dashboard, and the title of the panel, that show it."""


def panel_id(title: str) -> int:
    """The number of a panel in its dashboard. It depends on the title only, so links survive other changes."""
    return 1 + zlib.crc32(title.encode()) % 999_999
