#!/usr/bin/env bash
# Assumes the IAM role for a live cluster with the OIDC token of this job. No static credentials are
# stored. The trust policy of the role decides which jobs may assume it.
set -euo pipefail

: "${FLEETWRIGHT_ROLE:?ARN of the role}" "${FLEETWRIGHT_REGION:?AWS region}" "${FLEETWRIGHT_CLUSTER:?name of the EKS cluster}"
: "${ACTIONS_ID_TOKEN_REQUEST_URL:?the job needs the permission id-token: write}"
token=$RUNNER_TEMP/fleetwright-identity
(
  umask 077
  curl --silent --show-error --fail --max-time 30 \
    --header "Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" \
    "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=sts.amazonaws.com" |
    grep --only-matching '"value" *: *"[A-Za-z0-9._-]*"' | cut -d '"' -f 4 >"$token"
) || {
  echo "::error::GitHub issued no OIDC token to this job"
  exit 1
}
{
  echo "AWS_ROLE_ARN=$FLEETWRIGHT_ROLE"
  echo "AWS_WEB_IDENTITY_TOKEN_FILE=$token"
  echo "AWS_ROLE_SESSION_NAME=fleetwright-${GITHUB_RUN_ID:-run}"
  echo "AWS_REGION=$FLEETWRIGHT_REGION"
  echo "KUBECONFIG=$RUNNER_TEMP/fleetwright-kubeconfig"
} >>"$GITHUB_ENV"
AWS_ROLE_ARN=$FLEETWRIGHT_ROLE AWS_WEB_IDENTITY_TOKEN_FILE=$token AWS_REGION=$FLEETWRIGHT_REGION \
  aws eks update-kubeconfig --name "$FLEETWRIGHT_CLUSTER" --kubeconfig "$RUNNER_TEMP/fleetwright-kubeconfig"
