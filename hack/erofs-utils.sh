#!/usr/bin/env bash
# Provides bin/erofs/mkfs.erofs for the tests with containerd's EROFS differ, which needs one that accepts tar archives, and
# the option --sort (erofs-utils 1.8.2 or newer). This is the machine's own, or that of a newer Debian with its libraries,
# kept in the user's cache. Nothing is installed.
#
# apt checks the signatures and uses its own lists. IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

SUITE=trixie

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin/erofs" && bin=$(cd "$bin" && pwd)
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}

# usable PROGRAM reports whether the program can create a filesystem from a tar archive without sorting it.
usable() {
    local help
    help=$("$1" --help 2>/dev/null) && [[ $help == *--tar=* && $help == *--sort=* ]]
}

# fetch DIRECTORY downloads the package and its dependencies into the directory.
fetch() {
    local work=$1.new package
    rm -rf "$work"
    mkdir -p "$work/root"
    { own_apt "$work/apt" "$SUITE" update &&
        own_apt "$work/apt" "$SUITE" install -y --download-only --no-install-recommends erofs-utils; } >"$1.log" 2>&1 || {
        tail -5 "$1.log" >&2
        exit 1
    }
    for package in "$work"/apt/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$work/root"
    done
    # The machine's libc may be too old, so the program runs with the libc of its suite.
    cat >"$work/mkfs.erofs" <<'WRAPPER'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
for loader in "$root"/usr/lib/*/ld-linux*.so.*; do
    exec "$loader" --library-path "${loader%/*}" "$root/usr/bin/mkfs.erofs" "$@"
done
WRAPPER
    chmod +x "$work/mkfs.erofs"
    if ! usable "$work/mkfs.erofs"; then
        echo "mkfs.erofs from Debian $SUITE does not have the options --tar and --sort" >&2
        exit 1
    fi
    rm -rf "$work/apt"
    mv "$work" "$1"
}

if ! grep -qw erofs /proc/filesystems && ! modprobe erofs; then
    echo "this kernel does not support EROFS" >&2
    exit 1
fi
mkdir -p "$cache"
exec 9>"$cache/erofs-utils.lock"
flock 9
if mkfs=$(command -v mkfs.erofs) && usable "$mkfs"; then
    ln -sf "$mkfs" "$bin/erofs/mkfs.erofs"
    exit
fi
dir=$cache/erofs-utils-$SUITE-$(dpkg --print-architecture)
if [ ! -d "$dir" ]; then
    echo "mkfs.erofs from Debian $SUITE (kept in the user's cache)"
    fetch "$dir"
fi
ln -sf "$dir/mkfs.erofs" "$bin/erofs/mkfs.erofs"
