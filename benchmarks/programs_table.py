"""The programs of benchmarks/programs.py: what each needs, how it is started, and how the clock reads its stacks."""

from __future__ import annotations

from dataclasses import dataclass

from programs_clock import Rules

TRANSFORMERS = ("transformers==5.24.0", "accelerate==1.15.0", "datasets==5.2.0")
LOADER: Rules = (("data", r"^(__next__|_next_data|__iter__) .*torch/utils/data/dataloader\.py"),)
BLOCKED: Rules = (("blocked", r"^injected_wait "),)
TRAINER: Rules = (
    ("save", r"^(_save_checkpoint|save_model|save_pretrained|_load_best_model) "),
    ("data", r"^get_batch_samples |^(__iter__|__next__) .*accelerate/data_loader\.py"),
    ("logging", r"^on_log |^log .*transformers/trainer"),
)


@dataclass(frozen=True)
class Fault:
    arguments: tuple[str, ...] = ()
    family: str = "compute"
    """Of the verdict."""
    taken: tuple[str, tuple[str, ...]] | None = None
    """A rule of advice, and the arguments with which the program takes its advice."""


@dataclass(frozen=True)
class Program:
    of: str
    """The field."""
    packages: tuple[str, ...]
    command: tuple[str, ...]
    """After ``python``. The folder to write in and the arguments of the fault follow."""
    faults: dict[str, Fault]
    waits: Rules = ()
    parts: Rules = ()
    ranks: int = 1


