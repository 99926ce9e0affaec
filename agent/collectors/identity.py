"""The collector `identity`: which Slurm job or pod a rank, a GPU or another device belongs to."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from ...ledger.reader import Ledger
from ..collector import Options
from ..files import KeptFiles, Roots, Unreadable, names, read, word
from ..kubelet.owners import Owners, Pod
from ..kubelet.pod_resources import Listing, PodResources
from ..ledgers import rank_labels, rank_name
from ..metrics.identity import ALLOCATABLE, ALLOCATED, DEVICE_POD, GPU_POD, NODE, RANK_POD, RANK_SLURM
from ..parsers import kubernetes, slurm
from ..parsers.environ import environ
from ..parsers.kubernetes import Claim
from ..processes.rank_processes import RankProcess
from ..reading import Labels, Reading

VARIABLES: frozenset[str] = frozenset((*slurm.VARIABLES, *kubernetes.VARIABLES))
"""The only variables that are taken from the environment of a rank."""
MOST_CGROUP_BYTES = 64 << 10

_LIST, _ALLOCATABLE = "pod-resources List", "pod-resources GetAllocatableResources"

PODS_HIDDEN = (
    "which pod has which GPU",
    "the kubelet's pod-resources socket belongs to root",
    "run the agent as user 0; it needs no capability for this",
)
ENVIRONMENTS_HIDDEN = (
    "Slurm jobs' names and users, and pods' names, of ranks whose environment may not be read",
    "a process shows its environment only to its own user, if that user has at least the same capabilities, and "
    "to CAP_SYS_PTRACE",
    "run the agent as the user of the ranks, or as user 0 with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
)


def create(options: Options) -> IdentityCollector:
    return IdentityCollector(options)


@dataclass(slots=True)
class _Known:
    """What a rank's process reveals about itself. This does not change, so it is read once."""

    slurm: Labels | None
    claim: Claim
    pod_uid: str
    container_id: str
    hidden: bool  # the agent has no permission to read its environment
    whole: bool  # everything else could be read
    basis: tuple[object, object] | None = None  # the inputs from which `pod` was derived
    pod: Labels | None = None


class IdentityCollector:
    """Reads a rank's environment and cgroup once, and asks the kubelet every few seconds."""

    def __init__(self, options: Options):
        self._roots = options.roots
        self._processes = options.processes
        self._arch = os.uname().machine
        self._files = KeptFiles()
        self._kubelet = PodResources(options.roots)
        self._listing: Listing | None = None
        self._owners: Owners | None = None
        self._logs = _PodLogs(options.roots, self._files)
        self._known: dict[tuple[str, int, int], _Known] = {}

    def collect(self, reading: Reading) -> None:
        self._node(reading)
        self._devices(reading)
        self._ranks(reading)

    def _node(self, reading: Reading) -> None:
        node = os.environ.get("WHYIDLE_NODE") or os.environ.get("NODE_NAME") or self._kernel("hostname", reading)
        kernel = self._kernel("osrelease", reading)
        if node and kernel:
            reading.add(NODE, (node, kernel, self._arch), 1)

    def _kernel(self, name: str, reading: Reading) -> str:
        try:
            text = word(self._files.attribute(f"{self._roots.procfs}/sys/kernel/{name}"))
            if " " in text:
                raise Unreadable("garbage")
        except Unreadable as failure:
            reading.error("", f"sys/kernel/{name}", failure.reason)
            return ""
        return text

    def _devices(self, reading: Reading) -> None:
        listing = self._ask(reading)
        if listing is not self._listing:
            self._listing = listing
            self._owners = Owners(listing, _minors(self._roots, listing)) if listing else None
        if not listing or not self._owners:
            return
        reading.series(GPU_POD).update(self._owners.gpus)
        reading.series(DEVICE_POD).update(self._owners.others)
        for resource, count in self._owners.allocated.items():
            reading.add(ALLOCATED, (resource,), count)
        for resource, count in (listing.allocatable or {}).items():
            reading.add(ALLOCATABLE, (resource,), count)
        if listing.failure:
            reading.error("", _ALLOCATABLE, listing.failure)
        if self._owners.left_out:
            reading.error("", _LIST, "huge")

    def _ask(self, reading: Reading) -> Listing | None:
        try:
            return self._kubelet.look()
        except Unreadable as failure:
            if failure.reason == "denied":
                reading.blind(*PODS_HIDDEN)
            else:
                reading.error("", _LIST, failure.reason)
            return None

    def _ranks(self, reading: Reading) -> None:
        known: dict[tuple[str, int, int], _Known] = {}
        try:
            processes = self._processes.look()
        except TimeoutError:
            reading.error("", "processes of ranks", "deadline")
            processes = []
        for process in processes:
            ledger = process.ledger
            # A process keeps its ledger open until it ends, so the same ledger and pid mean the same process.
            key = (ledger.path, ledger.created_unix_ns, process.pid)
            about = self._known.get(key) or self._learn(process, reading)
            if about is None:
                continue
            if about.whole:
                known[key] = about
            rank = rank_labels(ledger)
            if about.slurm:
                reading.add(RANK_SLURM, (*rank, *about.slurm), 1)
            if pod := self._pod(about, ledger, reading):
                reading.add(RANK_POD, (*rank, *pod), 1)
        self._known = known
        if any(about.hidden for about in known.values()):
            reading.blind(*ENVIRONMENTS_HIDDEN)

    def _learn(self, process: RankProcess, reading: Reading) -> _Known | None:
        """Reads the identity of a process. Returns None if the process has ended meanwhile."""
        folder = f"{self._roots.procfs}/{process.pid}"
        failures: dict[str, str] = {}
        try:
            cgroup = _cgroup(folder + "/cgroup")
        except Unreadable as failure:
            cgroup, failures["cgroup"] = b"", failure.reason
        try:
            environment = environ(read(folder + "/environ"), VARIABLES)
        except Unreadable as failure:
            environment, failures["environ"] = {}, failure.reason
        if failures and not os.path.exists(folder):
            return None
        hidden = failures.get("environ") == "denied"
        if hidden:
            del failures["environ"]
        for file, reason in failures.items():
            reading.error(rank_name(process.ledger), file, reason)
        uid, container_id = kubernetes.pod_cgroup(cgroup)
        job = slurm.slurm_job(environment, cgroup)
        return _Known(job, kubernetes.claim(environment), uid, container_id, hidden, whole=not failures)

    def _pod(self, about: _Known, ledger: Ledger, reading: Reading) -> Labels | None:
        """The labels of the rank's pod. They are derived again only when one of the sources has changed."""
        if not (about.pod_uid or about.claim.in_kubernetes):
            return None
        logs = self._logs.look(reading) if about.pod_uid else {}
        basis = (self._owners, logs)
        if about.basis is None or about.basis[0] is not basis[0] or about.basis[1] is not basis[1]:
            about.basis = basis
            about.pod = _concluded(about, ledger.strings["uuid"], self._owners, logs)
        return about.pod


