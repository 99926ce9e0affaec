#!/bin/bash
# Slurm's TaskProlog. It runs as the job's user before each task. Slurm sets the variables that it prints as
# `export NAME=value` for the task.
#
# Slurm closes its stdin and stderr. It does not print variables that the job has set itself. With WHYIDLE=0 it prints
# nothing.

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
    # Not $HOOKS_DIR itself: it contains only the hooks, and would hide a complete whyidle that is installed.
    if [ -n "$HOOKS_DIR" ] && [ -r "$starter/sitecustomize.py" ]; then
        case ":${PYTHONPATH-}:" in
        *":$starter:"*) ;; # already set: the task has inherited it from the batch script
        *) echo "export PYTHONPATH=$starter${PYTHONPATH:+:$PYTHONPATH}" ;;
        esac
    fi
fi
exit 0
