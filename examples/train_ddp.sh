#!/usr/bin/env bash
# Trains on one node with one rank per GPU (two ranks on CPUs if it has none). The script needs no change for the hooks:
#
#     examples/train_ddp.sh --steps 1000
#     whyidle report
#
# For several nodes, start it on each one with torchrun's own variables (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR) and
# with the same WHYIDLE_RUN. With Slurm, the job's id is the name of the run, so WHYIDLE_RUN is not needed.
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
