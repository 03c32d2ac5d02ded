#!/usr/bin/env bash
# Puts the program on the path of the steps that follow, if it is the one that was built: by its SHA-256,
# which comes from another job than the file.
set -euo pipefail

command -v fleetwright >/dev/null && exit 0
: "${FLEETWRIGHT_PROGRAM:?the file of the program}" "${FLEETWRIGHT_SHA256:?its SHA-256}"
echo "$FLEETWRIGHT_SHA256  $FLEETWRIGHT_PROGRAM" | sha256sum --check --strict --status || {
  echo "::error::the program is not the one that was built"
  exit 1
}
mkdir -p "$RUNNER_TEMP/fleetwright-bin"
install -m 0755 "$FLEETWRIGHT_PROGRAM" "$RUNNER_TEMP/fleetwright-bin/fleetwright"
echo "$RUNNER_TEMP/fleetwright-bin" >>"$GITHUB_PATH"
