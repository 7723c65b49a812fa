#!/usr/bin/env bash
# Provides bin/decompressors/pigz and bin/decompressors/igzip for a test that compares decompressors: those of Debian
# bookworm, kept in the user's cache. Nothing is installed.
#
# apt checks the signatures and uses its own lists. IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

SUITE=bookworm

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
bin=${IMAGEPIN_BIN:-$root/bin}
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
dir=$cache/decompressors-$SUITE-$(dpkg --print-architecture)
mkdir -p "$cache" "$bin/decompressors"
exec 9>"$cache/decompressors.lock"
flock 9
if [ ! -d "$dir" ]; then
    echo "pigz and igzip from Debian $SUITE (kept in the user's cache)"
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    (cd "$dir.new" && own_apt "$dir.new/apt" "$SUITE" update && own_apt "$dir.new/apt" "$SUITE" download pigz isal libisal2) >"$dir.log" 2>&1 || {
        tail -5 "$dir.log" >&2
        exit 1
    }
    for package in "$dir.new"/*.deb; do
        dpkg-deb -x "$package" "$dir.new/root"
    done
    ln -s root/usr/bin/pigz "$dir.new/pigz"
    cat >"$dir.new/igzip" <<'WRAPPER'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
for library in "$root"/usr/lib/*/libisal.so.2; do
    LD_LIBRARY_PATH=${library%/*} exec "$root/usr/bin/igzip" "$@"
done
WRAPPER
    chmod +x "$dir.new/igzip"
    rm -rf "$dir.new"/*.deb "$dir.new/apt"
    mv "$dir.new" "$dir"
fi
ln -sf "$dir/pigz" "$dir/igzip" "$bin/decompressors/"
