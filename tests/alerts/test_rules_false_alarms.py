"""A day of healthy nodes: runs that start again, a node that is drained and rebooted, a notebook, a bad counter.

The shipped alerts run in promtool, with all recording rules that they use. No alert is critical, and each warning is
one that somebody should read today.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_rules import assert_all_rules
from support_sums import with_sums

from whyidle.ledger.causes import CAUSE_FAMILY

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

MINUTES = 24 * 60
Value = float | None
Series = Iterator[tuple[str, Callable[[int], Value]]]
"""A series, and its value at each minute, or None if it is absent."""

RESTART, STARTUP = 180, 20
DRAINED, GONE, BACK, LINKS = 240, 255, 285, 292
"""When the drained node's ranks end, when it reboots, when its agent answers again, and when its links are up."""


def agent(node: str) -> str:
    return f'job="whyidle", instance="{node}:9838"'


def there(node: str, minute: int) -> bool:
    return node != "drained" or not GONE <= minute < BACK


def nodes() -> Series:
    for node in ("a", "b", "drained", "lab", "noisy"):
        own = agent(node)
        here = lambda minute, node=node: 1.0 if there(node, minute) else None  # noqa: E731
        reboots = node == "drained"
        yield f"up{{{own}}}", lambda minute, node=node: float(there(node, minute))
        for name in ("whyidle_build_info", f'whyidle_node_info{{{own}, node="{node}", kernel="6.8", arch="x86_64"}}'):
            yield name if "{" in name else f'{name}{{{own}, version="1"}}', here
        yield (
            f"whyidle_cpu_boot_time_seconds{{{own}}}",
            lambda minute, node=node, reboots=reboots: (
                None if not there(node, minute) else BACK * 60 - 120 if reboots and minute >= BACK else -864_000.0
            ),
        )
        yield f'whyidle_gpu_info{{{own}, gpu="0", uuid="GPU-{node}"}}', here
        yield f'whyidle_gpu_lost{{{own}, gpu="0", uuid="GPU-{node}"}}', lambda minute, here=here: here(minute) and 0.0
        yield (
            f'whyidle_rdma_port_up{{{own}, device="mlx5_0", port="1"}}',
            lambda minute, here=here, reboots=reboots: (
                here(minute) and float(not (reboots and (DRAINED + 5 <= minute < GONE or BACK <= minute < LINKS)))
            ),
        )
    yield (
        f'whyidle_rdma_symbol_errors_total{{{agent("noisy")}, device="mlx5_0", port="1"}}',
        lambda minute: 60.0 * minute,
    )


def rank(run: str, number: int, node: str, size: int) -> tuple[str, str]:
    of = f'{agent(node)}, owner="nlp", run="{run}", rank="{number}"'
    return of, f'{of}, node="{node}", device="cuda:0"'


def started(minute: int) -> int:
    """Minutes since the second start."""
    return min(max(minute - RESTART, 0), STARTUP)


def restarted() -> Series:
    """Two nodes. The run starts again, and takes a while."""
    for number, node in enumerate(("a", "b")):
        of, place = rank("llama", number, node, 2)
        spent = {
            "startup": lambda minute: 60.0 * started(minute),
            "compute": lambda minute: 60.0 * (minute - started(minute)),
        }
        for cause, seconds in spent.items():
            labels = f'{place}, cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
            yield f"whyidle_device_seconds_total{{{labels}}}", seconds
        yield f"whyidle_steps_total{{{of}}}", lambda minute: 1.0 + 60 * (minute - started(minute))
        yield f"whyidle_rank_up{{{of}}}", lambda minute: 1.0
        yield f"whyidle_world_size{{{of}}}", lambda minute: 2.0
        for attempt in (0, 1):
            info = f'{place}, uuid="GPU-{node}", world_size="2", local_rank="0", attempt="{attempt}", pid="7"'
            yield (
                f"whyidle_rank_info{{{info}}}",
                lambda minute, attempt=attempt: 1.0 if (minute >= RESTART) == bool(attempt) else None,
            )
        for phase in ("startup", "compute"):
            yield (
                f'whyidle_phase_open_seconds{{{place}, phase="{phase}"}}',
                lambda minute, phase=phase: (
                    (60.0 * (minute - RESTART) if phase == "startup" else 0.5)
                    if (RESTART <= minute < RESTART + STARTUP) == (phase == "startup")
                    else None
                ),
            )


