#!/usr/bin/env bash
# Generates the deepcopy functions of api/v1alpha1 and contrib/kubernetes/cluster/crd.yaml from the Go types. With -check
# nothing is written, and the exit code is 1 if a file is out of date.
set -euo pipefail

GO=${GO:-go}

cd "$(dirname "$0")/.."
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

"$GO" tool -modfile=tools/go.mod controller-gen paths=./api/v1alpha1 \
    object output:object:dir="$new" crd output:crd:stdout >"$new/crd"
# The version of the generator is no part of the API.
sed '/^  annotations:$/d; /controller-gen.kubebuilder.io\/version/d' "$new/crd" >"$new/crd.yaml"

rc=0
for file in api/v1alpha1/zz_generated.deepcopy.go contrib/kubernetes/cluster/crd.yaml; do
    if [ "${1:-}" != -check ]; then
        cp "$new/${file##*/}" "$file"
    elif ! diff -u "$file" "$new/${file##*/}"; then
        echo "$file is out of date: run make generate" >&2
        rc=1
    fi
done
exit $rc
