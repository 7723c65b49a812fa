#!/usr/bin/env bash
# Prints the directory for the temporary files of tests. They are written and synced all the time, so they are in memory
# where the machine has enough of it. Tests that need a disk of their own, such as a full one, create it.
shm=/dev/shm
kib() { df --output=avail -k "$shm" 2>/dev/null | tail -n 1; }
available=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)
gib=$((1 << 20))
if [ "$(stat -f -c %T "$shm" 2>/dev/null)" = tmpfs ] && [ "$(kib)" -ge $((8 * gib)) ] && [ "$available" -ge $((12 * gib)) ] &&
    ! findmnt -n -o OPTIONS --target "$shm" | grep -qw noexec; then
    echo "$shm"
else
    echo "${TMPDIR:-/tmp}"
fi
