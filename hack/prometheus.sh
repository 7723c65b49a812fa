#!/usr/bin/env bash
# Provides bin/prometheus/prometheus and bin/prometheus/promtool for the tests and checks: those of Debian bookworm, kept in
# the user's cache. Nothing is installed.
#
# apt checks the signatures and uses its own lists. IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

SUITE=bookworm

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
bin=${IMAGEPIN_BIN:-$root/bin}
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
dir=$cache/prometheus-$SUITE-$(dpkg --print-architecture)
mkdir -p "$cache" "$bin/prometheus"
exec 9>"$cache/prometheus.lock"
flock 9
if [ ! -d "$dir" ]; then
    echo "Prometheus from Debian $SUITE (kept in the user's cache)"
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    (cd "$dir.new" && own_apt "$dir.new/apt" "$SUITE" update && own_apt "$dir.new/apt" "$SUITE" download prometheus) >"$dir.log" 2>&1 || {
        tail -5 "$dir.log" >&2
        exit 1
    }
    dpkg-deb --fsys-tarfile "$dir.new"/prometheus_*.deb | tar -x -C "$dir.new" ./usr/bin/prometheus ./usr/bin/promtool
    rm -rf "$dir.new"/prometheus_*.deb "$dir.new/apt"
    mv "$dir.new" "$dir"
fi
ln -sf "$dir/usr/bin/prometheus" "$dir/usr/bin/promtool" "$bin/prometheus/"
