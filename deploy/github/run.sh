#!/usr/bin/env bash
# The steps of the action as one script, which also runs locally and in tests. All inputs are
# environment variables, and none is evaluated as shell code.
#
# Plan and receipt are written outside of the checkout. A committed file with the same name is not
# used.
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

# Appends an option for each non-empty line of a list.
options=()
each() {
  local option=$1 line
  while IFS= read -r line; do
    [ -z "$line" ] || options+=("$option" "$line")
  done <<<"$2"
}

# Writes the labels of the pull request for policies, which read them under data.fleetwright.labels. Each job
# writes the file anew: a file of an artifact could replace other data of the policies.
write_labels() {
  local text='"([^"\\]|\\.)*"' space='[[:space:]]*'
  local list="^\\[$space($text$space(,$space$text$space)*)?\\]\$"
  rm -f "$labels"
  [ -n "${FLEETWRIGHT_LABELS:-}" ] || return 0
  if ! [[ $FLEETWRIGHT_LABELS =~ $list ]]; then
    echo "::error::the labels are not a JSON list of texts" >&2
    exit 1
  fi
  printf '{"fleetwright": {"labels": %s}}\n' "$FLEETWRIGHT_LABELS" >"$labels"
}

# Writes an output of the step.
output() {
  [ -z "${GITHUB_OUTPUT:-}" ] || echo "$1=$2" >>"$GITHUB_OUTPUT"
}

# Prints the reason for the exit code of an apply.
reason() {
  case $1 in
  0) ;;
  3) echo "the plan is stale, or is not the approved one" ;;
  4) echo "another apply is in progress" ;;
  5) echo "an approval or another requirement is missing" ;;
  6) echo "a policy denies the plan" ;;
  7) echo "the plan was applied partially; run the apply once more, or plan once more if the plan has expired" ;;
  8) echo "it is outside of the apply windows" ;;
  9) echo "the plan cannot be read, or was altered" ;;
  10) echo "the plan is for another cluster" ;;
  11) echo "the plan has expired" ;;
  130) echo "the apply was interrupted; run it again" ;;
  *) echo "the apply failed" ;;
  esac
}

case "${FLEETWRIGHT_COMMAND:?clusters, plan, apply, comment, failed or drift}" in
clusters)
  clusters=$(fleetwright init --matrix "$path")
  output clusters "$clusters"
  ;;
plan)
  rm -f "$plan" "$text" "$receipt"
  write_labels
  [ -z "${FLEETWRIGHT_BASE:-}" ] || planning+=(--compare "$FLEETWRIGHT_BASE")
  each --policy "${FLEETWRIGHT_POLICIES:-}"
  each --policy-data "${FLEETWRIGHT_POLICY_DATA:-}"
  [ ! -s "$labels" ] || options+=(--policy-data "$labels")
  ended=0
  fleetwright plan "$path" "${planning[@]}" "${options[@]}" --out "$plan" --format github || ended=$?
  # Summary and outputs are also written if a policy denies the plan. They need no token.
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
  : "${FLEETWRIGHT_APPROVED_DIGEST:?the approved digest}"
  rm -f "$receipt"
  write_labels
  [ -z "${FLEETWRIGHT_APPROVED_PLAN:-}" ] || options+=(--approved-plan "$FLEETWRIGHT_APPROVED_PLAN")
  [ -z "${FLEETWRIGHT_BASE:-}" ] || options+=(--guard-ref "$FLEETWRIGHT_BASE")
  each --policy "${FLEETWRIGHT_POLICIES:-}"
  each --policy-data "${FLEETWRIGHT_POLICY_DATA:-}"
  [ ! -s "$labels" ] || options+=(--policy-data "$labels")
  each --approval "${FLEETWRIGHT_APPROVALS:-}"
  ended=0
  fleetwright apply "$plan" --path "$path" "${options[@]}" --approved-digest "$FLEETWRIGHT_APPROVED_DIGEST" \
    --receipt "$receipt" || ended=$?
  output failure_reason "$(reason "$ended")"
  [ ! -s "$receipt" ] || output receipt_path "$receipt"
  output exitcode "$ended"
  exit "$ended"
  ;;
comment | failed)
  [ -z "${FLEETWRIGHT_PULL:-}" ] || options+=(--pull "$FLEETWRIGHT_PULL")
  # In pull requests, GITHUB_SHA is a temporary merge commit. The status belongs to the head.
  head=${FLEETWRIGHT_HEAD:-${GITHUB_SHA:-}}
  [ -z "$head" ] || options+=(--status "$head")
  [ -z "${FLEETWRIGHT_COMMENT_CLUSTER:-}" ] || options+=(--cluster "$FLEETWRIGHT_COMMENT_CLUSTER")
  if [ "$FLEETWRIGHT_COMMAND" = failed ]; then
    fleetwright comment --failed "${FLEETWRIGHT_REASON:?the reason of the failure}" "${options[@]}"
    exit
  fi
  [ ! -s "$receipt" ] || options+=(--receipt "$receipt")
  [ -z "${FLEETWRIGHT_BASE:-}" ] || options+=(--guard-ref "$FLEETWRIGHT_BASE")
  each --approval "${FLEETWRIGHT_APPROVALS:-}"
  fleetwright comment --plan "$plan" --path "$path" "${options[@]}"
  ;;
drift)
  fleetwright drift "$path" "${planning[@]}" --detailed-exitcode
  ;;
*)
  echo "::error::unknown command: use clusters, plan, apply, comment, failed or drift" >&2
  exit 1
  ;;
esac
