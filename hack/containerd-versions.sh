#!/usr/bin/env bash
# Builds the other versions of containerd that `make test-versions` tests, from the modules below integration/versions,
# into bin/containerd-<minor>/:
#
#   containerd, ctr, containerd-shim-runc-v2
#                        stock containerd, kept in the user's cache under a hash of its inputs
#   containerd-imagepin  the same containerd with imagepin
set -euo pipefail

GO=${GO:-go}

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cache=${IMAGEPIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/imagepin}
containerd=github.com/containerd/containerd/v2

for module in "$root"/integration/versions/*.*/; do
    minor=$(basename "$module")
    cd "$module"
    version=$("$GO" list -m -f '{{.Version}}' "$containerd")
    key=$(cat go.mod go.sum <("$GO" env GOVERSION GOOS GOARCH) | sha256sum | cut -c1-16)
    built=$cache/containerd-$key
    mkdir -p "$built" "$bin/containerd-$minor"
    for name in containerd ctr containerd-shim-runc-v2; do
        if [ ! -x "$built/$name" ]; then
            echo "$name $version (kept in the user's cache)"
            CGO_ENABLED=0 "$GO" build -trimpath -ldflags "-s -w -X $containerd/version.Version=$version" -o "$built/$name.new" "$containerd/cmd/$name"
            mv "$built/$name.new" "$built/$name"
        fi
        ln -sf "$built/$name" "$bin/containerd-$minor/$name"
    done

    # Always build: imagepin changes often, and Go's build cache makes unchanged builds fast.
    cd "$module/plugin"
    version=$("$GO" list -m -f '{{.Replace.Version}}' "$containerd")+imagepin
    echo "containerd $version"
    CGO_ENABLED=0 "$GO" build -trimpath -ldflags "-s -w -X $containerd/version.Version=$version" -o "$bin/containerd-$minor/containerd-imagepin" .
done
