"""Checks the agent against the ledger, the GPU's counters against a known duty cycle, and a report against Kineto."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import torch
from torch.utils.data import DataLoader

import whyidle
from whyidle.agent.collectors.gpu.idle_difference import ENDED_SECONDS
from whyidle.ledger.causes import CAUSES

from .kineto import recorded, share_idle
from .loops import Account, batch, blocks, ledgers, read_only, step_on
from .rig import Pairs, Rig
from .rows import Row, at_most, compare, figure, skipped
from .waits import WARM, Slow, whyidle_report

PERIOD_MS = 50.0
SCRAPE_SECONDS = 5.0

# -- the agent


@contextmanager
def _agent(folder: Path) -> Iterator[Callable[[], str]]:
    """Runs `whyidle agent` as a process. Yields a function that returns its /metrics."""
    command = [sys.executable, "-m", "whyidle.cli.main", "agent", "--web.listen-address", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--ledger.dir", str(folder)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next((line for line in process.stderr if "address=" in line), "")
        if not address:
            raise RuntimeError("the agent did not start")
        url = "http://" + address.split("address=")[1].split()[0] + "/metrics"

        def scrape() -> str:
            with urlopen(url, timeout=20) as answer:
                return answer.read().decode()

        yield scrape
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _series(text: str, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    """Labels and values of the samples of a metric that have these labels."""
    found = []
    for line in text.splitlines():
        if line.startswith(name + "{"):
            inside, _, value = line[len(name) + 1 :].rpartition("} ")
            have = dict(re.findall(r'(\w+)="([^"]*)"', inside))
            if labels.items() <= have.items():
                found.append((have, float(value.split()[0])))
    return found


def agent(rig: Rig, fast: bool) -> Iterator[Row]:
    """Checks that `whyidle agent` exports the causes that are in the ledger of a real run."""
    steps = 10 if fast else 40
    with ledgers() as folder, _agent(folder) as scrape:
        account = _duty(rig, folder, steps, 0.5)[0]
        text = scrape()
        wall = sum(account.ledger.cause_ns.values()) / 1e9
        shown: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        for labels, value in _series(text, "whyidle_device_seconds_total", run="duty"):
            shown[labels["cause"]] += value
        kept = {cause: ns / 1e9 for cause, ns in account.ledger.cause_ns.items()}
        worst = max(CAUSES, key=lambda cause: abs(shown[cause] - kept[cause]))
        error = abs(shown[worst] - kept[worst]) / wall
        yield at_most("agent", rig.simulated, "worst cause in /metrics, against the ledger", error, "of wall", worst)
        up = _series(text, "whyidle_collector_up")
        down = ", ".join(labels["collector"] for labels, value in up if not value)
        yield figure("collectors", len(up), "count", f"down: {down}" if down else "all up")
        yield from account.sound("agent")


def _duty(rig: Rig, folder: Path, steps: int, share: float) -> tuple[Account, float, float]:
    """Trains with a device that is busy for a share of each period.

    Returns the account, the share by raw events, and the wall time in seconds.
    """
    busy = Pairs(rig)
    model = blocks(rig, busy, 1, PERIOD_MS * share, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = batch(rig)
    os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), "duty"
    whyidle.attach()
    begun = time.monotonic()
    for _ in range(steps):
        due = time.monotonic() + PERIOD_MS / 1e3
        step_on(model, optimizer, x)
        rig.synchronize()
        time.sleep(max(0.0, due - time.monotonic()))
    wall = time.monotonic() - begun
    whyidle.detach()
    return read_only(folder, rig.simulated), busy.total_ms() / 1e3 / wall, wall


@contextmanager
def _scraped(scrape: Callable[[], str]) -> Iterator[None]:
    """Scrapes all the time, as Prometheus does."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(SCRAPE_SECONDS):
            scrape()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# -- the GPU's own counters