def _cgroup(path: str) -> bytes:
    """The content of ``/proc/<pid>/cgroup``: lines of hierarchy:controllers:path. Raises Unreadable."""
    text = read(path, MOST_CGROUP_BYTES)
    if not text:
        raise Unreadable("empty", path)
    if any(line.count(b":") < 2 or b":/" not in line for line in text.splitlines()):
        raise Unreadable("garbage", path)
    return text


def _concluded(about: _Known, uuid: str, owners: Owners | None, logs: dict[str, Pod]) -> Labels | None:
    """The labels of the rank's pod, from the best evidence available, or None."""
    claim = about.claim
    if about.pod_uid and claim.uid and claim.uid != about.pod_uid:
        claim = Claim(in_kubernetes=True)  # the environment belongs to another pod
    evidence, pod = "cgroup", logs.get(about.pod_uid)
    if not pod and owners and uuid:
        evidence, pod = "pod_resources", owners.of_gpu(uuid, claim)
    if not pod and claim.pod:
        evidence, pod = "downward_api", (claim.namespace, claim.pod)
    if not pod and owners:
        evidence, pod = "hostname", owners.of_hostname(claim.hostname)
    if not pod:
        if not about.pod_uid:
            return None
        evidence, pod = "cgroup", ("", "")
    container = owners.container_of(pod) if owners else ""
    return (*pod, container, about.pod_uid or claim.uid, about.container_id, claim.workload, evidence)


class _PodLogs:
    """The names of pods by uid, from the names of the kubelet's log directories."""

    def __init__(self, roots: Roots, kept: KeptFiles):
        self._path = os.path.join(roots.rootfs, "var/log/pods")
        self._files = kept
        self._listed: tuple[str, ...] | None = None
        self._pods: dict[str, Pod] = {}

    def look(self, reading: Reading) -> dict[str, Pod]:
        """Pods by uid. Returns the same object as long as nothing changes."""
        try:
            listed = self._files.names(self._path)
        except Unreadable as failure:
            # It is normal that the directory is not mounted into the agent's container, or not readable.
            if failure.reason not in ("missing", "denied"):
                reading.error("", "var/log/pods", failure.reason)
            listed = ()
        if listed != self._listed:
            self._listed = listed
            self._pods = dict(filter(None, map(kubernetes.pod_of_log_directory, listed)))
        return self._pods


def _minors(roots: Roots, listing: Listing) -> dict[int, str]:
    """UUIDs of GPUs by the minor number of their device file. Empty unless the kubelet names devices by that number."""
    if not any(kubernetes.names_a_minor(held.device) for held in listing.pods.allocations):
        return {}
    folder = roots.procfs + "/driver/nvidia/gpus"
    # GPUs that cannot be read here keep the kubelet's names.
    with suppress(Unreadable):
        return dict(filter(None, (_minor(f"{folder}/{gpu}/information") for gpu in names(folder))))
    return {}


def _minor(path: str) -> tuple[int, str] | None:
    with suppress(Unreadable):
        return kubernetes.minor_and_uuid(read(path, MOST_CGROUP_BYTES))
