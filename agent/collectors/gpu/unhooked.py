"""Device-seconds of GPUs without a ledger, by cause: busy, in use but idle, or empty."""

from __future__ import annotations

from ....ledger.reader import Ledger
from ...counters import Accumulator
from ...ledgers import Snapshot
from ...metrics.gpu import UNHOOKED_CAUSES, UNHOOKED_FAMILY
from ...metrics.ranks import DEVICE_SECONDS, NO_RANK
from .plain import SEEN_BYTES
from .target import Target
from .utilisation import Increase, split_unhooked

LONGEST_SECONDS = 60.0
"""The longest interval between two looks that can count as empty. In a longer one, the GPU may have been in use."""

_UNSEEN = (
    "the processes on GPUs",
    "a GPU is busy, or its memory is in use, but the driver lists no process: the processes run in another PID "
    "namespace",
    "give the agent the host's PID namespace (hostPID: true)",
)


class Hooked:
    """The devices named in the ledgers of live ranks."""

    def __init__(self, snapshot: Snapshot):
        self._ledgers: dict[str, list[Ledger]] = {}
        for rank in snapshot.ranks:
            uuid = normal(rank.newest.strings["uuid"])
            if uuid and rank.newest.alive:
                self._ledgers.setdefault(uuid, []).append(rank.newest)

    def has(self, uuid: str) -> bool:
        return normal(uuid) in self._ledgers

    def only(self, uuid: str) -> Ledger | None:
        """The ledger of the rank that uses the device alone, or None."""
        found = self._ledgers.get(normal(uuid), ())
        return found[0] if len(found) == 1 else None


def normal(uuid: str) -> str:
    """A uuid in lower case without its prefix: NVML writes `GPU-` before it, torch does not."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


class Unhooked:
    """The sums of one device. They do not grow while a live rank's ledger names the device."""

    __slots__ = ("_at", "_occupied", "_sums")

    def __init__(self) -> None:
        self._sums: list[float] | None = None  # in the order of UNHOOKED_CAUSES
        self._at: float | None = None  # time of the last look, if the device was unhooked then
        self._occupied = False

    def read(
        self,
        target: Target,
        node: str,
        device: str,
        increase: Increase | None,
        processes: int | None,
        used: int | None,
        *,
        hooked: bool,
        of_node: Accumulator[str],
    ) -> None:
        """Splits the time since the last look, and adds the samples. ``of_node`` has the sums of all devices by cause.

        ``increase`` is the activity in that time. ``processes`` is the number of processes on the device, ``used`` its
        used memory in bytes. Each is None if not known.
        """
        busy = increase is not None and increase.busy > 0
        held = used is not None and used >= SEEN_BYTES
        if processes == 0 and (busy or held):
            target.reading.blind(*_UNSEEN)
        occupied = bool(processes) or held or (processes is None and used is None)
        before, self._at = self._at, None if hooked else target.now
        was_occupied, self._occupied = self._occupied, occupied
        if not hooked:
            self._sums = self._sums or [0.0] * len(UNHOOKED_CAUSES)
            if before is not None:
                interval = target.now - before
                split = split_unhooked(
                    interval, increase or Increase(), occupied=occupied or was_occupied, longest=LONGEST_SECONDS
                )
                self._sums = [total + part for total, part in zip(self._sums, split, strict=True)]
                for cause, part in zip(UNHOOKED_CAUSES, split, strict=True):
                    of_node.add(cause, part)
        if self._sums:
            samples = target.reading.series(DEVICE_SECONDS)
            for cause, total in zip(UNHOOKED_CAUSES, self._sums, strict=True):
                samples[(*NO_RANK, node, device, cause, UNHOOKED_FAMILY)] = total
