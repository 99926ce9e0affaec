#!/bin/bash
# Slurm's Prolog. It runs as root on each node of a job, and creates the ledgers' directory if systemd-tmpfiles does not.
#
# It always exits with 0, because Slurm drains a node if its Prolog fails, and a job can train without ledgers.

PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm does not set it
export PATH
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
LEDGER_DIR=/dev/shm/whyidle OWNER=whyidle
# shellcheck source=slurm.env
[ ! -r "$here/slurm.env" ] || . "$here/slurm.env"

give_up() {
    echo "whyidle prolog: $1" >&2
    exit 0
}

id -u -- "$OWNER" >/dev/null 2>&1 || OWNER=root
[ "$(stat -c '%F %a %U' -- "$LEDGER_DIR" 2>/dev/null)" = "directory 1777 $OWNER" ] && exit 0

mkdir -- "$LEDGER_DIR" 2>/dev/null
# Any user can create files in /dev/shm, so this may be another user's file or link. `chown -h` does not follow a link.
# After it, only root can replace the file, so what is checked below is also what is changed.
chown -h root:root -- "$LEDGER_DIR" 2>/dev/null || give_up "cannot make $LEDGER_DIR"
if [ -L "$LEDGER_DIR" ] || [ ! -d "$LEDGER_DIR" ]; then
    give_up "$LEDGER_DIR is no folder: remove it"
fi
chmod 1777 -- "$LEDGER_DIR" || give_up "cannot open $LEDGER_DIR to all users"
chown -- "$OWNER": "$LEDGER_DIR" || give_up "cannot hand $LEDGER_DIR over to $OWNER"
exit 0
