#!/usr/bin/env bash
# Builds into bin/ what the integration tests and the demo need beside `make build`:
#
#   containerd-stock  containerd of the version in go.mod, without imagepin, to compare with and to roll back to
#   containerd-failpoints, imagepin-failpoints
#                     only when asked for (hack/test-binaries.sh crash): ours, which a test can have killed at named places
#   containerd-race, imagepin-race
#                     only when asked for (hack/test-binaries.sh race): ours under the race detector
#   runc              a current runc: distributions' own may be too old for this containerd
#   crictl            only when asked for (hack/test-binaries.sh crictl): for people, nothing in the tests needs it,
#                     and not every module proxy has it
#
# What is up to date is not built again. Everything comes through the Go module proxy; go.mod is not touched.
set -euo pipefail

RUNC_VERSION=${RUNC_VERSION:-v1.5.2}
CRICTL_VERSION=${CRICTL_VERSION:-v1.35.0}
GO=${GO:-go}

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cd "$root"

# has BINARY MODULE VERSION: is BINARY there, built from that module version by this Go?
has() {
    [ -x "$bin/$1" ] || return 1
    local info
    info=$("$GO" version -m "$bin/$1" 2>/dev/null) || return 1
    grep -q "$("$GO" env GOVERSION)" <<<"${info%%$'\n'*}" &&
        awk -v m="$2" -v v="$3" '($1 == "mod" || $1 == "dep") && $2 == m && $3 == v {ok = 1} END {exit !ok}' <<<"$info"
}

containerd=$("$GO" list -m -f '{{.Version}}' github.com/containerd/containerd/v2)
# Always asked of the build cache: an unchanged build costs about a second, and go.mod may have moved dependencies.
echo "containerd-stock $containerd"
CGO_ENABLED=0 "$GO" build -trimpath \
    -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" \
    -o "$bin/containerd-stock" github.com/containerd/containerd/v2/cmd/containerd

ours="-X github.com/containerd/containerd/v2/version.Version=$containerd+imagepin"
if [ "${1:-}" = crash ]; then
    echo "containerd-failpoints"
    CGO_ENABLED=0 "$GO" build -trimpath -tags failpoints -ldflags "-s -w $ours" -o "$bin/containerd-failpoints" ./cmd/containerd
    echo "imagepin-failpoints"
    CGO_ENABLED=0 "$GO" build -trimpath -tags failpoints -ldflags "-s -w" -o "$bin/imagepin-failpoints" ./cmd/imagepin
fi
if [ "${1:-}" = race ]; then
    echo "containerd-race"
    # The race detector is a library in C. Everything is compiled anew for it, which takes minutes the first time.
    CGO_ENABLED=1 "$GO" build -trimpath -race -ldflags "$ours" -o "$bin/containerd-race" ./cmd/containerd
    echo "imagepin-race"
    CGO_ENABLED=1 "$GO" build -trimpath -race -o "$bin/imagepin-race" ./cmd/imagepin
fi

if ! has runc github.com/opencontainers/runc "$RUNC_VERSION"; then
    echo "runc $RUNC_VERSION"
    # runc enters namespaces in C before the Go runtime starts, so it needs cgo and a C compiler. No seccomp tag: that
    # would need libseccomp, and no test asks for a seccomp profile.
    CGO_ENABLED=1 GOBIN="$bin" "$GO" install -trimpath -ldflags '-s -w' "github.com/opencontainers/runc@$RUNC_VERSION"
fi

if [ "${1:-}" = crictl ] && ! has crictl sigs.k8s.io/cri-tools "$CRICTL_VERSION"; then
    echo "crictl $CRICTL_VERSION"
    CGO_ENABLED=0 GOBIN="$bin" "$GO" install -trimpath "sigs.k8s.io/cri-tools/cmd/crictl@$CRICTL_VERSION"
fi