def duty(rig: Rig, fast: bool) -> Iterator[Row]:
    """Checks NVML and GPM (through the agent), nvidia-smi and `compute_idle` against a known share of busy time."""
    if rig.simulated:
        for what in ("NVML and GPM through the agent", "whyidle_compute_idle_seconds_total", "nvidia-smi", "NVLinks"):
            yield skipped(what, "a simulated device has no counters")
        return
    seconds = 30 if fast else 80
    with ledgers() as folder, _agent(folder) as scrape:
        before = scrape()
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        programs = {
            "nvidia-smi, mean": query,
            "nvidia-smi dmon, sm, mean": ["nvidia-smi", "dmon", "-s", "u", "-d", "1"],
        }
        outputs: dict[str, list[float]] = {}
        running = {}
        if shutil.which("nvidia-smi"):
            running = {
                name: subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for name, command in programs.items()
            }
        try:
            with _scraped(scrape):
                account, share, wall = _duty(rig, folder, int(seconds * 1e3 / PERIOD_MS), 0.5)
                time.sleep(10)  # the agent notices that the rank has ended
        finally:
            for name, program in running.items():
                program.terminate()
                outputs[name] = _percents(program.communicate(timeout=10)[0])
        after = scrape()
    for name in programs:
        values = outputs.get(name)
        if values:
            yield compare("duty", False, name, share, statistics.mean(values) / 100, "ratio")
        else:
            yield skipped(name, "nvidia-smi is not there, or says nothing")
    for source in ("nvml", "gpm"):
        grown = [
            sum(value for _, value in _series(after, name, source=source))
            - sum(value for _, value in _series(before, name, source=source))
            for name in ("whyidle_gpu_busy_seconds_total", "whyidle_gpu_observed_seconds_total")
        ]
        # The agent also observed the time before and after the training.
        if grown[1] > 0:
            yield compare(
                "duty", False, f"agent, {source}: busy seconds", share * wall, grown[0], "s", slack=0.05 * wall
            )
        else:
            yield skipped(
                f"agent, {source}", "not observed; the agent reads samples of NVML only where there is no GPM"
            )
    idle = _series(after, "whyidle_compute_idle_seconds_total", run="duty")
    if idle:
        # The counter is a lower bound: it leaves out a rank's last 15 s, and what came after the agent's last look.
        known = (1 - share) * (wall - ENDED_SECONDS - SCRAPE_SECONDS)
        found = sum(value for _, value in idle)
        slack = (1 - share) * SCRAPE_SECONDS
        yield compare(
            "duty", False, "whyidle_compute_idle_seconds_total, but for the end", known, found, "s", "", slack
        )
    else:
        yield skipped("whyidle_compute_idle_seconds_total", "the agent does not export it here")
    yield _nvlinks(after)
    yield from account.sound("duty")


def _nvlinks(metrics: str) -> Row:
    """Compares what the NVLinks of the first GPU carry with what nvidia-smi says."""
    what = "agent: rate of the NVLinks"
    found = _series(metrics, "whyidle_gpu_nvlink_rate_bytes_per_second", gpu="0")
    said = ""
    if shutil.which("nvidia-smi"):
        words = ["nvidia-smi", "nvlink", "--status", "--id=0"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False).stdout
    known = sum(float(rate) for rate in re.findall(r"Link \d+: ([\d.]+) GB/s", said))
    if not known:
        return skipped(what, f"nvidia-smi says no rate, and the agent {'one' if found else 'none'}")
    carry = sum(value for _, value in found) / 1e9
    return compare("duty", False, what, known, carry, "GB/s", slack=known / 100)


def _percents(text: str) -> list[float]:
    """The utilisation of the first GPU in the output of nvidia-smi: one figure per line, or dmon's `gpu sm mem ...`."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if rows and len(rows[0]) > 1:
        rows = [row[1:2] for row in rows if row[0] == "0"]
    return [float(row[0]) for row in rows[2:-1] if row and row[0].isdigit()]


# -- a real model


def model(rig: Rig, fast: bool) -> Iterator[Row]:
    """Compares `whyidle report` with Kineto: a language model of `transformers` trains for half a minute."""
    what = "transformers' Llama"
    if rig.simulated:
        yield skipped(what, "needs a GPU: its operators are not all simulated, and Kineto cannot see that device")
        return
    try:
        from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]
    except ImportError:
        yield skipped(what, "transformers is not installed")
        return
    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16)
    network = LlamaForCausalLM(config).to(rig.device)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)
    tokens = torch.randint(0, config.vocab_size, (8, 512))

    def step(x: torch.Tensor) -> None:
        network(input_ids=x.to(rig.device), labels=x.to(rig.device)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    class Tokens(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            super().__getitem__(index)
            return tokens

    with ledgers() as folder:
        os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), "model"
        batches = iter(DataLoader(Tokens(100_000, 0.03), batch_size=None))
        for _ in range(WARM):  # CUDA loads kernels when they are first used: the first step takes seconds
            step(next(batches))
        rig.synchronize()
        whyidle.attach()
        end = time.monotonic() + (10 if fast else 30)
        while time.monotonic() < end:
            step(next(batches))
        rig.synchronize()
        with recorded() as trace:
            for _ in range(20):
                step(next(batches))
            rig.synchronize()
        whyidle.detach()
        said = whyidle_report(str(folder))
        account = read_only(folder, False)
    idle = share_idle(trace.owed, (trace.owed[0][0], trace.owed[-1][1]))
    (rank,) = said["per_rank"]
    seconds = {cause: spent for cause, spent in rank["seconds"].items() if cause != "startup"}
    found = 1 - seconds["compute"] / sum(seconds.values())
    verdict = said["verdict"]
    note = f"verdict: {verdict['family']} {verdict['share']:.0%}"
    yield compare("share", False, f"{what}: idle share", idle, found, "ratio", note)
    yield from account.sound(what)
