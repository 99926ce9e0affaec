"""What the device does in one process, against what it should: `checks.py [name ...]` prints {name: error or null}.

In a process of its own, since torch knows the device for good once it is loaded."""

from __future__ import annotations

import copy
import gc
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

import simdevice  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

MS = 1_000_000


def event() -> torch.Event:
    return torch.Event("sim", enable_timing=True)


def raises(function: Callable[[], object]) -> str:
    try:
        function()
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("nothing was raised")


def check_the_accelerator_is_ours() -> None:
    assert str(torch.accelerator.current_accelerator()) == "sim"
    assert torch.accelerator.device_count() == 2
    assert torch.zeros(2, device="sim").device == torch.device("sim", 0)


def check_busy_takes_exactly_its_time() -> None:
    x = torch.randn(4, device="sim", requires_grad=True)
    simdevice.busy(x, 3, 5, "layer").sum().backward()
    torch.accelerator.synchronize()
    assert [(each.tag, each.ns) for each in simdevice.schedule()] == [
        ("layer forward", 3 * MS),
        ("layer backward", 5 * MS),
    ]
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 4


def check_a_full_stream_has_no_gaps() -> None:
    for _ in range(20):
        simdevice.occupy(1)
    torch.accelerator.synchronize()
    entries = simdevice.schedule()
    assert entries[-1].end - entries[0].start == 20 * MS
    assert simdevice.gaps(entries, entries[0].start, entries[-1].end) == []


def check_elapsed_time_is_the_schedules() -> None:
    simdevice.occupy(2)
    first, last = event(), event()
    first.record()
    simdevice.occupy(4)
    simdevice.occupy(3)
    last.record()
    assert not last.query()
    last.synchronize()
    assert last.query()
    assert first.elapsed_time(last) == 7.0
    assert "enable_timing" in raises(lambda: torch.Event("sim").elapsed_time(last))


def check_an_idle_stream_is_a_gap() -> None:
    simdevice.occupy(1)
    torch.accelerator.synchronize()
    before = time.monotonic_ns()
    time.sleep(0.01)
    simdevice.occupy(1)
    torch.accelerator.synchronize()
    first, second = simdevice.schedule()
    assert second.start - first.end >= 10 * MS
    assert first.end <= before
    assert simdevice.gaps([first, second], first.start, second.end) == [(first.end, second.start)]


def check_streams_overlap_and_wait_for_events() -> None:
    home, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    simdevice.occupy(6, "home")
    with torch.sim.stream(side):  # pyright: ignore
        simdevice.occupy(8, "side")
    home.wait_stream(side)
    simdevice.occupy(1, "after")
    torch.accelerator.synchronize()
    at_home, beside = simdevice.schedule(home), simdevice.schedule(side)
    assert [each.kind for each in at_home] == ["busy", "wait", "busy"]
    assert at_home[1].end == beside[0].end
    assert at_home[2].start == beside[0].end
    assert simdevice.overlap(beside, at_home[:1]) == at_home[0].end - beside[0].start


def check_a_loaded_machine_changes_no_duration() -> None:
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            sum(range(1000))

    other = threading.Thread(target=load)
    other.start()
    first, last = event(), event()
    simdevice.occupy(5)
    first.record()
    for _ in range(10):
        simdevice.occupy(2)
    last.record()
    last.synchronize()
    stop.set()
    other.join()
    assert first.elapsed_time(last) == 20.0


def check_a_full_queue_blocks_the_host() -> None:
    simdevice.set_queue_limit(4)
    for _ in range(12):
        simdevice.occupy(2)
    assert simdevice.counters()["full_queue"] >= 1
    x = torch.ones(2, device="sim")
    for _ in range(12):  # released by torch around its operators
        x = x + 1
    assert simdevice.counters()["full_queue_with_gil"] == 0
    simdevice.set_queue_limit(1)
    marks = [torch.Event("sim") for _ in range(4)]
    for release in (False, True):
        simdevice.release_gil_when_full(release)
        for mark in marks:
            simdevice.occupy(1)
            mark.record()
    assert simdevice.counters()["full_queue_with_gil"] >= 1


def check_the_host_runs_ahead() -> None:
    simdevice.occupy(30)
    x = torch.ones(8, 8, device="sim")
    for _ in range(50):
        x = torch.tanh(x @ x)
    assert not torch.accelerator.current_stream().query()
    counts = simdevice.counters()
    assert counts["operator_blocking"] == counts["copy_blocking"] == 0
    assert torch.isfinite(x).all().item()
    assert simdevice.counters()["operator_blocking"] == 1


