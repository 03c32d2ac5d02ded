#!/usr/bin/env bash
# The steps of the job `publish` of a release, as one script, which also runs locally.
#
#   publish.sh push      push image and chart to the registry
#   publish.sh release   upload binaries, packages and chart to the GitHub release of the tag
#
# Both commands can be repeated after a failure. Published artifacts with the same content are kept.
# Artifacts with other content, and artifacts that cannot be read, are errors. Nothing published is
# ever replaced, so a version always denotes the same content.
set -euo pipefail
# Failures in command substitutions also end the script.
shopt -s inherit_errexit

: "${GITHUB_REF_NAME:?}" "${GITHUB_REPOSITORY:?}" "${GITHUB_REPOSITORY_OWNER:?}" "${GITHUB_ACTOR:?}"
version=${GITHUB_REF_NAME#v}
registry=ghcr.io
image=${GITHUB_REPOSITORY,,}
charts=${GITHUB_REPOSITORY_OWNER,,}/charts
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "::error::$*" >&2
  exit 1
}

differs() {
  fail "$1 already exists with other content. If an earlier run of this release failed, re-run only its failed jobs," \
    "which publish the artifacts of that run. Otherwise release a new version"
}

# Prints the SHA-256 of stdin in the format of registries.
digest() { sha256sum | sed 's/^\([0-9a-f]*\) .*/sha256:\1/'; }

# Writes the manifest of $1 ("repository:tag") to the file $2. Returns 1 if the registry has none.
# Any other failure ends the script. The token has push scope, because the registry refuses a pull
# token for a new repository. Secrets are passed in files, so the process list does not show them.
manifest() {
  local name=${1%:*} tag=${1##*:} file=$2 token status=0
  token=$(curl --silent --show-error --fail --retry 3 --config <(printf 'user = "%s:%s"\n' "$GITHUB_ACTOR" "${TOKEN:?}") \
    "https://$registry/token?service=$registry&scope=repository:$name:pull,push" | jq --raw-output '.token // empty') \
    || token=
  [ -n "$token" ] || fail "$registry issued no token for $name, so its published artifacts are unknown"
  status=$(curl --silent --show-error --retry 3 --output "$file" --write-out '%{http_code}' \
    --config <(printf 'header = "Authorization: Bearer %s"\n' "$token") \
    --header 'Accept: application/vnd.oci.image.index.v1+json' \
    --header 'Accept: application/vnd.oci.image.manifest.v1+json' \
    "https://$registry/v2/$name/manifests/$tag") || status=none
  case $status in
  200) return 0 ;;
  404) return 1 ;;
  *) fail "$registry/$1 cannot be read (status $status), so its published artifacts are unknown" ;;
  esac
}

# Pushes the image of one architecture, and prints its digest.
push_image() {
  local arch=$1 to="$image:$version-$1" built there
  built=$(skopeo inspect --raw "oci-archive:built/image-$arch.tar" | digest)
  if manifest "$to" "$scratch/there"; then
    there=$(digest <"$scratch/there")
    [ "$there" = "$built" ] || differs "$registry/$to"
    echo "$registry/$to already exists" >&2
  else
    skopeo copy --preserve-digests "oci-archive:built/image-$arch.tar" "docker://$registry/$to" >&2
  fi
  echo "$built"
}

# Pushes the index of both images under the version, and prints its digest.
push_index() {
  local to="$image:$version" amd64=$1 arm64=$2
  if manifest "$to" "$scratch/there"; then
    echo "$registry/$to already exists" >&2
  else
    docker buildx imagetools create --tag "$registry/$to" "$registry/$image@$amd64" "$registry/$image@$arm64" >&2
    manifest "$to" "$scratch/there" || fail "$registry/$to was pushed, but is not found"
  fi
  jq --exit-status --arg amd64 "$amd64" --arg arm64 "$arm64" \
    '[.manifests[]? | { (.platform.architecture): .digest }] | add == { $amd64, $arm64 } and length == 2' \
    "$scratch/there" >/dev/null || differs "$registry/$to"
  digest <"$scratch/there"
}

