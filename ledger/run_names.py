"""The names of runs, by the environment of a rank."""

from __future__ import annotations

from collections.abc import Mapping

RUN_VARIABLES = (
    "WHYIDLE_RUN",
    "FLUX_JOB_ID",  # flux-environment(7). A Flux instance may itself run in a Slurm job
    "SKYPILOT_TASK_ID",  # SkyPilot, "Environment Variables and Secrets": the same on all nodes, and after a recovery
    "DET_TRIAL_ID",  # Determined, master/pkg/tasks/task_trial.go
    "AWS_BATCH_JOB_ID",  # AWS Batch, "Job environment variables"; with `#INDEX` on each of several nodes
    "CLOUD_ML_JOB_ID",  # Vertex AI, google/cloud/aiplatform/training_utils/environment_variables.py
    "TRAINING_JOB_NAME",  # SageMaker, sagemaker-training-toolkit's params.py
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "RAY_JOB_ID",
    "TORCHELASTIC_RUN_ID",
)
"""Variables with the run's id, in order of precedence. A scheduler's id stays the same after a restart. torchrun's is a
new UUID for each launch."""


def run_variable(env: Mapping[str, str]) -> str | None:
    """The variable that names the run, if one does."""
    for name in RUN_VARIABLES:
        value = env.get(name, "").strip()
        # A multi-node torchrun without --rdzv-id sets "none" for every job.
        if value and not (name == "TORCHELASTIC_RUN_ID" and value == "none"):
            return name
    return None


def named_run(env: Mapping[str, str]) -> str:
    """The name that a variable gives to the run; empty if none does."""
    name = run_variable(env)
    value = env[name].strip() if name else ""
    return value.partition("#")[0] if name == "AWS_BATCH_JOB_ID" else value


def run_of_meeting(env: Mapping[str, str]) -> str:
    """The name of a run that no variable names: the address and port where its ranks meet. Empty if not known."""
    known = env.get("MASTER_ADDR") and env.get("MASTER_PORT") and "RANK" in env
    return f"{env['MASTER_ADDR']}-{env['MASTER_PORT']}" if known else ""
