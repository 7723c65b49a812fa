#!/usr/bin/env bash
# Downloads containerd from the Debian suites in integration/versions/debian.txt, for the tests of imagepin serve, into
# bin/containerd-debian-<suite>/: containerd, ctr and the shim. They are kept in the user's cache. Nothing is installed.
#
# apt checks the signatures and uses its own lists. IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
arch=$(dpkg --print-architecture)

# fetch SUITE DIRECTORY downloads the programs of the package into the directory.
fetch() {
    local work=$2.new
    rm -rf "$work"
    mkdir -p "$work/bin"
    (cd "$work" && own_apt "$work/apt" "$1" update && own_apt "$work/apt" "$1" download containerd) >"$2.log" 2>&1 || {
        tail -5 "$2.log" >&2
        exit 1
    }
    dpkg-deb -x "$work"/containerd_*.deb "$work/root"
    mv "$work"/root/usr/bin/{containerd,ctr,containerd-shim-runc-v2} "$work/bin"
    mv "$work/bin" "$2"
    rm -rf "$work"
}

mkdir -p "$cache"
exec 9>"$cache/debian-containerd.lock"
flock 9
grep -v '^#' "$root/integration/versions/debian.txt" | while read -r suite _; do
    dir=$cache/debian-containerd-$suite-$arch
    if [ ! -d "$dir" ]; then
        echo "containerd from Debian $suite (kept in the user's cache)"
        fetch "$suite" "$dir"
    fi
    mkdir -p "$bin/containerd-debian-$suite"
    for name in containerd ctr containerd-shim-runc-v2; do
        ln -sf "$dir/$name" "$bin/containerd-debian-$suite/$name"
    done
done
