#!/usr/bin/env bash
# Prints a root directory with dnf, for the tests of the rpm repository. It has the packages of a Debian suite, extracted but
# not configured, and is kept in the user's cache. Do not write to it.
#
# apt checks the signatures and uses its own lists. IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

SUITE=trixie
PACKAGES="dnf gpg rpm bash coreutils"

. "$(dirname "$0")/debian-apt.sh"
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
key=$(echo "$SUITE $PACKAGES" | sha256sum | cut -c1-16)
root=$cache/dnf-$key
mkdir -p "$cache"
exec 9>"$root.lock"
flock 9
if [ ! -d "$root" ]; then
    echo "dnf from Debian $SUITE (kept in the user's cache)" >&2
    work=$root.new
    rm -rf "$work" "$work.apt"
    { own_apt "$work.apt" "$SUITE" update &&
        own_apt "$work.apt" "$SUITE" install -y --download-only --no-install-recommends $PACKAGES; } >"$root.log" 2>&1 || {
        tail -5 "$root.log" >&2
        exit 1
    }
    # base-files has the links from /bin, /lib and /sbin to /usr, which other packages need.
    mkdir -p "$work/dev"
    for package in "$work.apt"/cache/archives/base-files_*.deb "$work.apt"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$work"
    done
    ln -sf bash "$work/usr/bin/sh"
    rm -rf "$work.apt"
    mv "$work" "$root"
fi
echo "$root"
