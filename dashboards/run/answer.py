"""The answer at a glance: verdict, share, evidence, late rank, and whether the run makes progress."""

from __future__ import annotations

from ...alerts.config import DEFAULT
from ...alerts.promql import any_of, relabel
from ...alerts.recording.corroboration import FAMILIES as WITH_COUNTERS
from ...alerts.recording.signals import SHORTAGE_WORDS
from ...verdict.shortage import SHORTAGES
from .. import variables as v
from ..colours import VERDICT_COLOUR, VERDICT_WORDS, VERDICTS
from ..vocabulary import (
    GOOD,
    Column,
    Panel,
    Section,
    Target,
    confirmed,
    encode,
    falling,
    line,
    now,
    over_range,
    query,
    share,
    stat,
    steps,
    table,
    trend,
    words,
)
from ..vocabulary import section as _section
from .parts import MOST_RANKS, VERDICT

BUSY = "also busy: "
"""Written before a signal of another family than that of the verdict."""
AGAINST = "against the verdict: "
REASON = "may be the reason: "
"""Written before a shortage of CPU time that can have caused most of the verdict's time."""
SHORT, OTHER = (f', signal{matches}"{any_of(SHORTAGE_WORDS)}"' for matches in ("=~", "!~"))
"""Matchers for the signals of a shortage of CPU time, which are shown in words, and for all others."""
SIGNALS = 8
"""The most signals per family: those that agree on most nodes."""


def section(activity: Panel) -> Section:
    """``activity`` is the panel on what the GPUs' own counters say about compute."""
    return _section(
        "",
        line(4, _verdict(), _share(), _evidence(), _goodput(), _late_rank(), _hang(), _ranks()),
        line(8, _causes(), _charged()),
        line(8, _signals(), activity),
        line(6, _advice()),
    )


def _verdict() -> Panel:
    return stat(
        "Largest loss",
        ""
        """The family that takes most of the run's time, if that is at least a tenth. Otherwise the run is fine and
        computes. Waits for a late rank count under what made it late. A run that trains on the CPU although it was
        given GPUs is “unused”, whatever its ranks spend their time on.""",
        query(encode(VERDICT, v.RUN, "family", VERDICTS, v.BY_RUN)),
        unit="none",
        mappings=words({i: (VERDICT_WORDS[one], VERDICT_COLOUR[one]) for i, one in enumerate(VERDICTS)}),
        background=True,
        show="value",
        width=6,
    )


def _share() -> Panel:
    return stat(
        "Share of time",
        "The verdict's share of all ranks' time since the first step, averaged over the time that is chosen above.",
        query(f"max by ({v.BY_RUN}) ({VERDICT}{{{v.RUN}}})"),
        unit="percentunit",
        decimals=0,
        graph=True,
        width=3,
    )


def _evidence() -> Panel:
    return stat(
        "Confirmed",
        """The part of the verdict's time that was lost on nodes whose counters agree. A counter that often
        shows a limit, also when nothing is lost, counts less. Straggler, host and compute are measured in the ranks
        and need no counters.""",
        query(confirmed(v.RUN)),
        unit="percentunit",
        decimals=0,
        thresholds=falling(0.2, DEFAULT.confirmed_share),
        show="value",
        width=3,
        nothing="needs none",
    )


def _goodput() -> Panel:
    return stat(
        "Goodput",
        """Share of its ranks' time that was compute or rollouts for new steps. Repeated steps, evaluations, and ranks
        that use no GPU although they were given some do not count.""",
        query(f"run:whyidle_goodput:ratio${{window}}{{{v.RUN}}}"),
        unit="percentunit",
        thresholds=GOOD,
        decimals=0,
        graph=True,
        width=3,
    )


def _late_rank() -> Panel:
    late = f"run_rank:whyidle_late:rate5m{{{v.RUN}}}"
    return stat(
        "Late rank",
        """The rank that others waited for most in the time range, on average; the list below says for how long.
        No rank is named if they waited for less than 1 % of the run's time.""",
        now(
            f"""label_replace(topk(1, {over_range(late)}) > {v.SETTINGS.late_share} * {MOST_RANKS},
            "who", "rank $1", "rank", "(.*)") or on () label_replace(vector(0), "who", "nobody", "", "")""",
            "{{who}}",
        ),
        unit="count:GPUs",
        show="name",
        width=3,
    )


def _ranks() -> Panel:
    attempts = f'count(group by (attempt) (last_over_time(whyidle_rank_info{{{v.RUN}, rank="0"}}[${{__range}}])))'
    return stat(
        "Ranks, attempts",
        """Live ranks, and how many attempts of the run were seen in the time range: more than one means that it was
        restarted.""",
        now(f"run:whyidle_ranks:count{{{v.RUN}}}", "ranks"),
        now(attempts, "attempts"),
        unit="locale",
        decimals=0,
        show="value_and_name",
        width=3,
    )


