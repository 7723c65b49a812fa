#!/usr/bin/env bash
# Builds into bin/ what the integration tests and the demo need in addition to `make build`:
#
#   containerd-stock  containerd of the version in go.mod, without imagepin, for comparison and rollback
#   containerd-core, imagepin-core
#                     without the parts of imagepin that a build can leave out
#   containerd-failpoints, imagepin-failpoints
#                     only with the argument crash: with failpoints, where tests can kill them
#   containerd-race, imagepin-race
#                     only with the argument race: with the race detector
#   skopeocopy        skopeo's library, for comparison in the benchmark
#   runc              a current runc, because that of a distribution may be too old for this containerd
#   crictl            only with the argument crictl, for manual use; not every module proxy has it
#
# Binaries that are up to date are not built again. All sources are from the Go module proxy. go.mod does not change.
set -euo pipefail

RUNC_VERSION=${RUNC_VERSION:-v1.5.2}
CRICTL_VERSION=${CRICTL_VERSION:-v1.35.0}
GO=${GO:-go}

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cd "$root"

# has BINARY MODULE VERSION reports whether BINARY exists and was built from this module version by this version of Go.
has() {
    [ -x "$bin/$1" ] || return 1
    local info
    info=$("$GO" version -m "$bin/$1" 2>/dev/null) || return 1
    grep -q "$("$GO" env GOVERSION)" <<<"${info%%$'\n'*}" &&
        awk -v m="$2" -v v="$3" '($1 == "mod" || $1 == "dep") && $2 == m && $3 == v {ok = 1} END {exit !ok}' <<<"$info"
}

containerd=$("$GO" list -m -f '{{.Version}}' github.com/containerd/containerd/v2)
# Always build: dependencies in go.mod may have changed, and an unchanged build takes about a second.
echo "containerd-stock $containerd"
CGO_ENABLED=0 "$GO" build -trimpath \
    -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" \
    -o "$bin/containerd-stock" github.com/containerd/containerd/v2/cmd/containerd

(cd integration/bundle/tools && CGO_ENABLED=0 "$GO" build -trimpath -tags containers_image_openpgp,exclude_graphdriver_btrfs \
    -ldflags '-s -w' -o "$bin/skopeocopy" ./skopeocopy)

ours="-X github.com/containerd/containerd/v2/version.Version=$containerd+imagepin"
echo "containerd-core"
CGO_ENABLED=0 "$GO" build -trimpath -tags no_cluster,no_fleet -ldflags "-s -w $ours" -o "$bin/containerd-core" ./cmd/containerd
echo "imagepin-core"
CGO_ENABLED=0 "$GO" build -trimpath -tags no_cluster,no_fleet -ldflags "-s -w" -o "$bin/imagepin-core" ./cmd/imagepin
if [ "${1:-}" = crash ]; then
    echo "containerd-failpoints"
    CGO_ENABLED=0 "$GO" build -trimpath -tags failpoints -ldflags "-s -w $ours" -o "$bin/containerd-failpoints" ./cmd/containerd
    echo "imagepin-failpoints"
    CGO_ENABLED=0 "$GO" build -trimpath -tags failpoints -ldflags "-s -w" -o "$bin/imagepin-failpoints" ./cmd/imagepin
fi
if [ "${1:-}" = race ]; then
    echo "containerd-race"
    # The race detector needs cgo. The first build compiles everything again, which takes minutes.
    CGO_ENABLED=1 "$GO" build -trimpath -race -ldflags "$ours" -o "$bin/containerd-race" ./cmd/containerd
    echo "imagepin-race"
    CGO_ENABLED=1 "$GO" build -trimpath -race -o "$bin/imagepin-race" ./cmd/imagepin
fi

if ! has runc github.com/opencontainers/runc "$RUNC_VERSION"; then
    echo "runc $RUNC_VERSION"
    # runc enters namespaces in C before the Go runtime starts, so it needs cgo and a C compiler. The seccomp tag would
    # need libseccomp, and no test sets a seccomp profile.
    CGO_ENABLED=1 GOBIN="$bin" "$GO" install -trimpath -ldflags '-s -w' "github.com/opencontainers/runc@$RUNC_VERSION"
fi

if [ "${1:-}" = crictl ] && ! has crictl sigs.k8s.io/cri-tools "$CRICTL_VERSION"; then
    echo "crictl $CRICTL_VERSION"
    CGO_ENABLED=0 GOBIN="$bin" "$GO" install -trimpath "sigs.k8s.io/cri-tools/cmd/crictl@$CRICTL_VERSION"
fi
