#!/usr/bin/env bash
# Downloads promtool from Debian bookworm into the user's cache, and runs it with the arguments. Nothing is installed.
# IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
dir=$cache/promtool-bookworm-$(dpkg --print-architecture)
mkdir -p "$cache"
exec 9>"$cache/promtool.lock"
flock 9
if [ ! -d "$dir" ]; then
    echo "promtool from Debian bookworm (kept in the user's cache)"
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    (cd "$dir.new" && own_apt "$dir.new/apt" bookworm update && own_apt "$dir.new/apt" bookworm download prometheus) >"$dir.log" 2>&1 || {
        tail -5 "$dir.log" >&2
        exit 1
    }
    dpkg-deb --fsys-tarfile "$dir.new"/prometheus_*.deb | tar -x -C "$dir.new" ./usr/bin/promtool
    rm -rf "$dir.new"/prometheus_*.deb "$dir.new/apt"
    mv "$dir.new" "$dir"
fi
exec 9>&-
exec "$dir/usr/bin/promtool" "$@"
