#!/usr/bin/env bash
# Builds the tests of peers and what they need into bin/peers/, from the module integration/peers/binaries:
#
#   cri.test, client.test
#             the CRI tests and the client tests of the containerd in go.mod
#   critest   of Kubernetes' cri-tools
#   containerd-shim-runc-fp-v1, runc-fp, cni/cni-bridge-fp, cni/loopback-v2
#             with which the CRI tests let a shim, runc and CNI fail
#   busybox, cni/, pkill
#             busybox for test images, the CNI plugins, and pkill, from Debian bookworm
#
# All of it is kept in the user's cache under a hash of its inputs.
set -euo pipefail

SUITE=bookworm
GO=${GO:-go}

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/hack/debian-apt.sh"
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
containerd=github.com/containerd/containerd/v2
cd "$root/integration/peers/binaries"
version=$("$GO" list -m -f '{{.Version}}' "$containerd")
if [ "$version" != "$(cd "$root" && "$GO" list -m -f '{{.Version}}' "$containerd")" ]; then
    echo "integration/peers/binaries has the tests of containerd $version, but another containerd is built in" >&2
    exit 1
fi

key=$(cat go.mod go.sum "$root/hack/peer-binaries.sh" <("$GO" env GOVERSION GOOS GOARCH) | sha256sum | cut -c1-16)
dir=$cache/peers-$key
mkdir -p "$cache"
exec 9>"$cache/peers.lock"
flock 9
if [ ! -d "$dir" ]; then
    echo "tests of containerd $version, critest (kept in the user's cache)"
    new=$dir.new
    rm -rf "$new"
    mkdir -p "$new/cni" "$new/debian"
    export CGO_ENABLED=0
    "$GO" test -c -vet=off -trimpath -ldflags '-s -w' -o "$new/cri.test" "$containerd/integration"
    "$GO" test -c -vet=off -trimpath -ldflags '-s -w' -o "$new/client.test" "$containerd/integration/client"
    "$GO" test -c -vet=off -trimpath -ldflags '-s -w' -o "$new/critest" sigs.k8s.io/cri-tools/cmd/critest
    for name in containerd-shim-runc-fp-v1 runc-fp cni-bridge-fp loopback-v2; do
        "$GO" build -trimpath -ldflags '-s -w' -o "$new/$name" "$containerd/integration/failpoint/cmd/$name"
    done
    mv "$new/cni-bridge-fp" "$new/loopback-v2" "$new/cni/"
    (cd "$new/debian" && own_apt "$new/debian/apt" "$SUITE" update &&
        own_apt "$new/debian/apt" "$SUITE" download busybox-static containernetworking-plugins procps libproc2-0) >"$dir.log" 2>&1 || {
        tail -5 "$dir.log" >&2
        exit 1
    }
    for package in "$new"/debian/*.deb; do
        dpkg-deb -x "$package" "$new/debian/root"
    done
    mv "$new/debian/root/bin/busybox" "$new/"
    mv "$new"/debian/root/usr/lib/cni/* "$new/cni/"
    mv "$new/debian/root/usr/bin/pgrep" "$new/pkill.real"
    mv "$new"/debian/root/lib/*/libproc2.so.0* "$new/"
    cat >"$new/pkill" <<'WRAPPER'
#!/bin/bash
dir=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$dir exec -a pkill "$dir/pkill.real" "$@"
WRAPPER
    chmod +x "$new/pkill"
    rm -rf "$new/debian"
    mv "$new" "$dir"
fi
ln -sfn "$dir" "$bin/peers"
