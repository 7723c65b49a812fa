#!/usr/bin/env bash
# Prints the directory of a minimal Debian with systemd, the base for the packages in `make test-packages`. debootstrap
# creates it once in the user's cache. Do not write to it.
#
# If debootstrap is missing, this script installs it (on Debian and its derivatives). IMAGEPIN_DEBIAN_MIRROR sets
# another mirror.
set -euo pipefail

SUITE=bookworm
PACKAGES=systemd,systemd-sysv,ca-certificates
MIRROR=${IMAGEPIN_DEBIAN_MIRROR:-http://deb.debian.org/debian}

cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
key=$(echo "$SUITE $PACKAGES" | sha256sum | cut -c1-16)
root=$cache/debian-$key
if [ ! -d "$root" ]; then
    mkdir -p "$cache"
    exec 9>"$root.lock"
    flock 9
fi
if [ ! -d "$root" ]; then
    echo "Debian $SUITE with systemd (kept in the user's cache)" >&2
    log=$cache/debian.log
    if ! command -v debootstrap >/dev/null; then
        { apt-get install -y --no-install-recommends debootstrap ||
            { apt-get update && apt-get install -y --no-install-recommends debootstrap; }; } >"$log" 2>&1 || {
            tail -5 "$log" >&2
            echo "debootstrap is required, but apt-get cannot install it: install it by hand" >&2
            exit 1
        }
    fi
    rm -rf "$root.new"
    debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$root.new" "$MIRROR" >"$log" 2>&1 || {
        tail -5 "$log" >&2
        exit 1
    }
    mv "$root.new" "$root"
fi
echo "$root"