def given() -> Series:
    """What a run was given and uses: its threads are seldom at the other socket, and at first it has no GPU."""
    for number, node in enumerate(("a", "b")):
        of, place = rank("llama", number, node, 2)
        for where, share in (("near", 0.97), ("far", 0.03)):
            labels = f'{place}, place="{where}", cpu_node="0", device_node="0"'
            yield f"whyidle_rank_numa_samples_total{{{labels}}}", lambda minute, share=share: 20.0 * minute * share
        yield (
            f'whyidle_rank_unused_gpus{{{of}, node="{node}", reason="model"}}',
            lambda minute: 1.0 if RESTART <= minute < RESTART + 3 else None,
        )
    yield (
        f'whyidle_run_spare_gpus{{{agent("a")}, owner="nlp", run="llama", node="a"}}',
        lambda minute: 1.0 if RESTART <= minute < RESTART + 3 else 0.0,  # one of its ranks comes later
    )


def ended() -> Series:
    """It ends when its node is drained. Its series disappear some minutes later."""
    of, place = rank("bert", 0, "drained", 1)
    seen = lambda minute: minute < GONE  # noqa: E731
    labels = f'{place}, cause="compute", family="compute"'
    yield (
        f"whyidle_device_seconds_total{{{labels}}}",
        lambda minute: 60.0 * min(minute, DRAINED) if seen(minute) else None,
    )
    yield f"whyidle_steps_total{{{of}}}", lambda minute: 1.0 + 60 * min(minute, DRAINED) if seen(minute) else None
    yield f"whyidle_rank_up{{{of}}}", lambda minute: float(minute < DRAINED) if seen(minute) else None
    yield f"whyidle_world_size{{{of}}}", lambda minute: 1.0 if seen(minute) else None
    info = f'{place}, uuid="GPU-drained", world_size="1", local_rank="0", attempt="0", pid="7"'
    yield f"whyidle_rank_info{{{info}}}", lambda minute: 1.0 if seen(minute) else None


def notebook() -> Series:
    """It runs a cell now and then, with long breaks between them."""
    of, place = rank("notebook", 0, "lab", 1)
    works = lambda minute: minute % 120 < 10  # noqa: E731
    busy = [0.0]
    for minute in range(MINUTES):
        busy.append(busy[-1] + 60.0 * works(minute))
    spent = {"compute": lambda minute: busy[minute], "host": lambda minute: 60.0 * minute - busy[minute]}
    for cause, seconds in spent.items():
        labels = f'{place}, cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
        yield f"whyidle_device_seconds_total{{{labels}}}", seconds
    yield f"whyidle_steps_total{{{of}}}", lambda minute: 1.0 + busy[minute]
    yield f"whyidle_rank_up{{{of}}}", lambda minute: 1.0
    yield f"whyidle_world_size{{{of}}}", lambda minute: 1.0
    info = f'{place}, uuid="GPU-lab", world_size="1", local_rank="0", attempt="0", pid="7"'
    yield f"whyidle_rank_info{{{info}}}", lambda minute: 1.0
    yield (
        f'whyidle_phase_open_seconds{{{place}, phase="host"}}',
        lambda minute: None if works(minute) else 60.0 * (minute % 120 - 10),
    )


def written(value: Callable[[int], Value]) -> str:
    """In promtool's notation."""
    return " ".join("_" if (now := value(minute)) is None else f"{now:.10g}" for minute in range(MINUTES))


def fired(which: str) -> str:
    return f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing", {which}}}[{MINUTES}m]))'


OF_WHAT_WAS_GIVEN = "WhyidleGpuUnused|WhyidleGpusSpare|WhyidleRankFarFromDevice|WhyidleRankOutOfMemory"


def test_healthy_nodes_fire_no_alert_but_the_expected_one(tmp_path: Path) -> None:
    every = [*nodes(), *restarted(), *given(), *ended(), *notebook()]
    end = f"{MINUTES - 1}m"
    warnings = {"WhyidleRdmaLinkErrors": 1}  # the bad counter
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values}
            for name, values in with_sums((name, written(value)) for name, value in every)
        ],
        "promql_expr_test": [
            {"expr": fired('severity="critical"'), "eval_time": end, "exp_samples": []},
            {"expr": fired(f'alertname=~"{OF_WHAT_WAS_GIVEN}"'), "eval_time": end, "exp_samples": []},
            {
                "expr": fired('severity="warning"'),
                "eval_time": end,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": n} for name, n in warnings.items()],
            },
        ],
    }
    assert_all_rules(test, tmp_path)
