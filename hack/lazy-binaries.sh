#!/usr/bin/env bash
# Builds bin/stargz-snapshotter, the lazily pulling snapshotter of `make test-lazy`, from the module integration/lazy.
set -euo pipefail
GO=${GO:-go}
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${IMAGEPIN_BIN:-$root/bin}
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
cd "$root/integration/lazy"
# Go's build cache makes an unchanged build take a second.
CGO_ENABLED=0 "$GO" build -trimpath -ldflags '-s -w' -o "$bin/stargz-snapshotter" ./snapshotter
