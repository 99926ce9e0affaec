"""The answer as one sentence. Grafana cannot put values into a text, so the query turns values into labels."""

from __future__ import annotations

from ...alerts.promql import labelled
from ...alerts.recording.names import NOTEBOOKS, RUN_GPUS, UNUSED, UNUSED_NOW
from ...verdict.unused import HEADLINE
from .. import variables as v
from ..values import SHORT
from ..vocabulary import Panel, now, stat
from .parts import IDLE, LOST_NOW

GPUS = f"sum({RUN_GPUS}{{{v.RUNS}}})"
LEAST_SHARE = 0.005
"""A smaller share of the loss would be rounded to 0 % and is left out."""


def sentence() -> Panel:
    """The panel with the sentence. Each part is a label of the panel's only series. Unknown parts are left out."""
    idle, share = f"sum({LOST_NOW})", _shares()
    cost = f"{v.SETTINGS.gpu_hour_price} * {idle}"
    first = f"topk(1, {share})"
    parts = (
        _number("idle", idle),
        _optional(_money(f"({cost} > 0)")),
        _optional(_of_loss("first", first, ": $1")),
        _optional(_of_loss("second", f"(topk(2, {share}) unless {first})", ", $1")),
        _optional(_worst()),
    )
    gpus = _ending(_number("gpus", GPUS), "gpus", " of $1 GPUs are idle")
    joined = " ".join(f"* on () group_left ({label}) ({part})" for label, part in zip(LABELS, parts, strict=True))
    return stat(
        "",
        """How many GPUs of the chosen runs do not compute now, what that costs an hour at the price in the settings,
        the two families that take most of it, and the run that loses most. Waits for late ranks count under what
        made them late. The rows below say where to look next.""",
        now(f"{gpus} {joined}", "{{idle}}{{gpus}}{{money}}{{first}}{{second}}{{worst}}"),
        unit="none",
        width=24,
        show="name",
        nothing="No run has a live rank. If one should be here: docs/prometheus.md, “An empty panel”.",
    )


LABELS = ("idle", "money", "first", "second", "worst")


def _shares() -> str:
    """Shares of the loss by family, from the same series as verdicts."""
    ranks = f"run:whyidle_ranks:count{{{v.RUNS}}} * on ({v.BY_RUN}) (1 - {UNUSED}{{{v.RUNS}}})"
    notebooks = f'run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, family="{NOTEBOOKS}"}}'
    in_loops = f"({ranks} - on ({v.BY_RUN}) {notebooks}) or on ({v.BY_RUN}) {ranks}"
    of_ranks = (
        f"run_family:whyidle_charged:ratio${{window}}{{{v.RUNS}, {IDLE}}} * on ({v.BY_RUN}) group_left () ({in_loops})"
    )
    # Notebooks come first: a share of 0 of this family may be recorded, too.
    lost = f"({notebooks} or {of_ranks} or {labelled(f'{UNUSED_NOW}{{{v.RUNS}}}', 'family', HEADLINE)})"
    return f"(sum by (family) ({lost}) / on () group_left () sum({lost}) > {LEAST_SHARE})"


def _number(label: str, expr: str) -> str:
    """One series with the value of ``expr`` as a label. From 10 on it is a whole number, with commas."""
    counted = f'count_values("{label}", round({expr}) >= 10 or round({expr}, 0.1))'
    return f'label_replace({counted}, "{label}", "$1,$2", "{label}", "([0-9]+)([0-9]{{3}})")'


def _money(expr: str) -> str:
    """The cost of an hour, in brackets. It uses label_join: in label_replace, a currency such as $ is special."""
    opened = _with(_number("money", expr), "before", " (")
    counted = f'label_join({opened}, "money", "{v.SETTINGS.currency}", "before", "money")'
    return f'sum by (money) (label_join({_with(counted, "after", "/h)")}, "money", "", "money", "after"))'


def _with(expr: str, label: str, text: str) -> str:
    return f'label_replace({expr}, "{label}", "{text}", "", "")'


def _of_loss(label: str, share: str, form: str) -> str:
    """One series with a family and its share of the loss as a label."""
    percent = f'count_values by (family) ("percent", round(100 * {share}))'
    for family, name in SHORT.items():
        percent = f'label_replace({percent}, "family", "{name}", "family", "{family}")'
    joined = f'label_join({percent}, "{label}", " % ", "percent", "family")'
    return f"sum by ({label}) ({_ending(joined, label, form)})"


def _worst() -> str:
    by_run = f"topk(1, sum by (owner, run) ({LOST_NOW}) > 0)"
    named = f'label_join({by_run}, "worst", "/", "owner", "run")'
    return f"count by (worst) ({_ending(named, 'worst', '. Most idle: $1')})"


def _ending(expr: str, label: str, form: str) -> str:
    return f'label_replace({expr}, "{label}", "{form}", "{label}", "(.+)")'


def _optional(expr: str) -> str:
    return f"{expr} or on () vector(1)"