# Pushes the chart that was built, and prints its digest.
#
# Packages of the same files differ in their timestamps, so the extracted files are compared.
push_chart() {
  local to="$charts/fleetwright:$version" package="fleetwright-$version.tgz" made="$scratch/made" there="$scratch/pulled"
  mkdir -p "$made/files" "$there/files"
  cp "built/$package" "$made/"
  if manifest "$to" "$scratch/there"; then
    echo "$registry/$to already exists" >&2
  else
    helm push "$made/$package" "oci://$registry/$charts" >&2
    manifest "$to" "$scratch/there" || fail "$registry/$to was pushed, but is not found"
  fi
  helm pull "oci://$registry/$charts/fleetwright" --version "$version" --destination "$there" >&2
  tar -xzf "$made/$package" -C "$made/files"
  tar -xzf "$there/$package" -C "$there/files"
  diff --recursive "$made/files" "$there/files" >&2 || differs "$registry/$to"
  # An earlier run has published and attested its own package of these files.
  cp "$there/$package" built/
  digest <"$scratch/there"
}

push() {
  local amd64 arm64 both chart
  amd64=$(push_image amd64)
  arm64=$(push_image arm64)
  both=$(push_index "$amd64" "$arm64")
  chart=$(push_chart)
  {
    echo "image=$registry/$image"
    echo "image-digest=$both"
    echo "chart=$registry/$charts/fleetwright"
    echo "chart-digest=$chart"
  } >>"$GITHUB_OUTPUT"
}

# Prints a line for each release of the tag, including drafts: its id, and true for a draft.
releases() {
  gh api --paginate "repos/$GITHUB_REPOSITORY/releases?per_page=100" \
    --jq ".[] | select(.tag_name == env.GITHUB_REF_NAME) | \"\(.id) \(.draft)\""
}

# Adds a file to the release if it is missing. The rest of a failed upload is removed first.
add() {
  local file=$1 release=$2 name id state
  name=$(basename "$file")
  read -r id state < <(awk -v name="$name" '$3 == name { print $1, $2 }' "$scratch/assets") || true
  if [ "${state:-}" = uploaded ]; then
    gh api --header 'Accept: application/octet-stream' "repos/$GITHUB_REPOSITORY/releases/assets/$id" >"$scratch/asset"
    cmp "$file" "$scratch/asset" >&2 || differs "$name of release $GITHUB_REF_NAME"
    echo "$name already exists"
    return 0
  fi
  [ "$release" = draft ] || fail "release $GITHUB_REF_NAME is already published, without $name"
  [ -z "${id:-}" ] || gh api --method DELETE "repos/$GITHUB_REPOSITORY/releases/assets/$id"
  gh release upload "$GITHUB_REF_NAME" "$file" --repo "$GITHUB_REPOSITORY"
}

# The release is a draft until all files are uploaded, so it never appears incomplete.
release() {
  local found id draft options=() file
  [[ $GITHUB_REF_NAME != *-* ]] || options+=(--prerelease)
  found=$(releases) || fail "the releases cannot be read"
  if [ -z "$found" ]; then
    # shellcheck disable=SC2016 # The backticks are Markdown.
    printf 'Image `%s`, chart `%s`. CHANGELOG.md lists the changes.\n' "${IMAGE:?}" "${CHART:?}" >"$scratch/notes"
    gh release create "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --draft --verify-tag --title "$GITHUB_REF_NAME" \
      --notes-file "$scratch/notes" "${options[@]}"
    found=$(releases) || fail "the releases cannot be read"
  fi
  [ "$(wc -l <<<"$found")" -eq 1 ] || fail "several releases exist for $GITHUB_REF_NAME: remove the drafts among them"
  read -r id draft <<<"$found"
  [ -n "$id" ] || fail "the new release is not listed yet: re-run this job"
  if [ "$draft" = true ]; then draft=draft; fi
  gh api --paginate "repos/$GITHUB_REPOSITORY/releases/$id/assets?per_page=100" \
    --jq '.[] | "\(.id) \(.state) \(.name)"' >"$scratch/assets"
  for file in built/fleetwright-linux-* built/fleetwright-darwin-* built/fleetwright.rb built/krew.yaml \
    built/fleetwright.cdx.json "built/fleetwright-$version.tgz"; do
    add "$file" "$draft"
  done
  if [ "$draft" = draft ]; then
    gh release edit "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --draft=false "${options[@]}"
  fi
}

case ${1:-} in
push | release) "$1" ;;
*) fail "unknown command: use push or release" ;;
esac
