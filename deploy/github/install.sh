#!/usr/bin/env bash
# Adds the fleetwright binary to the PATH of the following steps, after a check of its SHA-256. The
# checksum comes from the job that built the binary, and the file from an artifact.
set -euo pipefail

command -v fleetwright >/dev/null && exit 0
: "${FLEETWRIGHT_PROGRAM:?path of the binary}" "${FLEETWRIGHT_SHA256:?its SHA-256}"
echo "$FLEETWRIGHT_SHA256  $FLEETWRIGHT_PROGRAM" | sha256sum --check --strict --status || {
  echo "::error::the SHA-256 of the binary differs from the one that was built"
  exit 1
}
mkdir -p "$RUNNER_TEMP/fleetwright-bin"
install -m 0755 "$FLEETWRIGHT_PROGRAM" "$RUNNER_TEMP/fleetwright-bin/fleetwright"
echo "$RUNNER_TEMP/fleetwright-bin" >>"$GITHUB_PATH"
