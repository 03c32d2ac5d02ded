#!/usr/bin/env bash
# Adds the fleetwright binary to the PATH of the following steps, after a check of its SHA-256. The
# checksum comes from the job that built the binary, and the file from an artifact. A binary that is
# already on the PATH, as on a self-hosted runner, is the one that will run, so it is checked instead.
set -euo pipefail

found=$(command -v fleetwright || true)
if [ -n "$found" ] && [ -z "${FLEETWRIGHT_SHA256:-}" ]; then
  echo "::notice::$found is used as it is, because the input sha256 is not set"
  exit 0
fi
program=${found:-${FLEETWRIGHT_PROGRAM:?path of the binary}}
: "${FLEETWRIGHT_SHA256:?its SHA-256}"
echo "$FLEETWRIGHT_SHA256  $program" | sha256sum --check --strict --status || {
  echo "::error::the SHA-256 of $program differs from the one that was built"
  exit 1
}
if [ -n "$found" ]; then exit 0; fi
mkdir -p "$RUNNER_TEMP/fleetwright-bin"
install -m 0755 "$FLEETWRIGHT_PROGRAM" "$RUNNER_TEMP/fleetwright-bin/fleetwright"
echo "$RUNNER_TEMP/fleetwright-bin" >>"$GITHUB_PATH"
