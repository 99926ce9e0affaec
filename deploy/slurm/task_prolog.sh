#!/bin/bash
# Slurm's TaskProlog, as the job's user before each task: what it prints as `export NAME=value` the task has.
#
# Slurm closes its stdin and stderr. It prints nothing that a job has said itself, and nothing at all for WHYIDLE=0.

PATH=/usr/bin:/bin
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
LEDGER_DIR=/dev/shm/whyidle HOOKS_DIR='' EVERY_JOB=0
# shellcheck source=slurm.env
[ ! -r "$here/slurm.env" ] || . "$here/slurm.env"

[ "${WHYIDLE-}" != 0 ] || exit 0
[ -n "${WHYIDLE_DIR-}" ] || echo "export WHYIDLE_DIR=$LEDGER_DIR"
if [ "${WHYIDLE-}" = 1 ] || [ "$EVERY_JOB" = 1 ]; then
    echo "export WHYIDLE=1"
    starter=$HOOKS_DIR/whyidle/torch_hooks/autoload
    # Not $HOOKS_DIR itself: it holds the hooks alone, and would come before a whole whyidle, command and all.
    if [ -n "$HOOKS_DIR" ] && [ -r "$starter/sitecustomize.py" ]; then
        case ":${PYTHONPATH-}:" in
        *":$starter:"*) ;; # a batch script has it from us already, and hands it on
        *) echo "export PYTHONPATH=$starter${PYTHONPATH:+:$PYTHONPATH}" ;;
        esac
    fi
fi
exit 0
