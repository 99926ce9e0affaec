"""The agent as Prometheus sees it: a real process, real HTTP, and output read by Prometheus's own Python parser."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import signal
import socket
import sys
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from fake_node.whole import LINKS, MOUNTS
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support_agent import WHYIDLE, Agent, agent, fails, host_port
from support_ledgers import DEADLINE_SECONDS, Spec, children, ended, until
from support_signals import ignoring

from whyidle import __version__
from whyidle.agent.metrics import BY_COLLECTOR, METRIC, METRICS
from whyidle.ledger.causes import HOOKS, STEP_BUCKETS_SECONDS
from whyidle.ledger.gpus import UNUSED
from whyidle.ledger.layout import BRANCHED
from whyidle.ledger.reader import LEDGER_REASONS

FAST = Spec(
    groups=[("world", {"network": 1.0, "straggler": 4.0}, 100)],
    rank=0,
    steps=100,
    step={"compute": 0.05, "straggler": 0.04, "network": 0.01},
    pending=0.5,
    hooks={"step": "active", "exchange": "failed"},
    op_bytes={"all_reduce": 1 << 20},
    waited_for={"storage": 4.0},
    slots=[{"key": 17, "size": 2}],
    words={
        "cpu_asked_ns": 9_000_000_000,
        "cpu_stolen_ns": 1_000_000_000,
        "cpu_queued_ns": 2_000_000_000,
        "slot_op_bytes": 1 << 20,
    },
)
SLOW = Spec(
    rank=1,
    steps=100,
    step={"compute": 0.05, "data_read": 0.04, "network": 0.01},
    late={"storage": 4.0},
    phase="data",
    idle=3.0,
)
GIVEN = {
    "gpus_visible": 2,
    "cpus_node": 4,
    "cpus_allowed": 2,
    "used_cpu_ns": 9_000_000_000,
    "memory_used_bytes": 1 << 30,
    "memory_limit_bytes": 1 << 31,
    "memory_at_ns": 1,
    "memory_of": 1,
}


def test_runs_of_one_name_of_two_owners_are_separate(tmp_path: Path) -> None:
    step = {"compute": 0.1}
    specs = [Spec(run="llama", owner=owner, steps=count, step=step) for owner, count in (("a", 3), ("b", 5))]
    with children(tmp_path, *specs), agent(tmp_path) as running:
        for owner, count in (("a", 3), ("b", 5)):
            assert running.values("whyidle_steps_total", owner=owner, run="llama", rank="0") == [count]
            assert running.values("whyidle_rank_up", owner=owner, run="llama", rank="0") == [1]
            assert len(running.values("whyidle_device_seconds_total", owner=owner, cause="compute")) == 1
        assert running.value("whyidle_ledger_errors_total", reason="duplicate") == 0


def test_exports_waits_by_group_and_by_reason(tmp_path: Path) -> None:
    groups = [("dp", {"network": 1.5, "straggler": 2.5}, 10), ("p2p pp", {"pipeline": 4.0, "unsplit": 0.5}, 20)]
    spec = Spec(groups=groups, waited_for={"storage": 2.0, "straggler": 1.0}, late_steps=7, bubble=1.25)
    with children(tmp_path, spec), agent(tmp_path) as running:
        waits = {
            (labels["group"], labels["part"]): value
            for name, labels, value in running.samples()
            if name == "whyidle_group_wait_seconds_total"
        }
        assert {key: value for key, value in waits.items() if value} == {
            ("dp", "network"): 1.5,
            ("dp", "straggler"): 2.5,
            ("p2p pp", "pipeline"): 4.0,
            ("p2p pp", "unsplit"): 0.5,
        }
        assert len(waits) == 8
        assert running.value("whyidle_group_calls_total", group="p2p pp") == 20
        assert running.value("whyidle_run_group_transfer_seconds_total", group="dp") == 1.5
        assert running.value("whyidle_waited_for_seconds_total", family="storage") == 2.0
        assert running.value("whyidle_waited_for_seconds_total", family="straggler") == 1.0
        assert running.value("whyidle_late_steps_total") == 7
        assert running.value("whyidle_pipeline_bubble_seconds_total") == 1.25


def test_everything_that_is_declared_of_ranks_is_exported(tmp_path: Path) -> None:
    # Some metrics are for ranks that have ended, or that have restored a checkpoint.
    ended(tmp_path, Spec(run="over", words={"stopped_by": 15, "restored_step": 1, "beginning": 1}))
    hang = (
        Spec(run="hangs", rank=0, phase="collective", idle=8.0, collectives=5),
        Spec(run="hangs", rank=1, phase="host", collectives=4),
    )
    given = (
        Spec(run="on the CPU", words=GIVEN | {"gpu_unused": UNUSED.index("model")}),
        Spec(run="on one of two", words=GIVEN | {"device_index": 0}),
    )
    ranks = replace(FAST, mounts=MOUNTS, links=LINKS), SLOW, *hang, *given
    full = Spec(run="full", words=GIVEN | {"memory_used_bytes": 1 << 31})
    with children(tmp_path, full) as [rank]:
        rank.kill()
    with children(tmp_path, *ranks), agent(tmp_path) as running:
        families = {family.name: family for family in parse(running.get()[2].decode())}
        for metric in BY_COLLECTOR["ranks"]:
            family = families[metric.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (metric.type, metric.help)
            assert family.samples, metric.name
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
        declared = {metric.name.removesuffix("_total") for metric in METRICS}
        assert families.keys() <= declared


def test_values_are_those_of_the_ledgers(tmp_path: Path) -> None:
    with children(tmp_path, FAST, SLOW), agent(tmp_path) as running:
        seconds = {
            labels["cause"]: value
            for name, labels, value in running.samples()
            if name == "whyidle_device_seconds_total" and labels["rank"] == "1"
        }
        assert seconds == {"compute": 5.0, "data_read": 4.0, "network": 1.0, "startup": 3.0}  # zeros have no series
        assert running.value("whyidle_device_seconds_total", rank="1", cause="data_read", family="storage") == 4.0
        assert running.value("whyidle_device_pending_seconds", rank="0") == 0.5
        assert running.value("whyidle_steps_total", rank="0") == 100
        for what, rank in (("late", "1"), ("waited_for", "0")):
            [(labels, value)] = [
                (labels, value) for name, labels, value in running.samples() if name == f"whyidle_{what}_seconds_total"
            ]
            assert (labels["rank"], labels["family"], value) == (rank, "storage", 4.0)
        assert running.value("whyidle_collective_bytes_total", rank="0", op="all_reduce") == 1 << 20
        assert running.value("whyidle_run_group_bus_bytes_total", group="world") == 1 << 20
        assert running.value("whyidle_run_groups_across_nodes", group="world") == 1
        assert running.value("whyidle_phase_open_seconds", rank="1", node="n1", phase="data") >= 3.0
        assert running.value("whyidle_rank_up", rank="1") == 1
        assert running.value("whyidle_rank_info", rank="1", uuid="GPU-1", world_size="2", attempt="0") == 1
        assert running.value("whyidle_hook_state", rank="0", hook="exchange", state="failed") == 1
        assert len(running.values("whyidle_hook_state", rank="0")) == len(HOOKS)
        assert running.value("whyidle_build_info", version=__version__) == 1
        assert running.values("whyidle_ledger_errors_total") == [0] * len(LEDGER_REASONS)


def test_exports_the_histogram_of_steps(tmp_path: Path) -> None:
    with children(tmp_path, FAST), agent(tmp_path) as running:
        buckets = [value for name, _, value in running.samples() if name == "whyidle_step_seconds_bucket"]
        assert buckets == [0 if bound < 0.1 else 100 for bound in STEP_BUCKETS_SECONDS] + [100]
        assert running.value("whyidle_step_seconds_count") == 100
        assert running.value("whyidle_step_seconds_sum") == 10.0


@pytest.mark.ages
def test_a_hang_shows_while_it_lasts(tmp_path: Path) -> None:
    waiting = Spec(rank=0, phase="collective", idle=8.0, collectives=5)
    with children(tmp_path, waiting, Spec(rank=1, phase="host", collectives=4)), agent(tmp_path) as running:
        opened = running.value("whyidle_phase_open_seconds", rank="0", phase="collective")
        assert opened >= 8.0
        assert running.value("whyidle_collective_missing_seconds", rank="1") > opened - 1e-6
        assert not running.values("whyidle_collective_missing_seconds", rank="0")
        assert until(lambda: running.value("whyidle_phase_open_seconds", rank="0") > opened + 0.1)


def test_a_killed_rank_keeps_its_last_values_beside_a_bad_file(tmp_path: Path) -> None:
    (tmp_path / "0-0-bad.ledger").write_bytes(b"x" * 5000)
    (tmp_path / "0-0-link.ledger").symlink_to("/etc/passwd")
    with children(tmp_path, FAST) as [child], agent(tmp_path) as running:
        assert running.value("whyidle_rank_up") == 1
        assert not running.values("whyidle_rank_killed")
        assert not running.values("whyidle_rank_failed")
        child.kill()
        assert running.value("whyidle_rank_up") == 0
        assert running.value("whyidle_rank_killed") == 1
        assert running.value("whyidle_rank_failed") == 0
        assert running.value("whyidle_steps_total") == 100
        assert not running.values("whyidle_phase_open_seconds")
        assert running.value("whyidle_ledger_errors_total", reason="foreign") == 1
        assert running.value("whyidle_ledger_errors_total", reason="not_regular") == 1


def test_says_which_checkpoint_a_rank_has_restored_and_that_it_was_asked_to_end(tmp_path: Path) -> None:
    words = {"beginning": BRANCHED, "restored_step": 101, "restored_attempt": 3, "requeues": 2, "stopped_by": 15}
    with children(tmp_path, replace(FAST, rank=0, words=words), replace(FAST, rank=1)), agent(tmp_path) as running:
        how = {"beginning": "branched", "saved_by": "2", "requeues": "2"}
        assert running.values("whyidle_rank_restored_step", **how) == [100]
        assert len(running.values("whyidle_rank_restored_step")) == 1
        assert running.values("whyidle_rank_stopped", rank="0") == [1]
        assert not running.values("whyidle_rank_stopped", rank="1")


@pytest.mark.ages
def test_ended_ranks_and_their_ledgers_are_removed_after_their_retention(tmp_path: Path) -> None:
    ended(
        tmp_path,
        Spec(run="old", idle=80.0),
        Spec(run="older", idle=200.0),
        Spec(run="recent"),
        Spec(run="failed", failed=True),
    )
    with agent(tmp_path, "--ledger.retention=1m", "--ledger.delete-after=2m30s") as running:
        assert running.values("whyidle_rank_up", run="recent") == [0]
        for run, failed in (("recent", 0), ("failed", 1)):
            assert running.values("whyidle_rank_killed", run=run) == [0]
            assert running.values("whyidle_rank_failed", run=run) == [failed]
        assert not running.values("whyidle_rank_up", run="old")
        until(lambda: len(list(tmp_path.iterdir())) == 3)
        assert running.values("whyidle_rank_up", run="recent") == [0]


def test_serves_its_pages(tmp_path: Path) -> None:
    with children(tmp_path, FAST), agent(tmp_path) as running:
        assert running.get("/healthz")[::2] == (200, b"ok\n")
        until(lambda: running.get("/readyz")[0] == 200)
        status, headers, body = running.get("/")
        assert (status, b'href="metrics"' in body) == (200, True)
        assert headers["Content-Type"].startswith("text/html")
        assert running.get("/nothing")[0] == 404
        assert running.get("/metrics?name=x", Accept="application/openmetrics-text;version=nonsense")[0] == 200


def test_serves_gzip_and_openmetrics(tmp_path: Path) -> None:
    with children(tmp_path, FAST, SLOW), agent(tmp_path) as running:
        _, headers, body = running.get(Accept_Encoding="gzip", Accept="application/openmetrics-text;version=1.0.0")
        assert headers["Content-Encoding"] == "gzip"
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        names = {family.name for family in parse_openmetrics(gzip.decompress(body).decode())}
        assert "whyidle_device_seconds" in names
        assert running.get()[1].get("Content-Encoding") is None
        assert running.get()[1]["Content-Type"].startswith("text/plain; version=0.0.4")


def test_hostile_names_become_labels_that_parse(tmp_path: Path) -> None:
    run = 'a"b\\c\nd{}=,é'
    with children(tmp_path, Spec(run=run)), agent(tmp_path) as running:
        assert running.value("whyidle_rank_up") == 1
        [(_, labels, _)] = [sample for sample in running.samples() if sample[0] == "whyidle_rank_up"]
        assert labels["run"] == run.replace("\n", "�")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with agent(tmp_path) as running, socket.create_connection(host_port(running.address)):  # a slow one
        running.process.send_signal(signal.SIGHUP)
        assert running.get("/healthz")[0] == 200
        running.process.send_signal(number)
        assert running.process.wait(DEADLINE_SECONDS) == 0


def test_ends_at_an_inherited_ignored_sigterm_but_not_at_an_ignored_sigint(tmp_path: Path) -> None:
    """A script that ignores SIGTERM starts `nohup whyidle agent &` with all three signals ignored."""
    flags = [f"--ledger.dir={tmp_path}", "--web.listen-address=127.0.0.1:0"]
    words = [*ignoring(signal.SIGINT, signal.SIGHUP, signal.SIGTERM), *WHYIDLE, "agent", *flags]
    with contextlib.closing(Agent(words)) as running:
        for number in (signal.SIGINT, signal.SIGHUP):
            running.process.send_signal(number)
            assert running.get("/healthz")[0] == 200
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(DEADLINE_SECONDS) == 0
        assert "signal=SIGTERM" in running.log()[-1]


HANGING = """
import sys, threading
from whyidle.agent import exporter, ledgers, log, server, service
class Hanging:
    def collect(self, reading):
        threading.Event().wait()
