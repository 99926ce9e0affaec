"""The recording rules: promtool compares exactly what they record."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_rules import assert_promtool
from support_yaml import read_yaml, read_yamls

from whyidle.agent.metrics import METRIC
from whyidle.alerts import recording
from whyidle.alerts.config import DEFAULT, Config
from whyidle.alerts.output import files, groups, to_yaml
from whyidle.alerts.promql import seconds
from whyidle.alerts.rule import Group, Record

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/alerts/cases/recording").glob("*.yaml"))
NAME = re.compile(r"\b[a-z_]+:whyidle_\w+:\w+|\bwhyidle_\w+")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

READ, WORKER = 'mount="/data", operation="READ"', 'run="r", rank="0", role="worker"'
OF_RANK, PORT = 'run="r", rank="0"', 'device="mlx5_0", port="1"'
GROUP_IO = 'cgroup="/job", resource="io", kind="some"'
# Cause of the verdict, signal, and counters of a node: rates per second that agree, and that do not.
SIGNALS: tuple[tuple[str, str, dict[str, tuple[float | str, float | str]]], ...] = (
    ("network", "rdma_transmit_wait", {f"whyidle_rdma_transmit_wait_ticks_total{{{PORT}}}": (2**21, 1024)}),
    ("network", "rdma_discards", {f"whyidle_rdma_transmit_discards_total{{{PORT}}}": (2, 0.5)}),
    ("network", "rdma_ack_timeouts", {f"whyidle_rdma_ack_timeouts_total{{{PORT}}}": (0.125, 0)}),
    ("network", "rdma_congestion_notified", {f"whyidle_rdma_cnp_handled_total{{{PORT}}}": (64, 1)}),
    (
        "network",
        "nic_receive",
        {
            'whyidle_nic_bytes_total{device="eth0", direction="receive"}': (120, 16),
            'whyidle_nic_speed_bytes_per_second{device="eth0"}': ("128x250", "128x250"),
        },
    ),
    (
        "network",
        "nvlink_transmit",
        {
            'whyidle_gpu_nvlink_bytes_total{gpu="0", uuid="u", direction="tx"}': (80, 16),
            'whyidle_gpu_nvlink_rate_bytes_per_second{gpu="0", uuid="u"}': ("128x250", "128x250"),
        },
    ),
    (
        "network",
        "nic_pause_frames",
        {'whyidle_nic_pause_frames_total{device="eth0", direction="receive", priority="3"}': (64, 1)},
    ),
    (
        "network",
        "tcp_retransmits",
        {
            'whyidle_tcp_retransmits_total{namespace="host"}': (5, 1.5),
            'whyidle_tcp_syn_retransmits_total{namespace="host"}': (1, 1),
            'whyidle_tcp_sent_segments_total{namespace="host"}': (1024, 1024),
        },
    ),
    (
        "network",
        "tcp_timeouts",
        {
            'whyidle_tcp_timeouts_total{namespace="host"}': (4, 2.5),
            'whyidle_tcp_syn_retransmits_total{namespace="host"}': (2, 2),
        },
    ),
    ("network", "qdisc_overlimits", {'whyidle_qdisc_overlimits_total{device="eth0", kind="tbf"}': (64, 1)}),
    (
        "network",
        "qdisc_backlog",
        {'whyidle_qdisc_backlog_bytes{device="eth0", kind="tbf"}': ("131072x250", "1514x250")},
    ),
    (
        "data_read",
        "fuse_waiting",
        {
            'whyidle_fuse_waiting_requests{device="0:81", fstype="fuse.s3", mount="/data"}': ("2x250", "0x250"),
            f'whyidle_filesystem_rank_info{{{OF_RANK}, device="0:81", mount="/data"}}': ("1x250", "1x250"),
        },
    ),
    (
        "data_read",
        "network_files",
        {
            f'whyidle_filesystem_open_files{{{OF_RANK}, device="0:51", mount="/data"}}': ("1x250", "1x250"),
            f"whyidle_process_syscall_read_bytes_total{{{OF_RANK}}}": (2**20, 1024),
        },
    ),
    (
        "data_read",
        "io_pressure",
        {'whyidle_pressure_stalled_seconds_total{resource="io", kind="some"}': (0.25, 0.0625)},
    ),
    ("checkpoint_write", "disk_busy", {'whyidle_disk_io_seconds_total{device="sda"}': (0.9375, 0.5)}),
    (
        "data_read",
        "cgroup_io_pressure",
        {
            f"whyidle_cgroup_pressure_stalled_seconds_total{{{GROUP_IO}}}": (0.25, 0.0625),
            'whyidle_pressure_stalled_seconds_total{resource="io", kind="some"}': (0.5, 0.5),
        },
    ),
    (
        "data_read",
        "nfs_latency",
        {
            f"whyidle_nfs_operation_seconds_total{{{READ}}}": (8, 0.25),
            f"whyidle_nfs_operation_requests_total{{{READ}}}": (64, 64),
            'whyidle_nfs_operation_seconds_total{mount="/data", operation="WRITE"}': (0, 0),
            'whyidle_nfs_operation_requests_total{mount="/data", operation="WRITE"}': (0, 0),
        },
    ),
    ("checkpoint_write", "nfs_retransmissions", {'whyidle_nfs_retransmissions_total{mount="/data"}': (2, 0.5)}),
    (
        "data_read",
        "blocked_workers",
        {
            f"whyidle_process_uninterruptible_samples_total{{{WORKER}}}": (0.5, 0.125),
            f"whyidle_process_state_samples_total{{{WORKER}}}": (1, 1),
        },
    ),
    (
        "data_queue",
        "cpu_pressure",
        {'whyidle_pressure_stalled_seconds_total{resource="cpu", kind="some"}': (0.5, 0.125)},
    ),
    (
        "data_queue",
        "throttled",
        {
            'whyidle_cgroup_cpu_throttled_periods_total{cgroup="/job"}': (4, 0.5),
            'whyidle_cgroup_cpu_periods_total{cgroup="/job"}': (8, 8),
        },
    ),
    (
        "data_queue",
        "workers_queued",
        {
            f"whyidle_process_runqueue_seconds_total{{{WORKER}}}": (1, 0.25),
            f"whyidle_process_workers{{{OF_RANK}}}": ("4x250", "4x250"),
        },
    ),
    (
        "data_cpu",
        "workers_busy",
        {
            f'whyidle_process_cpu_seconds_total{{{WORKER}, mode="user"}}': (3, 1),
            f'whyidle_process_cpu_seconds_total{{{WORKER}, mode="system"}}': (0.75, 0.75),
            f"whyidle_process_workers{{{OF_RANK}}}": ("4x250", "4x250"),
        },
    ),
    (
        "data_cpu",
        "cpus_busy",
        {
            'whyidle_cpu_seconds_total{mode="idle"}': (0.25, 4),
            'whyidle_cpu_seconds_total{mode="user"}': (7.75, 4),
            "whyidle_cpu_online_cpus{}": ("8x250", "8x250"),
        },
    ),
    (
        "data_queue",
        "cpus_stolen",
        {
            f"whyidle_rank_cpu_stolen_seconds_total{{{OF_RANK}}}": (0.25, 0.0625),
            f"whyidle_rank_cpu_asked_seconds_total{{{OF_RANK}}}": (2, 2),
        },
    ),
    ("data_queue", "ranks_queued", {f"whyidle_rank_cpu_queued_seconds_total{{{OF_RANK}}}": (0.25, 0.0625)}),
)
FAMILY = {"network": "network", "data_read": "storage", "checkpoint_write": "storage"}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


@needs_promtool
@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_records_the_expected_series(path: Path, tmp_path: Path) -> None:
    assert_promtool(read_yaml(path.read_text()), tmp_path)


OTHERS: tuple[tuple[str, str, dict[str, float | str]], ...] = (
    # What other processes do on the same node is not evidence for waits of ranks.
    (
        "network",
        "connects-in-vain",
        {
            'whyidle_tcp_timeouts_total{namespace="host"}': 4,
            'whyidle_tcp_retransmits_total{namespace="host"}': 4,
            'whyidle_tcp_syn_retransmits_total{namespace="host"}': 4,
            'whyidle_tcp_sent_segments_total{namespace="host"}': 64,
        },
    ),
    (
        "data_read",
        "one-slow-operation",
        {
            f"whyidle_nfs_operation_seconds_total{{{READ}}}": 0.0625,
            f"whyidle_nfs_operation_requests_total{{{READ}}}": 0.25,
        },
    ),
    (
        "data_read",
        "another-file-system",
        {
            'whyidle_fuse_waiting_requests{device="0:81", fstype="fuse.s3", mount="/data"}': "2x250",
            f'whyidle_filesystem_rank_info{{{OF_RANK}, device="0:82", mount="/other"}}': "1x250",
        },
    ),
    (
        "checkpoint_write",
        "another-disk",
        {
            'whyidle_disk_io_seconds_total{device="sda"}': 0.25,
            'whyidle_disk_io_seconds_total{device="sdb"}': 1,
            f'whyidle_filesystem_rank_info{{{OF_RANK}, device="sda", mount="/data"}}': "1x250",
        },
    ),
)


@needs_promtool
def test_signals_confirm_and_refute(tmp_path: Path) -> None:
    """Each signal on a separate node, which has a separate run."""
    spent, series, evidence, verdicts = {}, {}, {}, {}
    for index, (cause, word, counters) in enumerate(OTHERS):
        node = f"other{index}"
        spent[f"{word}/0@{node}"] = {"compute": 0.5, cause: 0.5}
        series |= {name.replace("{", f"{{@{node}, "): value for name, value in counters.items()}
        verdicts[f'{{corroboration="unconfirmed", family="{FAMILY[cause]}", run="{word}"}}'] = 0.5
    for index, (cause, signal, counters) in enumerate(SIGNALS):
        family = FAMILY.get(cause, "cpu")
        for agrees, word in ((1, "confirmed"), (0, "unconfirmed")):
            node, run = f"n{index}{word}", f"{signal}-{word}"
            spent[f"{run}/0@{node}"] = {"compute": 0.5, cause: 0.5}
            for name, values in counters.items():
                series[name.replace("{", f"{{@{node}, ")] = values[1 - agrees]
            found = evidence.setdefault(f'node:whyidle_{family}_evidence:max5m{{signal="{signal}"}}', {})
            if agrees:
                found[f'{{node="{node}", signal="{signal}"}}'] = 1
            verdicts[f'{{corroboration="{word}", family="{family}", run="{run}"}}'] = 0.5
    case = {
        "name": "signals",
        "spent": spent,
        "series": series,
        "windows": {"5m": "5m"},
        "expect": {**evidence, "run_family:whyidle_verdict:ratioW": verdicts},
    }
    assert_promtool([case], tmp_path)


def records(config: Config = DEFAULT) -> list[Record]:
    return [rule for group in recording.groups(config) for rule in group.rules if isinstance(rule, Record)]


def test_every_name_is_declared_or_recorded() -> None:
    recorded = {rule.name for rule in records()}
    for rule in records():
        for name in NAME.findall(rule.expr):
            assert name in recorded or name in METRIC or name.removesuffix("_bucket") in METRIC, rule.name


def test_rejects_an_undeclared_metric() -> None:
    with pytest.raises(KeyError, match="whyidle_nonsense_total"):
        DEFAULT.rate("whyidle_nonsense_total", "5m")


def test_rejects_windows_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="among windows"):
        Config(windows=("2m", "10m"))
    with pytest.raises(ValueError, match="1m, 5m must be a multiple of interval, 2m"):
        Config(interval="2m")
    with pytest.raises(ValueError, match="interval is 4m, and must be 2m at most"):
        Config(interval="4m")
    with pytest.raises(ValueError, match="details_interval is 10m, and must be 4m at most"):
        Config(details_interval="10m")


def test_the_hour_of_a_whatif_question_has_a_whole_number_of_evaluations_of_ranks() -> None:
    assert 3600 % seconds(DEFAULT.ranks_interval) == 0


def test_names_are_of_the_form_level_metric_operations() -> None:
    for rule in records():
        assert re.fullmatch(r"[a-z_]+:whyidle_[a-z_]+:[a-z0-9_]+", rule.name), rule.name


def test_each_series_is_recorded_by_one_rule() -> None:
    keys = [(rule.name, *sorted(rule.labels.items())) for rule in records()]
    assert len(keys) == len(set(keys))


def test_selector_and_cluster_label_reach_every_expression() -> None:
    config = Config(selector='job="agents"', cluster_label="site")
    for rule in records(config):
        assert "cluster" not in rule.expr.replace("cluster:", "").replace("cluster_family:", ""), rule.name
        raw = re.sub(r"[a-z_]+:whyidle_\w+:\w+", "", rule.expr)
        assert len(re.findall(r"\bwhyidle_\w+", raw)) == raw.count('job="agents"'), rule.name


@needs_promtool
@pytest.mark.parametrize(
    "config",
    [
        DEFAULT,
        Config(selector='job="agents"', cluster_label="site"),
        Config(windows=("2m", "10m"), interval="30s", window="2m", long_window="10m"),
    ],
    ids=["default", "selector", "windows"],
)
def test_promtool_accepts_the_rules(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(to_yaml(recording.groups(config)))
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(records(config))} rules found" in done.stdout


def test_prometheusrule_resources_hold_the_same_groups() -> None:
    plain, resources = files(), files(format="operator")
    assert plain.keys() == resources.keys()
    for name, text in resources.items():
        resource = read_yaml(text)
        assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        assert resource["spec"] == read_yaml(plain[name])


def test_each_rule_has_its_reason_as_a_comment_above_it() -> None:
    text = to_yaml([Group("g", "1m", (Record("a:b:c", "1", {"x": "y"}, why="For this."),))])
    assert "      # For this.\n      - record: a:b:c\n" in text
    assert read_yaml(text) == {
        "groups": [{"name": "g", "interval": "1m", "rules": [{"record": "a:b:c", "expr": "1", "labels": {"x": "y"}}]}]
    }


class TestCommand:
    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "whyidle.cli.main", "rules", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def test_prints_one_file_of_all_rules(self) -> None:
        done = self.run()
        assert (done.returncode, done.stderr) == (0, "")
        found = [group["name"] for group in read_yaml(done.stdout)["groups"]]
        assert found == [group.name for group in groups()]

    def test_prints_a_document_per_resource(self) -> None:
        documents = list(read_yamls(self.run("--format", "operator").stdout))
        assert [document["metadata"]["name"] for document in documents] == ["whyidle-recording", "whyidle-alerts"]

    def test_writes_files_and_checks_them(self, tmp_path: Path) -> None:
        assert self.run("--out", tmp_path / "new").returncode == 0
        assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == files()
        assert self.run("--out", tmp_path / "new", "--check").returncode == 0
        (tmp_path / "new" / "recording.yaml").write_text("groups: []\n")
        stale = self.run("--out", tmp_path / "new", "--check")
        assert stale.returncode == 1
        assert "recording.yaml differs from what is generated" in stale.stderr
        assert (tmp_path / "new" / "recording.yaml").read_text() == "groups: []\n"

    def test_committed_files_are_up_to_date(self) -> None:
        done = self.run("--check")
        assert (done.returncode, done.stderr) == (0, "")