PROGRAMS: dict[str, Program] = {
    "fastai": Program(
        "tables, with fastai's Learner",
        ("fastai==2.8.12",),
        ("fastai_learner.py",),
        {
            "nothing": Fault(("epochs=60",)),
            "slow reads": Fault(("epochs=6", "read_ms=2"), "storage", ("data.workers", ("workers=4",))),
            "slow callback": Fault(("epochs=10", "callback_ms=30"), "host"),
        },
        waits=(
            ("blocked", r"^after_batch .*fastai_learner\.py"),
            ("save", r"^(save|_save|load) .*fastai/learner|SaveModelCallback"),
            ("data", r"fastai/data/load\.py"),
            ("logging", r"fastprogress|^\w+ .*fastai/callback/progress\.py|Recorder\.\w+ "),
        ),
        parts=(("evaluation", r"^_do_epoch_validate "),),
    ),
    "sentence-transformers": Program(
        "language: embeddings, with SentenceTransformerTrainer",
        ("sentence-transformers==6.2.0", *TRANSFORMERS),
        ("sentence_trainer.py",),
        {
            "evaluates often": Fault(
                ("eval_steps=8", "samples=6400"), "compute", ("evaluation.less", ("eval_steps=16", "samples=6400"))
            ),
            "slow reads": Fault(
                ("read_ms=4", "samples=4800"), "storage", ("data.workers", ("workers=3", "samples=4800", "read_ms=4"))
            ),
            "slow logger": Fault(
                ("log_ms=300", "samples=4800"), "host", ("host.logging", ("log_ms=300", "samples=4800", "log_steps=50"))
            ),
        },
        waits=TRAINER,
        parts=(("evaluation", r"^(evaluation_loop|evaluate|_evaluate) "),),
    ),
    "stable-baselines3": Program(
        "reinforcement learning: PPO",
        ("stable-baselines3==2.9.2", "gymnasium==1.4.0"),
        ("sb3_ppo.py",),
        {
            "evaluates": Fault(
                ("total=16384", "eval=1024"), "compute", ("evaluation.less", ("total=16384", "eval=2048"))
            ),
            "slow environment": Fault(("total=10240", "env_ms=2"), "host"),
        },
        waits=(("blocked", r"^injected_wait "), ("save", r"^(save|save_to_zip_file) .*stable_baselines3")),
        parts=(("evaluation", r"^evaluate_policy "), ("rollout", r"^collect_rollouts ")),
    ),
    "grpo": Program(
        "language: reinforcement learning, with TRL's command line",
        ("trl==1.16.0", *TRANSFORMERS),
        ("trl_program.py", "grpo"),
        {
            "slow reward in Python": Fault(("steps=24", "burn_ms=200"), "compute"),
            "reward that waits": Fault(("steps=24", "wait_ms=300"), "host"),
        },
        waits=(*BLOCKED, *TRAINER),
        parts=(("rollout", r"^_generate_and_score_completions "),),
    ),
    "dpo": Program(
        "language: preferences, with TRL's command line",
        ("trl==1.16.0", *TRANSFORMERS),
        ("trl_program.py", "dpo"),
        {"nothing": Fault(("steps=60",), "compute", ("compute.reference", ("steps=60", "precompute=1")))},
        waits=TRAINER,
        parts=(("rollout", r"^compute_ref_log_probs "), ("evaluation", r"^evaluation_loop ")),
    ),
    "sft": Program(
        "language: fine-tuning with packing, with TRL's command line",
        ("trl==1.16.0", *TRANSFORMERS),
        ("trl_program.py", "sft"),
        {"evaluates": Fault(("steps=60",), "compute", ("evaluation.less", ("steps=60", "eval_steps=20")))},
        waits=TRAINER,
        parts=(("evaluation", r"^(evaluation_loop|evaluate) "),),
    ),
    "nnunet": Program(
        "segmentation of volumes, with nnU-Net's command line",
        ("nnunetv2==2.8.1",),
        ("nnunet_program.py",),
        {
            "nothing": Fault(("iterations=40",), "compute"),
            "slow cases": Fault(("iterations=25", "read_ms=300"), "storage"),
        },
        waits=(
            ("save", r"^save_checkpoint "),
            ("data", r"batchgenerators/dataloading|^get_next_item|nondet_multi_threaded"),
            ("logging", r"^(plot_progress_png|print_to_log_file|log) "),
        ),
        parts=(("evaluation", r"^(validation_step|on_validation_epoch_end) "),),
    ),
    "lightning": Program(
        "vision, with Lightning's Trainer",
        ("pytorch-lightning==2.6.6",),
        ("lightning_trainer.py",),
        {
            "evaluates": Fault(("epochs=12",), "compute", ("evaluation.less", ("epochs=12", "every=2"))),
            "slow reads": Fault(
                ("epochs=6", "read_ms=3"), "storage", ("data.workers", ("epochs=6", "read_ms=3", "workers=3"))
            ),
            "slow saves": Fault(("epochs=12", "save_ms=400"), "storage"),
        },
        waits=(
            ("save", r"^save_checkpoint "),
            *LOADER,
            ("data", r"^(__next__|__iter__) .*pytorch_lightning/"),
            ("logging", r"pytorch_lightning/loggers/|^log_metrics "),
        ),
        parts=(("evaluation", r"^run .*evaluation_loop\.py"),),
    ),
    "diffusers": Program(
        "images: diffusion, with accelerate and a pipeline that samples",
        ("diffusers==0.42.1", *TRANSFORMERS),
        ("diffusers_unet.py",),
        {"samples": Fault(("epochs=6",), "compute", ("evaluation.less", ("epochs=6", "every=2")))},
        waits=(("save", r"^save_pretrained "), *LOADER),
        parts=(("evaluation", r"^__call__ .*diffusers/pipelines/"),),
    ),
    "timm": Program(
        "vision, with timm's models, loaders, schedulers and savers",
        ("timm==1.0.31",),
        ("timm_train.py",),
        {
            "nothing": Fault(("epochs=3",), "compute"),
            "slow reads": Fault(
                ("epochs=2", "read_ms=30"), "storage", ("data.workers", ("epochs=2", "read_ms=30", "workers=4"))
            ),
        },
        waits=(("save", r"^save_checkpoint "), *LOADER, ("data", r"^__iter__ .*timm/data/loader\.py")),
        parts=(("evaluation", r"^validate "),),
    ),
    "speechbrain": Program(
        "speech: enhancement, with SpeechBrain's Brain",
        ("speechbrain==1.1.2",),
        ("speechbrain_brain.py",),
        {
            "nothing": Fault(("epochs=12",), "compute"),
            "slow reads": Fault(
                ("epochs=4", "read_ms=20"), "storage", ("data.workers", ("epochs=4", "read_ms=20", "workers=3"))
            ),
            "slow saves": Fault(("epochs=6", "save_ms=300"), "storage"),
        },
        waits=(("save", r"^(save_and_keep_only|save_checkpoint|delete_checkpoints|_save_intra_epoch_ckpt) "), *LOADER),
        parts=(("evaluation", r"^(_fit_valid|evaluate) "),),
    ),
    "graphs": Program(
        "graphs, with torch_geometric's loaders and layers",
        ("torch-geometric==2.8.1",),
        ("graphs_gnn.py",),
        {
            "nothing": Fault(("epochs=30",), "compute"),
            "slow reads": Fault(
                ("epochs=4", "read_ms=2"), "storage", ("data.workers", ("epochs=4", "read_ms=2", "workers=4"))
            ),
        },
        waits=LOADER,
        parts=(("evaluation", r"^test "),),
    ),
    "skorch": Program(
        "tables, with skorch's NeuralNetClassifier",
        ("skorch==1.4.0", "scikit-learn==1.9.1"),
        ("skorch_classifier.py",),
        {
            "nothing": Fault(("epochs=12",), "compute"),
            "slow reads": Fault(
                ("epochs=2", "read_ms=2"), "storage", ("data.workers", ("epochs=2", "read_ms=2", "workers=4"))
            ),
            "slow callback": Fault(("epochs=12", "score_ms=800"), "host"),
        },
        waits=(*BLOCKED, ("save", r"^(save_model|save_params) .*skorch/"), *LOADER),
        parts=(("evaluation", r"^validation_step "),),
    ),
    "tabnet": Program(
        "tables, with pytorch-tabnet's TabNetClassifier",
        ("pytorch-tabnet==4.1.0", "pandas==3.1.1"),
        ("tabnet_classifier.py",),
        {
            "nothing": Fault(("epochs=10",), "compute"),
            "slow callback": Fault(("epochs=6", "callback_ms=30"), "host"),
        },
        waits=(*BLOCKED, *LOADER),
        parts=(("evaluation", r"^_predict_epoch "),),
    ),
    "memmap": Program(
        "language: get_batch() on a memory-mapped file, as in nanoGPT",
        (),
        ("memmap_gpt.py",),
        {
            "nothing": Fault(("steps=400",), "compute"),
            "slow file": Fault(("steps=300", "read_ms=40"), "storage"),
        },
        waits=(("data", r"^get_batch "), ("save", r"^save_checkpoint ")),
        parts=(("evaluation", r"^estimate_loss "),),
    ),
    "ppo": Program(
        "reinforcement learning: one file, as in CleanRL",
        ("gymnasium==1.4.0",),
        ("ppo_file.py",),
        {
            "nothing": Fault(("updates=30",), "compute"),
            "slow environment": Fault(("updates=12", "env_ms=3"), "host"),
        },
        waits=BLOCKED,
        parts=(("rollout", r"^collect "),),
    ),
    "forces": Program(
        "simulation: forces by autograd.grad, also in the validation",
        (),
        ("forces.py",),
        {"evaluates": Fault(("epochs=20",), "compute", ("evaluation.less", ("epochs=20", "every=2")))},
        waits=LOADER,
        parts=(("evaluation", r"^validate "),),
    ),
    "recommendation": Program(
        "recommendation: a generator over click logs, two ranks in DistributedDataParallel",
        (),
        ("clicks.py",),
        {
            "slow log files": Fault(("steps=200", "read_ms=60"), "storage"),
            "a late rank": Fault(("steps=200", "late_ms=60"), "host"),
        },
        waits=(("data", r"^batches "), ("blocked", r"^late_wait ")),
        ranks=2,
    ),
    "ten-steps": Program(
        "an example of ten steps",
        (),
        ("ten_steps.py",),
        {"nothing": Fault(family="too short")},
    ),
    "fails": Program(
        "a program that fails in its first batch", (), ("ten_steps.py", "fail"), {"fails": Fault(family="too short")}
    ),
}
