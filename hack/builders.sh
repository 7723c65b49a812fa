#!/usr/bin/env bash
# Provides for the tests of image builders:
#
#   bin/builders  a root directory with buildah, podman, skopeo and docker-registry of Debian trixie and their libraries, kept in
#                 the user's cache. Do not write to it. Nothing is installed
#   bin/oras      from the module integration/builders/binaries
#
# apt checks the signatures and uses its own lists. IMAGEPIN_DEBIAN_MIRROR sets another mirror.
set -euo pipefail

SUITE=trixie
GO=${GO:-go}
PROGRAMS='buildah podman skopeo docker-registry conmon crun' # podman does not start without the last two

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
bin=${IMAGEPIN_BIN:-$root/bin}
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
dir=$cache/builder-root-$SUITE-$(dpkg --print-architecture)

# fetch DIRECTORY downloads the packages and their dependencies, and unpacks the programs, all libraries and the configuration
# of the programs into the directory.
fetch() {
    local work=$1.new package program
    rm -rf "$work" "$work.apt"
    # shellcheck disable=SC2086 # one word for each package
    { own_apt "$work.apt" "$SUITE" update &&
        own_apt "$work.apt" "$SUITE" install -y --download-only --no-install-recommends $PROGRAMS; } >"$1.log" 2>&1 || {
        tail -5 "$1.log" >&2
        exit 1
    }
    # The directories in the root are where a test mounts its own.
    mkdir -p "$work"/{dev,proc,run,sys,tmp,var,usr/bin,usr/lib,usr/lib64}
    ln -s usr/bin usr/lib usr/lib64 "$work"
    for package in "$work.apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work" --keep-directory-symlink \
            --exclude='./usr/share/[!c]*' --exclude=./usr/sbin --exclude=./usr/libexec --exclude=./usr/games --exclude=./var
    done
    mkdir "$work/programs"
    for program in $PROGRAMS; do
        mv "$work/usr/bin/$program" "$work/programs"
    done
    rm -r "$work/usr/bin"
    mv "$work/programs" "$work/usr/bin"
    echo root:x:0:0:root:/root:/bin/sh >"$work/etc/passwd"
    echo root:x:0: >"$work/etc/group"
    rm -rf "$work.apt"
    mv "$work" "$1"
}

mkdir -p "$cache" "$bin" && bin=$(cd "$bin" && pwd)
exec 9>"$cache/builder-root.lock"
flock 9
if [ ! -d "$dir" ]; then
    echo "buildah, podman, skopeo and docker-registry from Debian $SUITE (kept in the user's cache)"
    fetch "$dir"
fi
ln -sfn "$dir" "$bin/builders"

cd "$root/integration/builders/binaries"
# Go's build cache makes an unchanged build take a second.
CGO_ENABLED=0 "$GO" build -trimpath -ldflags '-s -w' -o "$bin/oras" oras.land/oras/cmd/oras
