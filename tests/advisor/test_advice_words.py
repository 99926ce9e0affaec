"""Advice in the words of the program: its own options, its framework's arguments, and what its code waits for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import Spec
from test_advice import FAULTS, REDUCING, SLOW_LINK, STEPS, Fault, case_of, synced

from whyidle.advisor.advice.table import advise
from whyidle.ledger.below import BLOCKERS
from whyidle.ledger.layout import STRING_AT


def change_of(fault: Fault, rule: str, folder: Path, framework: str = "", options: str = "", **strings: str) -> str:
    """What a rule advises to a program; empty if it gives no advice."""
    said = {"framework": framework, "options": options} | strings
    case = case_of(replace(fault, spec=replace(fault.spec, strings=said)), folder)
    return next((one.change for one in advise(case) if one.id == rule), "")


@pytest.mark.parametrize(
    ("framework", "options", "expected"),
    [
        ("", "", "Set num_workers=2 in the DataLoader that the loop waits for (it has 1)"),
        ("", "--log-interval -j", "Set -j 2 (it has 1)"),
        ("", "--workers", "Set --workers 2 (it has 1)"),
        ("lightning", "data.num_workers", "Set data.num_workers=2 (it has 1)"),
        ("transformers", "", "Set dataloader_num_workers=2 in the TrainingArguments (it has 1)"),
        ("transformers", "--output_dir", "Set --dataloader_num_workers 2 (it has 1)"),
        ("trl", "--logging_steps", "Set --dataloader_num_workers 2 (it has 1)"),
        ("accelerate", "--output_dir", "Set num_workers=2 in the DataLoader that the loop waits for (it has 1)"),
        ("mmengine", "", "Set train_dataloader.num_workers=2 in the configuration (it has 1)"),
        ("fastai", "", "Set num_workers=2 in the DataLoaders (it has 1)"),
        ("megatron", "", "Set --num-workers 2 (it has 1)"),
        ("of a later version", "--of-a-later-version", "Set num_workers=2 in the DataLoader that the loop waits for"),
    ],
)
def test_names_the_workers_as_the_program_does(framework: str, options: str, expected: str, tmp_path: Path) -> None:
    assert change_of(FAULTS["data.workers"], "data.workers", tmp_path, framework, options).startswith(expected)


@pytest.mark.parametrize(
    ("rule", "framework", "options", "expected"),
    [
        ("data.prefetch", "transformers", "--output_dir", "Set --dataloader_prefetch_factor 5 (it is 2 unless"),
        ("data.prefetch", "", "", "Set prefetch_factor=5 in the DataLoader (it is 2 unless"),
        ("data.start", "", "--persistent-workers", "Keep the data workers: set --persistent-workers True, and"),
        ("network.accumulation", "transformers", "--output_dir", "Set --gradient_accumulation_steps 8: accumulate the"),
        ("network.accumulation", "lightning", "", "Set accumulate_grad_batches=8 in the Trainer: accumulate the"),
        ("network.accumulation", "", "--grad-accum", "Set --grad-accum 8: accumulate the gradients of 8 batches"),
        ("checkpoint.async", "lightning", "", "Save asynchronously (plugins=[AsyncCheckpointIO()] in the Trainer)"),
        ("checkpoint.async", "torchtitan", "", "Save asynchronously (--checkpoint.async_mode async)"),
        ("checkpoint.async", "megatron", "", "Save asynchronously (--async-save)"),
        ("checkpoint.async", "", "", "Save asynchronously (torch.distributed.checkpoint.async_save)"),
        (
            "checkpoint.interval",
            "transformers",
            "--save_steps",
            "Save every 5 steps (now every step): see --save_steps",
        ),
        ("checkpoint.interval", "", "", "Save every 5 steps (now every step)"),
    ],
)
def test_names_other_settings_as_the_program_does(
    rule: str, framework: str, options: str, expected: str, tmp_path: Path
) -> None:
    assert change_of(FAULTS[rule], rule, tmp_path, framework, options).startswith(expected)


def blocked(place: str, workers: int = 2) -> Fault:
    """A loop that is blocked a fifth of the time, nearly always at this place."""
    fault = FAULTS["host.blocked"]
    words = {"blocked_looks": 20, "blocked_at": 19} if place else {}
    return replace(fault, workers=workers, spec=replace(fault.spec, words=words))


LOADERS = "DataLoader workers"


@pytest.mark.parametrize(
    ("place", "framework", "options", "workers", "expected"),
    [
        (
            "train.py:9 on_log wandb",
            "sentence_transformers",
            "--logging_steps",
            2,
            "Log less often (--logging_steps), or",
        ),
        (
            "train.py:9 send requests",
            "",
            "",
            2,
            "Let a thread do what blocks the loop in `send` (train.py:9), such as",
        ),
        ("train.py:9 send mlflow", "lightning", "", 2, "Log less often (log_every_n_steps of the Trainer), or"),
        ("train.py:9 log_metrics -", "", "", 2, "Log less often, or let a thread"),
        (
            "train.py:9 log_probs -",
            "",
            "",
            2,
            "Let a thread do what blocks the loop in `log_probs` (train.py:9)",
        ),
        ("", "", "", 2, f"reads by hand in {LOADERS} or a thread"),
        (
            "train.py:9 save threading",
            "",
            "",
            2,
            "waits for its own thread or process in `save` (train.py:9)",
        ),
        ("myrewards.py:9 length_reward -", "trl", "", 2, "with `async def` reward functions"),
        ("judge.py:9 score_rewards httpx", "", "", 2, "or with asyncio. They need the completions"),
        ("cart_env.py:9 step -", "", "", 2, "(gymnasium.vector.AsyncVectorEnv)"),
        ("world.py:9 step -", "stable_baselines3", "", -1, "(SubprocVecEnv)"),
        ("", "stable_baselines3", "", -1, "by hand in a thread or process that works ahead"),
        ("", "nnunetv2", "", -1, "nnUNet_n_proc_DA"),
        ("", "", "", -1, "by hand in a thread or process that works ahead"),
    ],
)
def test_what_blocks_the_loop_decides_the_change(
    place: str, framework: str, options: str, workers: int, expected: str, tmp_path: Path
) -> None:
    change = change_of(blocked(place, workers), "host.blocked", tmp_path, framework, options, blocked_line=place)
    assert expected in change
    assert (LOADERS in change) == (LOADERS in expected)


@pytest.mark.parametrize(
    ("framework", "looks", "on", "expected"),
    [
        ("stable_baselines3", (2, 3), "a sleep", "(SubprocVecEnv)"),
        ("torchrl", (1, 1), "a pipe", "(ParallelEnv)"),
        ("stable_baselines3", (2, 3), "a pipe", "run in other processes already"),
        ("stable_baselines3", (1, 3), "a sleep", "by hand in a thread or process that works ahead"),
        ("", (2, 3), "a sleep", "by hand in a thread or process that works ahead"),
    ],
)
def test_few_looks_tell_of_environments_only_in_a_framework_that_has_them(
    framework: str, looks: tuple[int, int], on: str, expected: str, tmp_path: Path
) -> None:
    fault, (acting, whole) = blocked("", -1), looks
    words = {"blocked_looks": whole, "acting_looks": acting, f"acting_blocked_on+{BLOCKERS.index(on)}": acting}
    fault = replace(fault, spec=replace(fault.spec, words=words))
    assert expected in change_of(fault, "host.blocked", tmp_path, framework)


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("hft.py:21 on_step_end", "Do the work of `on_step_end` (hft.py:21) less often, or in a thread"),
        ("train.py:9 on_log", "Log less often (logging_steps of the TrainingArguments), or let a thread"),
        ("train.py:9 log_metrics", "Log less often (logging_steps of the TrainingArguments), or let a thread"),
        ("writer.py:9 add_scalar", "Log less often (logging_steps of the TrainingArguments), or let a thread"),
        ("", "Log less often (logging_steps of the TrainingArguments), or let a thread"),
    ],
)
def test_a_callback_that_does_not_log_is_named(below: str, expected: str, tmp_path: Path) -> None:
    """How often the training logs does not change how often such a callback runs."""
    fault = replace(FAULTS["host.logging"], steps=[{"compute": 0.08, "host_blocked": 0.02}])
    fault = replace(fault, spec=replace(fault.spec, words={"blocked_looks": 20, "logging_looks": 20}))
    assert change_of(fault, "host.logging", tmp_path, "transformers", logging_below=below).startswith(expected)


def test_rewards_are_told_by_the_parts_of_rollouts_if_no_place_was_sampled(tmp_path: Path) -> None:
    fault = blocked("")
    case = case_of(replace(fault, spec=replace(fault.spec, strings={"framework": "trl"})), tmp_path)
    for rank in case.ranks:
        rank.rollout_parts["reward"] = rank.wall
    [change] = [one.change for one in advise(case) if one.id == "host.blocked"]
    assert "with `async def` reward functions" in change


def test_no_lower_bound_for_a_reward_that_still_has_to_be_asked_for(tmp_path: Path) -> None:
    fault = blocked("rewards.py:9 reward -")
    strings = {"blocked_line": "rewards.py:9 reward -"}
    [one] = [
        each
        for each in advise(case_of(replace(fault, spec=replace(fault.spec, strings=strings)), tmp_path))
        if each.id == "host.blocked"
    ]
    assert (one.gain.least, round(one.gain.share, 2)) == (0.0, 0.2)


def test_a_framework_makes_its_collectives_itself(tmp_path: Path) -> None:
    fault = FAULTS["network.coalesce"]
    assert "flatten the tensors, or use" in change_of(fault, "network.coalesce", tmp_path, "accelerate")
    for framework in ("transformers", "trl", "lightning"):
        (folder := tmp_path / framework).mkdir()
        assert change_of(fault, "network.coalesce", folder, framework) == ""


def test_does_not_advise_ddp_to_a_run_with_fsdp(tmp_path: Path) -> None:
    fault = FAULTS["network.coalesce"]
    handed = [("dp", 7, 2, {"all_gather": STEPS * 60_000, "reduce_scatter": STEPS * 30_000})]
    change = change_of(replace(fault, spec=replace(fault.spec, handed=handed)), "network.coalesce", tmp_path)
    assert change == "Put the 20 collectives of a step together into 1: flatten the tensors"


def test_accumulation_counts_the_all_reduces_of_gradients_alone(tmp_path: Path) -> None:
    """Two backward passes share one reduction of DDP. The metrics have 14 all-reduces of their own."""
    ranks = synced(2, 1, 0)
    for rank in ranks:
        rank["words"] = {**rank["words"], "collective_calls": 15 * STEPS}  # type: ignore[dict-item]
    fault = Fault(SLOW_LINK, by_rank=ranks, spec=REDUCING)
    change = change_of(fault, "network.accumulation", tmp_path, "trl", "--output_dir")
    assert change == "Set --gradient_accumulation_steps 8: accumulate the gradients of 8 batches instead of 2"


@pytest.mark.parametrize("workers", [0, 2])
def test_evidence_speaks_of_workers_only_where_there_are_some(workers: int, tmp_path: Path) -> None:
    fault = replace(FAULTS["data.decode"], workers=workers)
    words = {"data_own_cpu_ns": 10**9, "samples": STEPS} if not workers else {}
    case = case_of(replace(fault, spec=replace(fault.spec, words=words)), tmp_path)
    [one] = [each for each in advise(case) if each.id == "data.decode"]
    assert ("workers" in one.evidence[0]) is (workers > 0)


def test_a_start_of_workers_that_the_replay_hides_has_advice(tmp_path: Path) -> None:
    """The loop waits for its workers anyway, so in the replay nothing is saved by not starting others."""
    step = {"compute": 0.02, "data_read": 0.05, "data_start": 0.03}
    case = case_of(Fault([step], workers=2, spec=Spec(words={"loader_starts+1": 2})), tmp_path)
    [one] = [each for each in advise(case) if each.id == "data.start"]
    assert (one.gain.least, round(one.gain.share, 2)) == (0.0, 0.3)


def test_strings_fit_into_the_ledger() -> None:
    assert STRING_AT["framework"][1] > max(map(len, ("sentence_transformers", "stable_baselines3")))


@pytest.mark.parametrize(
    ("rule", "framework", "options", "expected"),
    [
        (
            "evaluation.less",
            "trl",
            "--eval_steps",
            "Evaluate every 20 steps instead of every 10 (--eval_steps), or on half as many batches",
        ),
        (
            "evaluation.less",
            "stable_baselines3",
            "",
            "Evaluate every 20 steps instead of every 10 (eval_freq of the EvalCallback), or",
        ),
        ("evaluation.less", "", "", "Evaluate every 20 steps instead of every 10, or on half as many batches"),
        ("compute.reference", "trl.dpo", "--output_dir", "Set --precompute_ref_log_probs True: the reference model"),
        ("compute.reference", "trl.dpo", "", "Set precompute_ref_log_probs=True in the DPOConfig: the reference model"),
        ("compute.reference", "trl", "", ""),
        ("host.logging", "transformers", "--logging_steps", "Log less often (--logging_steps), or let a thread"),
        ("data.ahead", "", "", "Make batches ahead, in a thread or in a DataLoader with workers, so that"),
        (
            "data.ahead",
            "nnunetv2",
            "",
            "Start more processes that augment: set the environment variable nnUNet_n_proc_DA",
        ),
    ],
)
def test_what_is_beside_the_training_has_the_name_of_its_setting(
    rule: str, framework: str, options: str, expected: str, tmp_path: Path
) -> None:
    change = change_of(FAULTS[rule], rule, tmp_path, framework, options)
    assert change.startswith(expected) if expected else change == ""


@pytest.mark.parametrize(
    ("step", "workers", "share", "expected"),
    [
        ({"compute": 0.02, "data_read": 0.08}, -1, 0.2, "in a thread or"),  # no more than the rest can hide
        ({"compute": 0.06, "data_cpu": 0.04}, -1, 0.4, "in other processes, for example in a DataLoader with workers"),
        ({"compute": 0.06, "data_read": 0.04}, 0, None, ""),
        ({"compute": 0.0995, "data_read": 0.0005}, -1, None, ""),
    ],
)
def test_batches_of_a_loop_without_a_loader_are_made_ahead(
    step: dict[str, float], workers: int, share: float | None, expected: str, tmp_path: Path
) -> None:
    case = case_of(Fault([step], workers=workers), tmp_path)
    found = [one for one in advise(case) if one.id == "data.ahead"]
    assert [round(one.gain.share, 2) for one in found] == ([] if share is None else [share])
    assert all(expected in one.change and one.gain.least == 0 for one in found)
