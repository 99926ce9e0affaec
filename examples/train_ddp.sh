#!/usr/bin/env bash
# One node, one rank for each of its GPUs (two ranks where it has none), with the hooks and without a change to the script:
#
#     examples/train_ddp.sh --steps 1000
#     whyidle report
#
# Several nodes: the same on each, with torchrun's own variables (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR), and
# WHYIDLE_RUN the same on all. Below Slurm the job's id names the run.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
if [ "$gpus" = 0 ]; then
    gpus=2
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
fi
if [ -z "${PET_NNODES:-}" ]; then
    set -- --standalone "$here/train_ddp.py" "$@"
else
    set -- "$here/train_ddp.py" "$@"
fi
exec whyidle run -- torchrun --nproc-per-node "${PET_NPROC_PER_NODE:-$gpus}" "$@"