def check_copies_block_as_cudas_do() -> None:
    pinned, pageable = torch.ones(1000).pin_memory(), torch.ones(1000)
    assert pinned.is_pinned()
    there = pinned.to("sim", non_blocking=True)
    pageable.to("sim", non_blocking=True)
    pinned.copy_(there, non_blocking=True)
    assert simdevice.counters()["copy_blocking"] == 0
    pinned.to("sim")
    there.cpu()
    assert simdevice.counters()["copy_blocking"] == 2
    simdevice.clear_schedule()
    simdevice.set_copy_rate(0.004)  # 4000 bytes take 1 ms
    there.cpu()
    simdevice.set_copy_rate(0)
    assert [(each.kind, each.ns) for each in simdevice.schedule()] == [("copy", MS)]


def check_kernels_take_a_set_time() -> None:
    x = torch.ones(4, device="sim")
    torch.accelerator.synchronize()
    simdevice.set_kernel_time(500)
    torch.tanh(x)
    torch.accelerator.synchronize()
    simdevice.set_kernel_time(0)
    assert [(each.kind, each.tag, each.ns) for each in simdevice.schedule()] == [("kernel", "aten::tanh", MS // 2)]


def check_counts_are_per_label() -> None:
    with simdevice.blame("hook"):
        mark = torch.Event("sim")
        mark.record()
        mark.query()
    torch.accelerator.synchronize()
    assert simdevice.counters("hook")["query_event"] == 1
    assert simdevice.counters("hook")["record_event"] == 1
    assert simdevice.counters("hook")["synchronize_device"] == 0
    assert simdevice.counters()["synchronize_device"] == 1
    assert simdevice.counters("nobody")["query_event"] == 0


def check_callers_are_named() -> None:
    with simdevice.callers("checks.py") as calls:
        torch.ones(1, device="sim").item()
    assert [call for call, _ in calls][-1] == "operator_blocking"
    assert "checks.py:" in calls[-1][1]
    with simdevice.callers("/elsewhere/") as calls:
        torch.accelerator.synchronize()
    assert calls == []


def check_a_context_is_made_where_something_happens() -> None:
    simdevice.forget_contexts()
    assert simdevice.contexts() == [False, False]
    torch.Event("sim:1")
    torch.accelerator.current_stream()
    assert simdevice.contexts() == [False, False]
    torch.ones(1, device="sim:1")
    assert simdevice.contexts() == [False, True]
    simdevice.occupy(0.1)
    assert simdevice.contexts() == [True, True]


def check_a_capture_forbids_queries() -> None:
    before, graph = event(), simdevice.Graph()
    before.record()
    x = torch.zeros(2, device="sim")
    torch.accelerator.synchronize()
    with graph.capture():
        assert torch.sim.is_current_stream_capturing()  # pyright: ignore
        x.add_(1)
        simdevice.occupy(2)
        assert "capturing" in raises(before.query)
        assert "capturing" in raises(torch.accelerator.synchronize)
        event().record()
    assert not torch.sim.is_current_stream_capturing()  # pyright: ignore
    assert x.tolist() == [0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2]
    assert [each.ns for each in simdevice.schedule()] == [2 * MS, 2 * MS]
    counts = simdevice.counters()
    assert (counts["query_in_capture"], counts["synchronize_in_capture"], counts["record_in_capture"]) == (1, 1, 1)


def check_an_error_is_raised_at_the_next_synchronization() -> None:
    torch.ones(2, device="sim").index_select(0, torch.tensor([5], device="sim", dtype=torch.int64))
    assert "out of range" in raises(torch.accelerator.synchronize)
    torch.accelerator.synchronize()


def check_random_numbers_repeat() -> None:
    torch.manual_seed(3)
    first, dropped = torch.rand(4, device="sim"), nn.functional.dropout(torch.ones(100, device="sim"), 0.4)
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="sim"))
    assert torch.equal(dropped, nn.functional.dropout(torch.ones(100, device="sim"), 0.4))
    state = torch.sim.get_rng_state()  # pyright: ignore
    first = torch.randn(4, device="sim")
    torch.sim.set_rng_state(state)  # pyright: ignore
    assert torch.equal(first, torch.randn(4, device="sim"))
    assert len(set(torch.randperm(9, device="sim").tolist())) == 9