service.hold_signals()
lines = log.Log()
store = ledgers.LedgerStore(sys.argv[1], 60)
asked = exporter.Exporter({"hanging": Hanging()}, lines, 3600)
face = server.AgentServer("127.0.0.1", 0, asked, lambda: True, lines)
lines.info("listening", address=face.address)
service.serve(face, store, 60, lines)
"""


def test_ends_while_a_collector_hangs_and_clients_wait(tmp_path: Path) -> None:
    with contextlib.closing(Agent([sys.executable, "-c", HANGING, str(tmp_path)])) as running:
        place = host_port(running.address)
        with socket.create_connection(place), socket.create_connection(place) as waiting:
            waiting.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            until(lambda: running.get("/healthz")[0] == 200)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(DEADLINE_SECONDS) == 0
        assert [line.split()[0] for line in running.log()] == ["level=info", "level=info"]


def test_refuses_other_requests(tmp_path: Path) -> None:
    with agent(tmp_path) as running, contextlib.closing(HTTPConnection(running.address)) as client:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            client.request(method, "/metrics")
            answer = client.getresponse()
            answer.read()
            assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
        client.request("HEAD", "/metrics")
        answer = client.getresponse()
        assert (answer.status, int(answer.headers["Content-Length"]) > 1000, answer.read()) == (200, True, b"")
        assert "Server" not in answer.headers
        client.request("GET", "/../etc/passwd")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (404, b"not found; try /metrics\n")


def test_the_log_is_logfmt_or_json(tmp_path: Path) -> None:
    (tmp_path / "0-0-bad\nlevel=error\x1b[2J.ledger").write_bytes(b"")  # the name cannot forge lines or move the cursor
    with agent(tmp_path) as running:
        assert running.first_line.startswith('level=info msg="listening" address=127.0.0.1:')
        problem = 'level=warn msg="a ledger is unusable" reason=short detail="'
        [line] = until(lambda: [line for line in running.log() if line.startswith(problem)])
        assert line.rstrip("\n").isprintable()
        assert "level=error" in line
    with agent(tmp_path, "--log.format=json") as running:
        line = json.loads(running.first_line)
        assert (line["level"], line["msg"], line["address"]) == ("info", "listening", running.address)


def test_an_agent_says_that_another_one_reads_the_same_ledgers(tmp_path: Path) -> None:
    def warnings(of: Agent) -> list[str]:
        return [line for line in of.log() if "another agent reads these ledgers" in line]

    with agent(tmp_path) as first:
        until(lambda: first.get("/readyz")[0] == 200)
        with agent(tmp_path) as second:
            [line] = until(lambda: warnings(second))
            assert "counts every rank twice" in line
            assert line.rstrip().split(" ts=")[0].endswith(f"directory={tmp_path}")
        assert not warnings(first)
    with agent(tmp_path) as later:
        until(lambda: later.get("/readyz")[0] == 200)
        assert not warnings(later)


def test_refuses_bad_flags_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert fails("agent", f"--ledger.dir={file}") == (
        1,
        f"whyidle agent: cannot read the ledger directory {file}: Not a directory",
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = fails("agent", f"--ledger.dir={tmp_path}", f"--web.listen-address={address}")
        assert (code, line) == (1, f"whyidle agent: cannot listen on {address}: Address already in use")
    code, line = fails("agent", "--ledger.retention=soon")
    assert (code, line.endswith("'soon' is not a duration: write 90s, 15m or 24h")) == (2, True)
    for command in ("agent", "doctor"):
        code, line = fails(command, "--collector.deadline=0")
        assert (code, line.endswith("'0' must be at least 1ms, such as 1s")) == (2, True)
        code, line = fails(command, "--ledger.dir=")
        assert (code, line.endswith("argument --ledger.dir: the name of the directory is empty")) == (2, True)
    code, line = fails("agent", "--web.listen-address=here")
    assert (code, "'here' is not an address" in line) == (2, True)


def test_metric_names_are_well_formed() -> None:
    assert len(METRIC) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"(whyidle|process)_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert metric.help.endswith(".")
        if metric.unit in ("seconds", "bytes"):
            assert metric.name.removesuffix("_total").endswith(metric.unit)
