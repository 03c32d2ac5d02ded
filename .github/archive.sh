#!/usr/bin/env bash
# Packs a binary of a release into an archive, for Homebrew and Krew:
#
#   archive.sh fleetwright-linux-amd64   writes fleetwright-linux-amd64.tar.gz
#
# The archive contains the binary, named fleetwright, and the license. Runs at the root of the
# repository, with the tar of Linux or macOS.
set -euo pipefail

binary=${1:?name of the binary}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
install -m 0755 "$binary" "$scratch/fleetwright"
install -m 0644 LICENSE "$scratch/LICENSE"
# macOS would add a file for extended attributes.
COPYFILE_DISABLE=1 tar -C "$scratch" -czf "$binary.tar.gz" fleetwright LICENSE
