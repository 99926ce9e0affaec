"""The table of faults for `--inject`, and how much of a fault the accounting has found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .truth import Trace, exposed, happened


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    ``truth(trace, ranks, all_ranks)`` returns the seconds that the fault cost the training loops, by the job's own
    records. ``causes`` are the causes under which the ledgers should count them: those of the ranks with the fault, or
    with ``on_others`` those of the other ranks.
    """

    name: str
    delay_ms: float
    what: str  # with the delay in front: "120 ms …"
    family: str  # what the verdict must name
    causes: tuple[str, ...] = ()
    on_others: bool = False
    ranks: str = "any"  # any, all or one
    save_every: int = 64  # steps
    truth: Callable[[Trace, Sequence[int], int], float] = lambda trace, ranks, world: 0.0


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("none", 0.0, "", ""),
        Kind(
            "storage",
            180.0,
            "in a read of the worker for each batch",
            "storage",
            ("data_read",),
            truth=lambda trace, ranks, world: exposed(trace, ranks),
        ),
        Kind(
            "cpu",
            150.0,
            "CPU time in the worker for each batch",
            "cpu",
            ("data_cpu", "data_queue"),
            truth=lambda trace, ranks, world: exposed(trace, ranks),
        ),
        Kind(
            "network",
            240.0,
            "longer for each all-reduce of gradients, after every rank has entered it",
            "network",
            ("network", "collective"),
            ranks="all",
            truth=lambda trace, ranks, world: happened(trace, ranks),
        ),
        Kind(
            "straggler",
            260.0,
            "more compute in each step",
            "straggler",
            ("straggler",),
            on_others=True,
            ranks="one",
            truth=lambda trace, ranks, world: happened(trace, ranks) * (world - 1),
        ),
        Kind(
            "checkpoint",
            1000.0,
            "sleep in the write of each checkpoint, one in 8 steps",
            "storage",
            ("checkpoint_write",),
            save_every=8,
            truth=lambda trace, ranks, world: happened(trace, ranks),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault, on some of the ranks of a run."""

    kind: Kind
    ranks: tuple[int, ...]
    world: int

    @property
    def label(self) -> str:
        """The description for the view and the text; empty without a fault."""
        if self.kind.name == "none":
            return ""
        whose = "all ranks" if len(self.ranks) == self.world else f"rank {', '.join(map(str, self.ranks))}"
        return f"INJECTED {self.kind.name}: {self.kind.delay_ms:.0f} ms {self.kind.what}, on {whose}"

    def job_arguments(self) -> list[str]:
        """The arguments for job.py."""
        return [
            "--inject", self.kind.name,
            "--inject-ranks", ",".join(map(str, self.ranks)),
            "--delay-ms", str(self.kind.delay_ms),
            "--save-every", str(self.kind.save_every),
        ]  # fmt: skip

    def outcome(self, report: dict[str, Any], trace: Trace) -> dict[str, object]:
        """The field ``injected`` of the JSON: the fault, the seconds it cost, and the seconds that the report shows."""
        recovered = sum(
            entry["seconds"][cause]
            for entry in report["per_rank"]
            if (entry["rank"] in self.ranks) != self.kind.on_others
            for cause in self.kind.causes
        )
        return {
            "kind": self.kind.name,
            "ranks": list(self.ranks),
            "delay_ms": self.kind.delay_ms,
            "family": self.kind.family or None,
            "causes": list(self.kind.causes),
            "seconds": self.kind.truth(trace, self.ranks, self.world),
            "recovered_seconds": recovered,
        }


def choose(name: str, wanted: str | None, world: int, delay_ms: float | None = None) -> Injection:
    """The fault ``name`` on the ranks ``wanted``: `all`, a number, or None for the usual ranks of this fault.

    ``delay_ms`` replaces the usual delay of the fault, in milliseconds. Raises ValueError with a sentence.
    """
    kind = KINDS[name]
    everyone = tuple(range(world))
    if name == "none":
        if wanted is not None:
            raise ValueError("--inject-rank needs --inject")
        if delay_ms is not None:
            raise ValueError("--inject-delay needs --inject")
        return Injection(kind, (), world)
    if delay_ms is not None:
        kind = replace(kind, delay_ms=delay_ms)
    if kind.ranks != "any" and world < 2:
        raise ValueError(f"--inject {name} needs at least 2 ranks: one rank waits for nobody")
    if wanted is None:
        return Injection(kind, everyone[-1:] if kind.ranks == "one" else everyone, world)
    if wanted == "all":
        if kind.ranks == "one":
            raise ValueError(f"--inject {name} makes one rank late: pass the number of that rank with --inject-rank")
        return Injection(kind, everyone, world)
    if not (wanted.isascii() and wanted.isdigit()):
        raise ValueError(f"--inject-rank {wanted}: give 'all' or the number of a rank")
    if int(wanted) not in everyone:
        raise ValueError(f"--inject-rank {wanted}: the ranks are 0 to {world - 1}")
    if kind.ranks == "all" and world > 1:
        raise ValueError(f"--inject {name} slows a transfer, in which all ranks take part: leave out --inject-rank")
    return Injection(kind, (int(wanted),), world)


def outcome_text(injection: Injection, outcome: dict[str, Any]) -> str:
    """A paragraph below the verdict that compares the fault with the report."""
    if not injection.label:
        return ""
    causes = " + ".join(outcome["causes"])
    return (
        f"{injection.label}\n"
        f"         by the job's own clock it cost {outcome['seconds']:.2f} s; "
        f"the ledgers show {outcome['recovered_seconds']:.2f} s of {causes}"
        f"{' on the other ranks' if injection.kind.on_others else ''}\n"
    )
