"""Trainings in one process that sees two devices: which of them they use, against the log of the stand-in."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cudastandin.lab import SHARED_MEMORY
from cudastandin.truth import cut, length, read_log, union
from support_forks import Forks
from support_sites import report
from support_training import meeting

pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).parents[1] / "support" / "cudastandin" / "devices.py"


def trained(forks: Forks, folder: Path, loop: str, seconds: float, ranks: int = 1, **env: str) -> dict[str, Any]:
    """The report on a training."""
    (folder / "log").mkdir()
    with tempfile.TemporaryDirectory(prefix="standin-", dir=SHARED_MEMORY) as shared, ExitStack() as stack:
        given = {"STANDIN_LOG": str(folder / "log"), "STANDIN_SHARED": shared, "STANDIN_DEVICES": "2", **env}
        world = meeting(ranks) if ranks > 1 else {}
        started = []
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            started.append(forks.start((str(SCRIPT), loop, str(folder), str(seconds)), folder, given | world | place))
            stack.callback(started[-1].kill)
        assert [process.wait(60) for process in started] == [0] * ranks, (folder / "stderr").read_text()
    return report(folder / "ledgers")


def device_works(folder: Path) -> bool:
    """Whether some device has run anything, by the log."""
    return any(read_log(path).ops for path in (folder / "log").iterdir())


def busy_by_log(folder: Path) -> dict[str, float]:
    """The share of time in which each device ran something, by the log."""
    told = json.loads((folder / "told.json").read_text())
    window = told["begun"], told["ended"]
    (log,) = [log for path in (folder / "log").iterdir() if (log := read_log(path)).ops]
    works = [(op.device, (op.start, op.end)) for op in log.ops if op.kind in "KCS" and op.end > op.start]
    spans = {f"cuda:{device}": union(cut([span for of, span in works if of == device], window)) for device in (0, 1)}
    return {device: length(busy) / (window[1] - window[0]) for device, busy in spans.items()}


def test_a_training_on_the_cpu_is_told_that_two_gpus_are_visible(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "on_the_cpu", 4.0)
    assert (said["verdict"]["family"], said["verdict"]["share"]) == ("unused", 1.0)
    assert said["verdict"]["summary"] == "2 GPUs are visible, and the model is on the CPU"
    assert not device_works(tmp_path)  # whyidle has not touched one, either


def test_a_training_on_the_cpu_beside_a_context_is_told_the_same(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "asks_for_names", 4.0)
    assert said["verdict"]["summary"] == "2 GPUs are visible, and the model is on the CPU"


def test_a_program_that_chooses_the_cpu_hears_nothing(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "on_the_cpu_by_choice", 4.0)
    assert said["verdict"]["family"] == "compute"
    assert said["per_rank"][0]["unused"] is None


def test_a_training_without_visible_devices_hears_nothing(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "on_the_cpu", 4.0, STANDIN_DEVICES="0")
    assert said["verdict"]["family"] == "compute"
    assert said["per_rank"][0]["unused"] is None


@pytest.mark.parametrize("loop", ["layers_on_two", "layers_on_two_with_its_loss"])
def test_layers_that_are_spread_over_two_devices_take_turns(cuda_forks: Forks, tmp_path: Path, loop: str) -> None:
    said = trained(cuda_forks, tmp_path, loop, 12.0)
    busy = busy_by_log(tmp_path)
    (rank,) = said["per_rank"]
    assert rank["devices_busy"] == pytest.approx(busy, abs=0.05)
    verdict = said["verdict"]
    assert (verdict["family"], verdict["share"]) == ("pipeline", pytest.approx(1 - sum(busy.values()) / 2, abs=0.05))
    first, second = (round(100 * share) for share in rank["devices_busy"].values())
    turns = f"cuda:0 and cuda:1 take turns, {first} and {second} % busy"
    assert verdict["summary"] == f"{turns}: the layers of one model are spread over them"
    assert "torchrun --nproc-per-node=2" in " ".join(verdict["evidence"])


def test_two_devices_that_work_at_once_do_not_take_turns(cuda_forks: Forks, tmp_path: Path) -> None:
    """Its losses are on both devices, in turns: the clock stays on one."""
    said = trained(cuda_forks, tmp_path, "both_at_once", 12.0)
    (rank,) = said["per_rank"]
    assert rank["devices_busy"] == pytest.approx(busy_by_log(tmp_path), abs=0.05)
    assert (said["verdict"]["family"], rank["unmeasured"], rank["faults"]) == ("compute", 0, 0)


def test_a_training_on_one_of_two_visible_gpus_is_told(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "one_of_two", 4.0)
    assert (set(busy_by_log(tmp_path)), busy_by_log(tmp_path)["cuda:1"]) == ({"cuda:0", "cuda:1"}, 0.0)
    ((gpus,), node) = said["gpus"], said["per_rank"][0]["node"]
    assert (gpus["used"], gpus["visible"]) == (1, 2)
    assert (
        gpus["sentence"] == f"uses 1 of 2 visible GPUs on {node}: `torchrun --nproc-per-node=2` starts a rank for each"
    )


def test_two_ranks_on_one_of_two_gpus_are_named(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "ignores_its_local_rank", 4.0, 2)
    (gpus,), node = said["gpus"], said["per_rank"][0]["node"]
    assert (gpus["used"], gpus["visible"], gpus["sharing"]) == (1, 2, [0, 1])
    assert gpus["sentence"].startswith(f"uses 1 of 2 visible GPUs on {node}, and ranks 0 and 1 share one: ")


def test_the_copies_of_data_parallel_are_told_to_be_ranks(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "data_parallel", 12.0)
    (rank,) = said["per_rank"]
    assert rank["devices_busy"] == pytest.approx(busy_by_log(tmp_path), abs=0.05)
    assert any("DistributedDataParallel" in sentence for sentence in said["verdict"]["evidence"])


def test_a_training_on_the_only_visible_gpu_hears_nothing(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "one_of_two", 4.0, STANDIN_DEVICES="1")
    assert (said["gpus"], said["per_rank"][0]["unused"]) == ([], None)
    assert said["verdict"]["family"] == "compute"


def test_idle_time_in_steps_of_environments_is_host(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "acts", 14.0)
    (rank,), busy = said["per_rank"], busy_by_log(tmp_path)["cuda:0"]
    shares = {cause: seconds / rank["wall_seconds"] for cause, seconds in rank["seconds"].items()}
    # About 5 of 120 looks find the idle time between launches: ± 2 points, and they miss some of it.
    assert shares["compute"] + shares["rollout"] == pytest.approx(busy, abs=0.1)
    # Three updates, each with passes of three times the policy's time, after 30 steps of the environment.
    assert shares["rollout"] / (shares["compute"] + shares["rollout"]) == pytest.approx(30 / (30 + 3 * 3), abs=0.1)
    assert (said["verdict"]["family"], rank["unmeasured"], rank["faults"]) == ("host", 0, 0)
    assert said["verdict"]["summary"].startswith("the device waits for steps of environments")
    assert [aside["cause"] for aside in said["asides"]] == ["rollout"]


def test_a_cache_that_is_emptied_in_each_step_is_the_headline(cuda_forks: Forks, tmp_path: Path) -> None:
    """Each cudaFree takes 6 ms after it has waited for the device."""
    said = trained(cuda_forks, tmp_path, "empties_its_cache", 8.0, STANDIN_FREE_NS="6000000")
    (rank,), verdict = said["per_rank"], said["verdict"]
    assert rank["device_memory"]["alloc_flushes"] > rank["steps"] / 2
    assert rank["device_memory"]["alloc_retries"] == 0
    assert verdict["family"] == "host"
    assert verdict["summary"] == "torch.cuda.empty_cache() in each step: the device waits for torch's allocator"
    idle = 1 - busy_by_log(tmp_path)["cuda:0"]
    assert rank["seconds"]["host_allocator"] / rank["wall_seconds"] == pytest.approx(idle, abs=0.05)
    assert any("torch.cuda.empty_cache" in sentence for sentence in verdict["evidence"])
    assert rank["unmeasured"] == 0


def test_allocations_that_are_tried_again_in_each_step_are_the_headline(cuda_forks: Forks, tmp_path: Path) -> None:
    """Each cudaFree takes 30 ms after it has waited for the device."""
    said = trained(cuda_forks, tmp_path, "runs_short_of_memory", 10.0, STANDIN_FREE_NS="30000000")
    verdict, memory = said["verdict"], said["per_rank"][0]["device_memory"]
    assert memory["alloc_retries"] > 10
    assert 4 <= memory["memory_reserved"] / 2**30 <= 7.1
    assert memory["memory_total"] == 8 * 2**30
    assert (verdict["family"], verdict["share"]) == (
        "host",
        pytest.approx(1 - busy_by_log(tmp_path)["cuda:0"], abs=0.15),
    )
    assert verdict["summary"].startswith("torch's allocator runs out of memory in each step and frees its cache")
    (sentence,) = [one for one in verdict["evidence"] if "num_alloc_retries" in one]
    assert "of 8.0 GiB" in sentence
    assert not any("torch.cuda.empty_cache" in one for one in verdict["evidence"])
