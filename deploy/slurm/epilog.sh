#!/bin/bash
# Slurm's Epilog. It runs as root on each node of a job, and removes the job's ledgers, by default after 15 minutes.
#
# It runs forget.py as the job's user, who can remove only their own files in the sticky directory. It always exits with 0,
# because Slurm drains a node if its Epilog fails. The agent removes remaining ledgers after a day.

PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm does not set it
export PATH
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
LEDGER_DIR=/dev/shm/whyidle KEEP_SECONDS=900 PYTHON=/opt/whyidle/bin/python
# shellcheck source=slurm.env
[ ! -r "$here/slurm.env" ] || . "$here/slurm.env"

for number in "${SLURM_JOB_ID-}" "${SLURM_JOB_UID-}" "$KEEP_SECONDS"; do
    case $number in
    '' | *[!0-9]*) exit 0 ;;
    esac
done
gid=${SLURM_JOB_GID:-$(id -g "$SLURM_JOB_UID" 2>/dev/null)}
forget=(setpriv --reuid "$SLURM_JOB_UID" --regid "${gid:-$SLURM_JOB_UID}" --clear-groups --no-new-privs
    "$PYTHON" -I "$here/forget.py" "$LEDGER_DIR" "$SLURM_JOB_ID")

if [ "$KEEP_SECONDS" -eq 0 ]; then
    "${forget[@]}"
else
    # Not `sleep &`: Slurm waits for background processes of an Epilog, or kills them.
    systemd-run --quiet --collect --on-active="$KEEP_SECONDS" --unit="whyidle-forget-$SLURM_JOB_ID" "${forget[@]}"
fi
exit 0
