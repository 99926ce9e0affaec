"""Which node a run should go on without, and the commands with which a scheduler stops using it. Pure functions.

A node is handed off only if the verdict is about waits for its ranks, and if that is confirmed: by faults that the
node's own counters show, or because its ranks were late in nearly every step of a long run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..ledger.text import printable
from ..verdict.case import VERDICT_SHARE
from ..verdict.ends import named
from .advice.case import Case
from .advice.stragglers import RULES, not_its_device

FAMILIES = ("straggler", "storage", "cpu")
"""The verdicts that a node can be the reason of."""
FEWEST_STEPS, SHORTEST_SECONDS = 20, 5.0
ON_ONE_NODE = 0.75
"""A node is to blame if its ranks have this part of what others waited for late ranks."""
STEADY, STEADY_STEPS, STEADY_MINUTES = 0.75, 100, 15
"""Without counters: a node is slow if it was late in this part of all steps or minutes, and there were this many."""
LONGEST_REASON = 240
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
"""Slurm reads other characters as a list or a range of nodes, and kubectl a leading dash as an option."""
_EVERY_NODE = "all"
_DRAIN = next(rule for rule in RULES if rule.id == "straggler.drain")

UNDO = {"slurm": "scontrol update NodeName={node} State=RESUME", "kubernetes": "kubectl uncordon {node}"}


class NoHandOff(Exception):
    """There is nothing to hand off. The message says why."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """The node that made a run late."""

    node: str
    ranks: tuple[int, ...]
    share: float
    """The share of all ranks' time that others waited for this node's ranks."""
    family: str
    """What made them late, as in the verdict."""
    looks: int
    late: int
    """In how many of the looks this node was late. Looks are steps or minutes."""
    unit: str = "steps"

    @property
    def sentence(self) -> str:
        late = {"straggler": "their compute takes longer", "storage": "their storage is slower"}
        why = late.get(self.family, "they lack CPU time")
        return f"other ranks wait {100 * self.share:.0f} % of the time for {named([*self.ranks])}, because {why}"

    def confirmed(self, faults: Sequence[str]) -> str:
        """Why it is certain; empty if it is not. ``faults``: what the node's own counters show."""
        if faults:
            return "; ".join(faults)
        enough = STEADY_STEPS if self.unit == "steps" else STEADY_MINUTES
        return self.said if self.looks >= enough and self.late >= STEADY * self.looks else ""

    @property
    def said(self) -> str:
        return f"late in {self.late} of {self.looks} {self.unit}"


def blamed(case: Case) -> Blamed:
    """The node to hand off. Raises NoHandOff."""
    steps = max((rank.steps for rank in case.ranks), default=0)
    seconds = max((rank.wall for rank in case.ranks), default=0.0)
    if steps < FEWEST_STEPS or seconds < SHORTEST_SECONDS:
        raise NoHandOff(
            f"the run is too short to judge: {steps} steps in {seconds:.1f} s (at least {FEWEST_STEPS} steps and"
            f" {SHORTEST_SECONDS:.0f} s)"
        )
    if case.too_short is not None:
        raise NoHandOff(f"the run is {case.too_short.sentence}")
    if not case.verdict:
        raise NoHandOff("no rank has begun its first step")
    if case.nodes < 2:
        raise NoHandOff("all ranks with ledgers here are on one node, so no node is slower than others")
    family = case.verdict["family"]
    if family not in FAMILIES:
        raise NoHandOff(f"the verdict is {family}: it is not about one node")
    if case.verdict["take_turns"]:
        raise NoHandOff("ranks are late in turns, so it is not one node")
    late = [one for one in case.verdict["late_ranks"] if one["family"] == family]
    whole = sum(one["share"] for one in late)
    if whole < VERDICT_SHARE:
        raise NoHandOff(f"ranks wait {100 * whole:.0f} % of the time for late ranks: less than {VERDICT_SHARE:.0%}")
    shares: dict[str, float] = {}
    for one in late:
        shares[one["node"]] = shares.get(one["node"], 0.0) + one["share"]
    node = max(shares, key=lambda name: shares[name])
    if shares[node] < ON_ONE_NODE * whole:
        raise NoHandOff(f"late ranks are on several nodes: {', '.join(sorted(name or '?' for name in shares))}")
    if not node:
        raise NoHandOff("the late ranks have no ledgers here, so it is not known on which node they are")
    if family == "straggler" and (why := not_its_device(case, late)):
        raise NoHandOff(why)
    if family == "straggler" and _DRAIN.find(case) is None:
        raise NoHandOff("ranks are late because of what they do (evaluation, generation, work now and then)")
    ranks = tuple(one["rank"] for one in late if one["node"] == node)
    # Several of them may be late in the same steps: the node was late in at least as many as the latest of its ranks.
    late_steps = max(rank.late_steps for rank in case.ranks if rank.rank in ranks)
    return Blamed(node, ranks, shares[node], family, steps, min(steps, late_steps))


def reason(found: Blamed, run: str, confirmed: str) -> str:
    """Our evidence as one line, without quotes."""
    text = printable(f"whyidle: run {run}: {found.sentence}; confirmed: {confirmed}")
    return text.replace('"', "").replace("'", "")[:LONGEST_REASON]


def one_node(name: str) -> str:
    """The name. Raises NoHandOff if it might mean something else than one node."""
    if not NODE_NAME.fullmatch(name) or name.lower() == _EVERY_NODE:
        raise NoHandOff(f"{printable(name)!r} is not the name of one node: give it with --node")
    return name


def commands(scheduler: str, node: str, why: str) -> list[list[str]]:
    """The commands that stop a scheduler from using a node, whose name `one_node` has checked."""
    if scheduler == "slurm":
        return [["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={why}"]]
    return [
        ["kubectl", "cordon", node],
        ["kubectl", "annotate", "node", node, "--overwrite", f"whyidle/cordon-reason={why}"],
    ]
