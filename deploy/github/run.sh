#!/usr/bin/env bash
# What the action does, as one script, so that it runs on a laptop and in tests as it does in CI.
# Every input comes as an environment variable; none is ever part of a command's text.
set -euo pipefail

plan=${FLEETWRIGHT_PLAN:-plan.json}
path=${FLEETWRIGHT_PATH:-.}
planning=()
[ -z "${FLEETWRIGHT_WORLD:-}" ] || planning+=(--world "$FLEETWRIGHT_WORLD")

case "${FLEETWRIGHT_COMMAND:?plan, apply, comment or drift}" in
plan)
  [ -z "${FLEETWRIGHT_BASE:-}" ] || planning+=(--compare "$FLEETWRIGHT_BASE")
  ended=0
  fleetwright plan "$path" "${planning[@]}" --out "$plan" --format github || ended=$?
  # The summary and the outputs are written whether or not a policy denies; no token is needed.
  [ ! -s "$plan" ] || GITHUB_TOKEN='' fleetwright comment --plan "$plan"
  exit "$ended"
  ;;
apply)
  : "${FLEETWRIGHT_APPROVED_DIGEST:?the digest that was approved}"
  guard=()
  [ -z "${FLEETWRIGHT_BASE:-}" ] || guard+=(--guard-ref "$FLEETWRIGHT_BASE")
  fleetwright apply "$plan" "${guard[@]}" --approved-digest "$FLEETWRIGHT_APPROVED_DIGEST" \
    --receipt receipt.json
  ;;
comment)
  about=()
  [ ! -s receipt.json ] || about+=(--receipt receipt.json)
  [ -z "${FLEETWRIGHT_PULL:-}" ] || about+=(--pull "$FLEETWRIGHT_PULL")
  [ -z "${GITHUB_SHA:-}" ] || about+=(--status "$GITHUB_SHA")
  fleetwright comment --plan "$plan" "${about[@]}"
  ;;
drift)
  fleetwright drift "$path" "${planning[@]}" --detailed-exitcode
  ;;
*)
  echo "::error::no such command" >&2
  exit 1
  ;;
esac