def check_memory_is_returned() -> None:
    gc.collect()
    torch.accelerator.synchronize()
    before = torch.sim.memory_allocated()  # pyright: ignore
    x = torch.ones(1000, device="sim")
    assert torch.sim.memory_allocated() == before + 4000  # pyright: ignore
    x.untyped_storage().resize_(0)
    torch.accelerator.synchronize()
    assert torch.sim.memory_allocated() == before  # pyright: ignore


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.project(input).chunk(3, dim=-1)
        )
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.ReLU()), (5, 16)),
    "convolution": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 3), nn.AdaptiveAvgPool2d(1)),
        ),
        (2, 3, 8, 8),
    ),
    "attention": (Attention, (2, 5, 16)),
}


def check_training_equals_the_cpus_to_the_bit() -> None:
    for name, (make, shape) in MODELS.items():
        for optimizer in (torch.optim.AdamW, torch.optim.SGD):
            torch.manual_seed(0)
            on_cpu = make()
            on_device = copy.deepcopy(on_cpu).to("sim")
            losses = []
            for model, device in ((on_cpu, "cpu"), (on_device, "sim")):
                random = torch.Generator().manual_seed(1)
                steps = optimizer(model.parameters(), lr=0.01)
                for _ in range(3):
                    loss = model(torch.randn(shape, generator=random).to(device)).square().mean()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    steps.step()
                    steps.zero_grad()
                    losses.append(loss.item())
            assert losses[:3] == losses[3:], (name, losses)
            for mine, theirs in zip(on_cpu.parameters(), on_device.parameters(), strict=True):
                assert torch.equal(mine, theirs.cpu()), name


def check_operators_equal_the_cpus() -> None:
    random = torch.Generator().manual_seed(5)
    x, i = torch.randn(4, 6, generator=random), torch.tensor([2, 0, 1])
    operators: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "views": lambda x, i: x.t()[1:, ::2].reshape(-1).unfold(0, 2, 1),
        "index": lambda x, i: x[i, i] + x.index_select(0, i)[:, 0] + x.gather(0, i.expand(2, 3)).sum(),
        "mask": lambda x, i: x[x > 0],
        "sort": lambda x, i: x.sort(dim=1, descending=True).values + x.topk(6).values,
        "where": lambda x, i: torch.where(torch.cat([x, x])[:4] > 0, 1.0, torch.stack([x, -x]).sum(0)),
        "einsum": lambda x, i: torch.einsum("ij,kj->ik", x, x).cumsum(0).softmax(-1).logsumexp(0),
        "foreach": lambda x, i: torch._foreach_add([x, x], 1.5)[1],
        "out": lambda x, i: torch.add(x, 1, out=torch.empty(0, device=x.device)),
        "factories": lambda x, i: (
            torch.arange(6, device=x.device) + torch.eye(6, device=x.device) + x.new_full((6,), 2)
        ),
        "scalars": lambda x, i: (x * torch.tensor(2.0) + 1) ** 2 / 3,
        "embedding": lambda x, i: nn.functional.embedding(i, x),
        "losses": lambda x, i: nn.functional.cross_entropy(x[:3], i) + nn.functional.mse_loss(x, x + 1),
        "complex": lambda x, i: torch.view_as_real(torch.fft.rfft(x)),
        "dtypes": lambda x, i: x.bfloat16().float() + x.double() + x.to(torch.int64),
        "unique": lambda x, i: i.repeat(2).unique(),
        "scatter": lambda x, i: torch.zeros_like(x).scatter_add_(0, i.expand(2, 3), x[:2, :3]).index_add(0, i, x[:3]),
    }
    for name, operator in operators.items():
        wanted, got = operator(x, i), operator(x.to("sim"), i.to("sim"))
        assert got.device.type == "sim", name
        assert torch.equal(wanted, got.cpu()), name
    assert torch.equal(x.to("sim"), x.to("sim"))


def check_autocast_and_grad_scaler() -> None:
    model = nn.Linear(4, 4).to("sim")
    scaler, optimizer = torch.amp.GradScaler("sim"), torch.optim.SGD(model.parameters(), 0.1)  # pyright: ignore
    with torch.autocast("sim", dtype=torch.bfloat16):
        output = model(torch.randn(2, 4, device="sim"))
        loss = nn.functional.mse_loss(output, torch.zeros_like(output))
    assert (output.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.isfinite(each).all() for each in model.parameters())


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    results = {}
    for name, check in list(globals().items()):
        if not name.startswith("check_") or (wanted and name not in wanted):
            continue
        torch.accelerator.synchronize()
        simdevice.set_queue_limit(1024)
        simdevice.release_gil_when_full(False)
        simdevice.clear_schedule()
        simdevice.reset_counters()
        try:
            check()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
