#!/usr/bin/env bash
# Allows tests to run many nodes at a time: each containerd, shim and kubelet has instances of inotify, and the default of
# Linux is 128 for all processes of a user. The limit is raised until the next boot.
set -euo pipefail

WANT=1024

limit=/proc/sys/fs/inotify/max_user_instances
[ "$(cat "$limit")" -ge "$WANT" ] && exit
echo "$WANT" 2>/dev/null >"$limit" || {
    echo "tests need more instances of inotify than $(cat "$limit"): sysctl -w fs.inotify.max_user_instances=$WANT" >&2
    exit 1
}
echo "fs.inotify.max_user_instances is $WANT until the next boot"
