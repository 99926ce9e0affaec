"""GPUs of a node that the ranks of a run see and do not use, and ranks that share one beside them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ledger.directory import Run, run_of
from ..ledger.reader import Ledger
from .devices import reason, used
from .ends import counted, named


@dataclass(frozen=True, slots=True)
class Spare:
    """What the ranks of a run use of the GPUs that they see on one node."""

    node: str
    visible: int
    used: int
    sharing: tuple[int, ...] = ()
    """Ranks on a GPU that another rank of the run uses, too."""
    launcher: str = ""

    @property
    def unused(self) -> int:
        return self.visible - self.used

    @property
    def sentence(self) -> str:
        """Such as `uses 1 of 8 visible GPUs on n1: …`."""
        if not self.unused:
            return (
                f"{named([*self.sharing])} share one GPU on {self.node}, and see no other one: does the launcher give "
                "each rank its own (`CUDA_VISIBLE_DEVICES`, `--gpus-per-task`)?"
            )
        said = f"uses {self.used} of {counted(self.visible, 'visible GPU')} on {self.node}"
        if self.sharing:
            return (
                f"{said}, and {named([*self.sharing])} share one: does each rank call "
                '`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything else?'
            )
        start = f"`torchrun --nproc-per-node={self.visible}`"
        if self.launcher == "slurm":
            start = f"`srun --ntasks-per-node={self.visible}`, or {start} in one task,"
        return f"{said}: {start} starts a rank for each"


def spare_of(run: Run, newest: Iterable[Ledger]) -> list[Spare]:
    """By node, for nodes on which some visible GPU is used by no rank, or ranks share the only one that they see.

    ``newest``: the newest ledgers of ranks of all runs. GPUs that live ranks of other runs use are not spare.
    """
    found = []
    for node, ledgers in _by_node(newest):
        own = _on_gpus(run, ledgers)  # the verdict says why the others use none
        rest = [one for one in ledgers if run_of(one) != run and one.alive and one.device_index >= 0]
        others = {_home(one) for one in rest if not reason(one)}
        visible = max((ledger.gpus_visible for ledger in own), default=0) - len(others - _homes(own))
        count = _count(own)
        at = [_home(ledger) for ledger in own]
        sharing = tuple(sorted(ledger.rank for ledger in own if at.count(_home(ledger)) > 1))
        if own and 0 < count < visible:
            found.append(Spare(node, visible, count, sharing, own[0].strings["launcher"]))
        elif visible == 1 and sharing and all(ledger.strings["uuid"] for ledger in own):
            found.append(Spare(node, visible, visible, sharing))
    return found


def full_nodes(run: Run, newest: Iterable[Ledger]) -> set[str]:
    """The nodes on which ranks of the run use every GPU that all of them see. One more rank there has none to use."""
    found = set[str]()
    for node, ledgers in _by_node(newest):
        own = _on_gpus(run, ledgers)
        visible = {ledger.gpus_visible for ledger in ledgers if run_of(ledger) == run and ledger.gpus_visible}
        if own and len(visible) == 1 and _count(own) in visible and max(visible) > 1:
            found.add(node)
    return found


def _by_node(newest: Iterable[Ledger]) -> list[tuple[str, list[Ledger]]]:
    nodes: dict[str, list[Ledger]] = {}
    for ledger in newest:
        nodes.setdefault(ledger.node, []).append(ledger)
    return sorted(nodes.items())


def _on_gpus(run: Run, ledgers: Iterable[Ledger]) -> list[Ledger]:
    return [one for one in ledgers if run_of(one) == run and one.device_index >= 0 and not reason(one)]


def _count(own: Iterable[Ledger]) -> int:
    """How many GPUs these ranks use. Ranks that see several see the same ones, so their indices can be compared."""
    also = {index for ledger in own for index in used(ledger)} - {ledger.device_index for ledger in own}
    return len(_homes(own)) + len(also)


def _homes(own: Iterable[Ledger]) -> set[str]:
    return {_home(ledger) for ledger in own}


def _home(ledger: Ledger) -> str:
    return ledger.strings["uuid"] or str(ledger.device_index)
