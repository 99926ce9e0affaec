#!/bin/bash
# Slurm's Prolog, as root on each node of a job: makes the ledgers' folder, for nodes where systemd-tmpfiles does not.
#
# It ends with 0 whatever happens: Slurm drains a node whose Prolog fails, and a job trains without ledgers as well.

PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none
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
# Anybody may have been here first, since /dev/shm is everybody's. A link is not followed; what is root's nobody can put
# something else in the place of, so that what is looked at below is what is changed.
chown -h root:root -- "$LEDGER_DIR" 2>/dev/null || give_up "cannot make $LEDGER_DIR"
if [ -L "$LEDGER_DIR" ] || [ ! -d "$LEDGER_DIR" ]; then
    give_up "$LEDGER_DIR is no folder: remove it"
fi
chmod 1777 -- "$LEDGER_DIR" || give_up "cannot open $LEDGER_DIR to all users"
chown -- "$OWNER": "$LEDGER_DIR" || give_up "cannot hand $LEDGER_DIR over to $OWNER"
exit 0