def _hang() -> Panel:
    return stat(
        "Time in a hang",
        """For how long live ranks have waited in a collective that another rank has not entered. Seconds mean a late
        rank. Minutes mean a hang, and the list of ranks below names the missing rank.""",
        now(f"max(run_rank_family:whyidle_missing:seconds{{{v.RUN}}})"),
        unit="s",
        thresholds=steps(10, DEFAULT.alerts.hang_seconds),
        decimals=0,
        nothing="no hang",
        width=3,
    )


def _causes() -> Panel:
    return share(
        "Where its time goes, by cause",
        """Shares of the time of all its ranks, as measured; they sum to 100 %. Shades of one colour belong to one
        family. A phase that is still open counts too, so a hang shows while it lasts.""",
        query(f"run_cause:whyidle_share:ratio${{window}}{{{v.RUN}}}", "{{cause}}"),
        of="cause",
        width=12,
    )


def _charged() -> Panel:
    return share(
        "What is to blame",
        """Shares of the time of all ranks without startup, with waits for late ranks counted under what made them
        late: the verdict is the largest of these. What remains as straggler are waits for ranks that were late in
        compute.""",
        query(f"run_family:whyidle_charged:ratio${{window}}{{{v.RUN}}}", "{{family}}"),
        width=12,
    )


def _signals() -> Panel:
    return trend(
        "Counters of the nodes that agree",
        f"""The share of the run's nodes on which each counter shows a limit. Counters of the verdict's family agree
        with it. Counters of other families are marked “also busy” and may be the next limit. At most {SIGNALS} of
        each family. Counters that contradict the verdict are named too, with the share of the nodes that lose the
        time. Two lines are in words, whatever the verdict: the hypervisor takes CPUs of the ranks, or training
        threads wait for a CPU. “May be the reason” shows how much of the verdict's time such a shortage can have
        caused.""",
        *(target for family in WITH_COUNTERS for target in _speaking(family)),
        query(f"run_family:whyidle_contradicted:ratio5m{{{v.RUN}}}", f"{AGAINST}{{{{contradiction}}}}"),
        query(relabel(_share_of("cpu", SHORT), "signal", "signal", SHORTAGE_WORDS), "{{signal}}"),
        query(
            relabel(f"run_family:whyidle_shortage:ratio5m{{{v.RUN}}}", "shortage", "shortage", SHORTAGES),
            f"{REASON}{{{{shortage}}}}",
        ),
        unit="percentunit",
        most=1,
        legend="table",
        nothing="No counter of its nodes is at its limit",
    )


def _advice() -> Panel:
    of = (
        f"whyidle_advice_info{{{v.RUN}}} * ignoring (family, change) group_left () whyidle_advice_gain_ratio{{{v.RUN}}}"
    )
    return table(
        "What to change",
        """The changes that would save most of its ranks' time. Each agent computes this advice from the
        ledgers of its own node. The page docs/advice.md says how each gain is computed, and which changes were tried.
        Gains do not add up.""",
        now(f"max by (advice, family, change) ({of})"),
        columns=[
            Column("change", "Change"),
            Column("A", "Saves", unit="percentunit", decimals=0, width=90),
            Column("family", "Because of", width=130),
            Column("advice", "Rule", width=190),
        ],
        sort="Saves",
        nothing="Nothing to change is known",
    )


def _speaking(family: str) -> tuple[Target, Target]:
    """Two queries for the signals of a family: one if the verdict is this family, one if it is another."""
    share_of = _share_of(family, OTHER if family == "cpu" else "")
    verdict = f'{VERDICT}{{{v.RUN}, family="{family}"}}'
    found = [f"topk({SIGNALS}, {share_of} {word} on ({v.CLUSTER_LABEL}) {verdict})" for word in ("and", "unless")]
    return query(found[0], f"{family}: {{{{signal}}}}"), query(found[1], f"{BUSY}{{{{signal}}}}")


def _share_of(family: str, matchers: str) -> str:
    """The share of the run's nodes on which each signal of a family agrees."""
    ranks = f"run_node:whyidle_ranks:count{{{v.RUN_NODES}}}"
    evidence = f"node:whyidle_{family}_evidence:max5m{{{v.MEMBERS}{matchers}}} and on ({v.BY_NODE}) {ranks}"
    nodes = f"count by ({v.CLUSTER_LABEL}) ({ranks})"
    return f"count by ({v.CLUSTER_LABEL}, signal) ({evidence}) / on ({v.CLUSTER_LABEL}) group_left () {nodes}"
