"""The study: its model, its text, its prices and its tiers. It removes everything that it created, however it ends."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import study
import study_cells
import study_tables
import torch
import whatif_network
from study_cells import LINKS, STORAGES, Cell, Own
from study_model import CONTEXT, TOKENS, LanguageModel, loss
from study_prices import InvalidPrices, Prices, SetUp, cheapest, cost, read_prices
from study_text import SHARD_TOKENS, TooLittleText, Windows, write_shards
from study_tiers import KEPT, TIERS, Group, Node
from support_bottlenecks_disks import missing, slow_folder
from support_ledgers import DEADLINE_SECONDS, until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "study.py"


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return tmp_path / "prices.json"


def set_up(name: str, ratio: float, survives: str = "yes", tier: str = "nfs", link: str = "4gbit") -> SetUp:
    return SetUp(name, tier, tier, link, ratio, survives)


def test_the_model_does_not_see_later_tokens() -> None:
    model = LanguageModel().eval()
    tokens = torch.randint(TOKENS, (2, CONTEXT))
    changed = tokens.clone()
    changed[:, CONTEXT // 2] += 1 - 2 * (changed[:, CONTEXT // 2] == TOKENS - 1)
    before, after = model(tokens), model(changed)
    assert before.shape == (2, CONTEXT, TOKENS)
    assert torch.equal(before[:, : CONTEXT // 2], after[:, : CONTEXT // 2])
    assert not torch.equal(before[:, CONTEXT // 2 :], after[:, CONTEXT // 2 :])
    assert sum(weight.numel() for weight in model.parameters()) == 834_304


def test_the_model_learns() -> None:
    torch.manual_seed(0)
    model = LanguageModel()
    tokens = torch.arange(CONTEXT + 1).unsqueeze(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(5):
        error = loss(model, tokens)
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(error.item())
    assert losses[0] == pytest.approx(math.log(TOKENS), rel=0.1)
    assert losses[-1] < losses[0] - 0.5


def test_windows_are_the_text(tmp_path: Path) -> None:
    text = bytes(range(256)) * (SHARD_TOKENS // 128 + 1)
    write_shards(tmp_path / "data", iter([text[:1000], text[1000:]]), shards=2)
    windows = Windows(tmp_path / "data")
    in_each = (SHARD_TOKENS - 1) // CONTEXT
    assert len(windows) == 2 * in_each
    for index, begin in ((0, 0), (5, 5 * CONTEXT), (in_each + 1, SHARD_TOKENS + CONTEXT)):
        tokens, seconds = windows[index]
        assert bytes(tokens.tolist()) == text[begin : begin + CONTEXT + 1]
        assert seconds >= 0


def test_too_little_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TooLittleText, match="1048576 bytes"):
        write_shards(tmp_path / "data", iter([b"short"]), shards=2)


def test_the_clock_of_the_slowest_rank_counts() -> None:
    one = {"steps": [9.0, 1.0, 3.0], "waits": [9.0, 0.1, 0.2], "reads": [0.01, 0.03], "saves": [2.0, 4.0]}
    other = {"steps": [9.0, 1.0, 3.0], "waits": [9.0, 0.5, 0.0], "reads": [0.02], "saves": []}
    ends = {"losses": [5.0, 3.0], "restore": 1.0, "total": 20.0}, {"losses": [7.0, 5.0], "restore": 2.0, "total": 19.0}
    own = study_cells.own_clock([one | ends[0], other | ends[1]])
    assert (own.step, own.save, own.restore, own.total) == (2.0, 3.0, 2.0, 20.0)
    assert own.wait == pytest.approx(0.2)
    assert own.wait_p99 == pytest.approx(0.5, rel=0.02)
    assert own.read_100 == pytest.approx(2.0)
    assert own.first_loss == 6.0


def test_a_result_is_read_only_with_the_same_settings(tmp_path: Path) -> None:
    cell = Cell(STORAGES[0], LINKS[0], 0)
    own = {one.name: 1.0 for one in fields(Own)}
    written = {"settings": study_cells.settings(60), "report": {"run": "x"}, "own": own}
    assert study_cells.read(cell, tmp_path, 60) is None
    cell.file(tmp_path).write_text(json.dumps(written))
    found = study_cells.read(cell, tmp_path, 60)
    assert found
    assert (found.report, found.own) == ({"run": "x"}, Own(**own))
    assert study_cells.read(cell, tmp_path, 40) is None
    for broken in ("", "[]", '{"settings": 1}', json.dumps(written | {"own": {}})):
        cell.file(tmp_path).write_text(broken)
        assert study_cells.read(cell, tmp_path, 60) is None


def test_costs_add_up() -> None:
    prices = Prices(hours=730.0, nodes=2, node_hour=10.0, data_gb=100.0, checkpoints_gb=50.0)
    shared = cost(set_up("shared", 1.0), prices)
    assert (shared.hours, shared.nodes, shared.links) == (730.0, 14_600.0, 2_920.0)
    assert shared.storage == pytest.approx(150 * 0.30)
    local = cost(set_up("local", 2.0, tier="disk", link="100mbit"), prices)
    assert (local.hours, local.links) == (1460.0, 0.0)
    assert local.storage == pytest.approx(2 * (2 * 100 + 50) * 0.10)
    assert local.total == local.nodes + local.storage


def test_the_cheapest_is_fast_enough() -> None:
    found = [
        cost(set_up(name, ratio, survives, "memory" if survives == "no" else "nfs", link), Prices(hours=100.0))
        for name, ratio, survives, link in (
            ("slow", 1.2, "yes", "100mbit"),
            ("near", 1.05, "yes", "100mbit"),
            ("best", 1.0, "no", "100mbit"),
        )
    ]
    slow, near, best = found
    assert cheapest(found) is best
    assert cheapest(found, surviving=True) is near
    assert cheapest([slow, best], surviving=True) is None
    assert cheapest([]) is None
    assert "its checkpoints are lost with the node" in study_tables.chosen(found)
    assert "No set-up whose checkpoints survive" in study_tables.chosen([slow, best])


def test_prices_of_a_file_replace_the_examples(prices: Path) -> None:
    prices.write_text('{"node_hour": 30, "gb_month": {"nfs": 0.5}, "on_each_node": ["disk"]}')
    found = read_prices(prices)
    assert (found.node_hour, found.gb_month["nfs"], found.gb_month["disk"]) == (30.0, 0.5, Prices().gb_month["disk"])
    assert found.on_each_node == ("disk",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must be an object"),
        ('{"gpu_hour": 3}', "must be an object with some of these: hours"),
        ('{"node_hour": "3"}', "node_hour must be a number of at least 0, and not '3'"),
        ('{"node_hour": -1}', "must be a number of at least 0"),
        ('{"node_hour": NaN}', "must be a number of at least 0"),
        ('{"hours": true}', "must be a number of at least 0"),
        ('{"gb_month": {"tape": 1}}', "gb_month must be an object with some of these: memory"),
        ('{"gb_month": 1}', "gb_month must be an object"),
        ('{"on_each_node": "disk"}', "on_each_node must be a list"),
    ],
)
def test_rejects_invalid_prices(prices: Path, text: str, said: str) -> None:
    prices.write_text(text)
    with pytest.raises(InvalidPrices, match=said):
        read_prices(prices)


def test_each_tier_has_a_price_and_says_what_survives() -> None:
    assert set(Prices().gb_month) == set(TIERS)
    assert set(Prices().link_node_hour) == {link.name for link in LINKS}
    assert {storage.survives for storage in STORAGES} <= set(KEPT)
    assert {tier for storage in STORAGES for tier in (storage.data, storage.checkpoints)} == set(TIERS)


def test_a_storage_that_this_machine_lacks_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, tier in TIERS.items():
        lacking = "needs rclone" if name == "cached" else None
        monkeypatch.setitem(TIERS, name, replace(tier, lacks=lambda lacking=lacking: lacking))
    cells = study._cells(rounds=2)
    assert {cell.storage.name for cell in cells} == {"memory", "disk", "nfs", "object"}
    assert len(cells) == 2 * 4 * len(LINKS)
    assert capsys.readouterr().err.splitlines() == [
        f"{name} is left out: this machine needs rclone" for name in ("disk+cached", "cached")
    ]


# -- what needs root


_lacks = "needs root" if os.getuid() else missing()
needs_root = pytest.mark.skipif(_lacks is not None, reason=str(_lacks))


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "old").write_bytes(b"old" * 1000)
    with slow_folder(tmp_path / "below", tmp_path / "at", read_ms=1, cached=True, bytes_per_second=50_000_000) as at:
        yield at


@needs_root
def test_a_slow_file_system_with_a_rate_takes_writes(limited: Path, tmp_path: Path) -> None:
    (limited / "new").write_bytes(b"new" * 100_000)
    (limited / "old").write_bytes(b"short")
    assert (limited / "new").read_bytes() == (tmp_path / "below" / "new").read_bytes() == b"new" * 100_000
    assert (tmp_path / "below" / "old").read_bytes() == b"short"


@needs_root
def test_a_file_has_the_rate_of_a_connection(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "shard").write_bytes(os.urandom(1_000_000))
    slow = slow_folder(
        tmp_path / "below", tmp_path / "at", read_ms=0, cached=False, bytes_per_second=4_000_000, rate_per_file=True
    )
    with slow as at:
        began = time.monotonic()
        assert len((at / "shard").read_bytes()) == 1_000_000
        assert time.monotonic() - began >= 0.2


@needs_root
@pytest.mark.parametrize("name", [*TIERS])
def test_a_tier_stores_and_reads_on_each_node(tmp_path: Path, name: str) -> None:
    if lacks := whatif_network.missing() or TIERS[name].lacks():
        pytest.skip(f"this machine {lacks}")
    group = Group(f"whyidle-study-test-{os.getpid()}")
    group.make()
    try:
        with whatif_network.network(3) as names:
            for folder in ("memory/files", "disk"):
                (tmp_path / folder).mkdir(parents=True)
            node = Node(tmp_path / "memory", tmp_path / "disk", group, names)
            (node.files / "old").write_bytes(b"old" * 50_000)
            with TIERS[name].mount(node) as places:
                assert [(place / "old").read_bytes() for place in places] == [b"old" * 50_000] * 2
                with open(places[0] / "new.new", "wb") as file:
                    file.write(b"new" * 100_000)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(places[0] / "new.new", places[0] / "new")
                assert (places[0] / "new").read_bytes() == b"new" * 100_000
                assert sorted({path.name for path in places[0].iterdir()} - {"lost+found"}) == ["new", "old"]
                if name != "disk":  # `cached` uploads it later
                    until(lambda: (node.files / "new").exists())
            assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]
    finally:
        group.remove()


def left(pid: int) -> list[str]:
    """What a study has created and not removed."""
    places = [str(path) for path in Path("/run/netns").glob(f"whyidle-w{pid}-*")]
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if "whyidle-study-" in line]
    return places + mounts


@needs_root
@pytest.mark.long
@pytest.mark.alone
def test_a_study_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "1000", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as study:
        assert study.stderr
        try:
            started = study.stderr.readline()
            if "this machine" in started:
                pytest.skip(started)
            assert started == "1 of 24: memory-100mbit, 1000 steps\n"
            until(lambda: len(left(study.pid)) > 3)
            study.send_signal(signal.SIGINT)
            _, said = study.communicate(timeout=DEADLINE_SECONDS)
        finally:
            study.kill()
    assert study.returncode == 130
    assert said.startswith("study: stopped")
    assert left(study.pid) == []
    assert not (tmp_path / "out").exists()
