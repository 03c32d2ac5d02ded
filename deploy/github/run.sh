#!/usr/bin/env bash
# What the action does, as one script, so that it runs on a laptop and in tests as it does in CI.
# Every input comes as an environment variable; none is ever part of a command's text.
#
# Plan and receipt lie outside of the checkout: a file of their names that somebody commits is no plan.
set -euo pipefail

results=${FLEETWRIGHT_RESULTS:-${RUNNER_TEMP:?}/fleetwright}
mkdir -p "$results"
plan=$results/plan.json
text=$results/plan.txt
receipt=$results/receipt.json
labels=$results/labels.json
path=${FLEETWRIGHT_PATH:-.}
planning=()
[ -z "${FLEETWRIGHT_WORLD:-}" ] || planning+=(--world "$FLEETWRIGHT_WORLD")

# Appends an option for each line of a list.
options=()
each() {
  local option=$1 line
  while IFS= read -r line; do
    [ -z "$line" ] || options+=("$option" "$line")
  done <<<"$2"
}

# Writes an output of the step.
output() {
  [ -z "${GITHUB_OUTPUT:-}" ] || echo "$1=$2" >>"$GITHUB_OUTPUT"
}

# Says why an apply ended as it did, by its exit code.
reason() {
  case $1 in
  0) ;;
  3) echo "the world or the plan is not what was approved any more" ;;
  4) echo "another apply is under way" ;;
  5) echo "an approval or another requirement is missing" ;;
  6) echo "a policy denies it" ;;
  7) echo "a part is applied; run it again" ;;
  8) echo "it is outside of the windows" ;;
  9) echo "the plan cannot be read or was altered" ;;
  10) echo "the plan is of another cluster" ;;
  11) echo "the plan has expired" ;;
  130) echo "it was interrupted; run it again" ;;
  *) echo "it failed" ;;
  esac
}

case "${FLEETWRIGHT_COMMAND:?plan, apply, comment, failed or drift}" in
plan)
  rm -f "$plan" "$text" "$receipt" "$labels"
  # Policies read the labels of the pull request under data.fleetwright.labels.
  if [ -n "${FLEETWRIGHT_LABELS:-}" ]; then
    printf '{"fleetwright": {"labels": %s}}\n' "$FLEETWRIGHT_LABELS" >"$labels"
  fi
  [ -z "${FLEETWRIGHT_BASE:-}" ] || planning+=(--compare "$FLEETWRIGHT_BASE")
  each --policy "${FLEETWRIGHT_POLICIES:-}"
  each --policy-data "${FLEETWRIGHT_POLICY_DATA:-}"
  [ ! -s "$labels" ] || options+=(--policy-data "$labels")
  ended=0
  fleetwright plan "$path" "${planning[@]}" "${options[@]}" --out "$plan" --format github || ended=$?
  # The summary and the outputs are written whether or not a policy denies; no token is needed.
  if [ -s "$plan" ]; then
    GITHUB_TOKEN='' fleetwright comment --plan "$plan"
    fleetwright show "$plan" >"$text"
    output json_plan_path "$plan"
    output text_plan_path "$text"
  fi
  output exitcode "$ended"
  exit "$ended"
  ;;
apply)
  : "${FLEETWRIGHT_APPROVED_DIGEST:?the digest that was approved}"
  rm -f "$receipt"
  [ -z "${FLEETWRIGHT_BASE:-}" ] || options+=(--guard-ref "$FLEETWRIGHT_BASE")
  each --policy "${FLEETWRIGHT_POLICIES:-}"
  each --policy-data "${FLEETWRIGHT_POLICY_DATA:-}"
  [ ! -s "$labels" ] || options+=(--policy-data "$labels")
  each --approval "${FLEETWRIGHT_APPROVALS:-}"
  ended=0
  fleetwright apply "$plan" "${options[@]}" --approved-digest "$FLEETWRIGHT_APPROVED_DIGEST" \
    --receipt "$receipt" || ended=$?
  output failure_reason "$(reason "$ended")"
  [ ! -s "$receipt" ] || output receipt_path "$receipt"
  output exitcode "$ended"
  exit "$ended"
  ;;
comment | failed)
  [ -z "${FLEETWRIGHT_PULL:-}" ] || options+=(--pull "$FLEETWRIGHT_PULL")
  # Of a pull request GITHUB_SHA is a merge that nobody sees: its head is what is looked at.
  head=${FLEETWRIGHT_HEAD:-${GITHUB_SHA:-}}
  [ -z "$head" ] || options+=(--status "$head")
  if [ "$FLEETWRIGHT_COMMAND" = failed ]; then
    fleetwright comment --failed "${FLEETWRIGHT_REASON:?what failed}" "${options[@]}"
    exit
  fi
  [ ! -s "$receipt" ] || options+=(--receipt "$receipt")
  each --approval "${FLEETWRIGHT_APPROVALS:-}"
  fleetwright comment --plan "$plan" "${options[@]}"
  ;;
drift)
  fleetwright drift "$path" "${planning[@]}" --detailed-exitcode
  ;;
*)
  echo "::error::no such command" >&2
  exit 1
  ;;
esac
