#!/usr/bin/env bash
# Signs the checksums and the repositories of a release with a key of GnuPG.
#
#   hack/sign-release.sh DIST KEY
set -euo pipefail

dist=$1 key=$2

# sign OPTION SIGNATURE FILE
sign() { gpg --batch --yes --armor --local-user "$key" --output "$2" "$1" "$3"; }

sign --detach-sign "$dist/release/SHA256SUMS.asc" "$dist/release/SHA256SUMS"
sign --detach-sign "$dist/repository/rpm/repodata/repomd.xml.asc" "$dist/repository/rpm/repodata/repomd.xml"
stable=$dist/repository/apt/dists/stable
sign --detach-sign "$stable/Release.gpg" "$stable/Release"
sign --clearsign "$stable/InRelease" "$stable/Release"
gpg --batch --yes --armor --output "$dist/release/imagepin.asc" --export "$key"
