"""The answer in one look: verdict, share, evidence, who is late."""

from __future__ import annotations

from ...alerts.config import DEFAULT
from ...ledger.causes import FAMILIES
from .. import variables as v
from ..colours import FAMILY_COLOUR, FAMILY_WORDS, RED
from ..vocabulary import (
    GOOD,
    Panel,
    Section,
    confirmed,
    encode,
    falling,
    line,
    now,
    over_range,
    query,
    series_to,
    share,
    stat,
    steps,
    timeline,
    words,
)
from ..vocabulary import section as _section
from .parts import MOST_RANKS

BY_RUN = f"{v.CLUSTER_LABEL}, owner, run"
VERDICT = "run_family:whyidle_verdict:ratio${window}"
EVIDENCE = {family: f"node:whyidle_{family}_evidence:max5m" for family in ("network", "storage", "cpu")}


def section() -> Section:
    return _section(
        "What does it lose its time to?",
        line(4, _verdict(), _share(), _evidence(), _goodput(), _late_rank()),
        line(3, *_figures()),
        line(9, _causes()),
        line(8, _charged(), _signals()),
    )


def _verdict() -> Panel:
    return stat(
        "It loses most to",
        """What takes most of its time, if that is a tenth of it; else it is fine and computes. Waits for a late rank
        count for what made it late.""",
        query(encode(VERDICT, v.RUN, "family", FAMILIES, BY_RUN)),
        unit="none",
        mappings=words({i: (FAMILY_WORDS[family], FAMILY_COLOUR[family]) for i, family in enumerate(FAMILIES)}),
        background=True,
        show="value",
        width=8,
    )


def _share() -> Panel:
    return stat(
        "Its share of the time",
        "The verdict's share of all ranks' time, as averaged above.",
        query(f"max by ({BY_RUN}) ({VERDICT}{{{v.RUN}}})"),
        unit="percentunit",
        decimals=0,
        graph=True,
    )


def _evidence() -> Panel:
    return stat(
        "Confirmed by counters",
        """The part of the verdict's time that was lost on nodes whose counters agree, those that often say so left out
        in part. A straggler, host time and compute are measured in the ranks and need no counters.""",
        query(confirmed(v.RUN)),
        unit="percentunit",
        decimals=0,
        thresholds=falling(0.2, DEFAULT.confirmed_share),
        show="value",
        width=4,
        nothing="needs none",
    )


def _goodput() -> Panel:
    return stat(
        "Goodput",
        "Share of its ranks' time that was compute for new steps; those repeated after a restart do not count.",
        query(f"run:whyidle_goodput:ratio${{window}}{{{v.RUN}}}"),
        unit="percentunit",
        thresholds=GOOD,
        decimals=0,
        graph=True,
    )


def _late_rank() -> Panel:
    late = f"run_rank:whyidle_late:rate5m{{{v.RUN}}}"
    return stat(
        "Others wait most for",
        """The rank that others waited for most in the time range, on average; the list below says for how long.
        Nobody, if it is less than a hundredth of the run.""",
        now(
            f"""label_replace(topk(1, {over_range(late)}) > {DEFAULT.late_share} * {MOST_RANKS},
            "who", "rank $1", "rank", "(.*)") or on () label_replace(vector(0), "who", "nobody", "", "")""",
            "{{who}}",
        ),
        unit="count:GPUs",
        show="name",
    )


def _figures() -> list[Panel]:
    return [
        stat(
            "Ranks that train",
            "Live ranks of the run.",
            query(f"run:whyidle_ranks:count{{{v.RUN}}}"),
            unit="short",
            decimals=0,
        ),
        stat(
            "Step, median",
            "Half of the steps of the last five minutes took less.",
            query(f"run:whyidle_step_seconds:p50_5m{{{v.RUN}}}"),
            unit="s",
        ),
        stat(
            "Step, 99th percentile",
            "One step in a hundred took longer in the last five minutes. Far above the median: something interrupts.",
            query(f"run:whyidle_step_seconds:p99_5m{{{v.RUN}}}"),
            unit="s",
        ),
        stat(
            "Steps, over 5 minutes",
            "Optimizer steps per second of the run.",
            query(f"run:whyidle_steps:rate5m{{{v.RUN}}}"),
            unit="ops",
        ),
        stat(
            "Hangs for",
            "For how long live ranks have waited in a collective that another has not entered. Minutes are a hang.",
            now(f"max(run_rank_family:whyidle_missing:seconds{{{v.RUN}}})"),
            unit="s",
            thresholds=steps(10, DEFAULT.alerts.hang_seconds),
            decimals=0,
            nothing="no hang",
        ),
        stat(
            "Attempts",
            "Attempts of the run that were seen in the time range; more than one means that it was restarted.",
            now(f'count(group by (attempt) (last_over_time(whyidle_rank_info{{{v.RUN}, rank="0"}}[${{__range}}])))'),
            unit="short",
            thresholds=steps(2, 5),
            decimals=0,
        ),
    ]


def _causes() -> Panel:
    return share(
        "Where its time goes, by cause",
        """Shares of the time of all its ranks, as measured; they sum to 100 %. Shades of one colour are one family. A
        phase that is open now counts already, so that a hang shows while it lasts.""",
        query(f"run_cause:whyidle_share:ratio${{window}}{{{v.RUN}}}", "{{cause}}"),
        of="cause",
    )


def _charged() -> Panel:
    return share(
        "What is to blame",
        """The same, with the waits for late ranks charged to what made them late, and start-up left out: what the
        verdict is taken from. Straggler remains where a rank was late in compute itself.""",
        query(f"run_family:whyidle_charged:ratio${{window}}{{{v.RUN}}}", "{{family}}"),
        width=12,
    )


def _signals() -> Panel:
    node = f"{v.CLUSTER_LABEL}, node"
    here = f"on ({node}) run_node:whyidle_ranks:count{{{v.RUN_NODES}}}"
    return timeline(
        "What the counters of its nodes say",
        """The signals of its nodes that agreed with a verdict on network, storage or CPUs at the time, and what spoke
        against the verdict. A node's name leads to the counters.""",
        *(
            query(f"({record}{{{v.NODES}}} and {here}) * {index}", f"{family}: {{{{signal}}}}, {{{{node}}}}")
            for index, (family, record) in enumerate(EVIDENCE.items(), 1)
        ),
        query(f"0 * run_family:whyidle_contradicted:ratio5m{{{v.RUN}}}", "against {{family}}: {{contradiction}}"),
        mappings=words(
            {0: ("speaks against the verdict", RED)}
            | {i: (f"speaks for {family}", FAMILY_COLOUR[family]) for i, family in enumerate(EVIDENCE, 1)}
        ),
        width=12,
        links=[series_to("node")],
        nothing="No counter of its nodes agreed with network, storage or CPU",
    )
