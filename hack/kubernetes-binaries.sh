#!/usr/bin/env bash
# Builds the binaries of `make test-kubelet` and `make test-cluster` into bin/kubernetes/:
#
#   kubelet, kube-apiserver, etcd, kubectl, kube-controller-manager, kube-scheduler
#             from the module integration/kubelet/binaries
#   registry  of the CNCF project Distribution, with garbage collection, from the module integration/kubelet/registry
#   runc      with seccomp, which kubelet requires; bin/runc is without
#
# With versions as arguments, for example 1.34, it builds only the kubelets of these versions, from the modules below
# integration/kubelet/versions, into bin/kubernetes-<version>/.
#
# The first run compiles for minutes. The binaries are kept in the user's cache under a hash of their inputs. Later
# runs, also in other checkouts, only link them.
set -euo pipefail

RUNC_VERSION=${RUNC_VERSION:-v1.5.2}
GO=${GO:-go}

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}

# enter MODULE [INPUT] changes to the directory of a module, and sets the version of its Kubernetes, and the directory of
# its binaries.
enter() {
    cd "$1"
    version=$("$GO" list -m -f '{{.Version}}' k8s.io/kubernetes)
    built=$cache/kubernetes-$({ cat go.mod go.sum && echo "${@:2}" && "$GO" env GOVERSION GOOS GOARCH; } | sha256sum | cut -c1-16)
    mkdir -p "$built"
}

# once NAME COMMAND... runs the command, which writes the file in its last argument, unless NAME is already built.
once() {
    local name=$1
    shift
    [ -x "$built/$name" ] && return
    echo "$name: building (kept in the user's cache)"
    "$@" "$built/$name.new"
    mv "$built/$name.new" "$built/$name"
}

kubernetes() {
    CGO_ENABLED=0 "$GO" build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$2" "$1"
}

# runc enters namespaces in C before the Go runtime starts, and loads seccomp filters with libseccomp.
runc() {
    if ! pkg-config --exists libseccomp 2>/dev/null; then
        { apt-get install -y --no-install-recommends libseccomp-dev pkg-config ||
            { apt-get update && apt-get install -y --no-install-recommends libseccomp-dev pkg-config; }; } >"$built/apt.log" 2>&1 || {
            tail -5 "$built/apt.log" >&2
            echo "runc needs the headers of libseccomp, but apt-get cannot install them: install libseccomp-dev (Debian) or libseccomp-devel by hand" >&2
            exit 1
        }
    fi
    local gobin=$built/gobin
    CGO_ENABLED=1 GOBIN="$gobin" "$GO" install -trimpath -tags seccomp -ldflags '-s -w' "github.com/opencontainers/runc@$RUNC_VERSION"
    mv "$gobin/runc" "$1" && rmdir "$gobin"
}

# link DIR NAME... links binaries into a directory, and marks them as used.
link() {
    local dir=$1 name
    shift
    mkdir -p "$dir"
    for name; do
        ln -sfn "$built/$name" "$dir/$name"
    done
    touch "$built"
}

if [ $# -gt 0 ]; then
    for minor; do
        enter "$root/integration/kubelet/versions/$minor"
        once kubelet kubernetes k8s.io/kubernetes/cmd/kubelet
        link "$bin/kubernetes-$minor" kubelet
    done
    exit
fi

enter "$root/integration/kubelet/binaries" "$RUNC_VERSION"
once runc runc
once etcd kubernetes go.etcd.io/etcd/server/v3
for name in kubelet kube-apiserver kubectl kube-controller-manager kube-scheduler; do
    once "$name" kubernetes "k8s.io/kubernetes/cmd/$name"
done
link "$bin/kubernetes" runc etcd kubelet kube-apiserver kubectl kube-controller-manager kube-scheduler
# Go's build cache makes an unchanged build take a second.
(cd "$root/integration/kubelet/registry" && CGO_ENABLED=0 "$GO" build -trimpath -ldflags '-s -w' -o "$bin/kubernetes/registry" github.com/distribution/distribution/v3/cmd/registry)
# Remove the binaries of earlier versions, which have not been used for a month.
find "$cache" -maxdepth 1 -name 'kubernetes-*' -mtime +30 -exec rm -rf {} +
