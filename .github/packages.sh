#!/usr/bin/env bash
# Writes the Homebrew formula and the Krew manifest of a release:
#
#   packages.sh DIR   reads the archives in DIR, writes DIR/fleetwright.rb and DIR/krew.yaml
#
# Both name the archives of the GitHub release of the tag, with their SHA-256. The files depend only
# on tag, repository and archives, so a repeated job writes the same files.
set -euo pipefail

: "${GITHUB_REF_NAME:?}" "${GITHUB_REPOSITORY:?}"
directory=${1:?directory of the archives}
version=${GITHUB_REF_NAME#v}
source=https://github.com/$GITHUB_REPOSITORY
about="Plan, review and apply EC2 node capacity for the workloads in Git"

url() { echo "$source/releases/download/$GITHUB_REF_NAME/fleetwright-$1-$2.tar.gz"; }
checksum() { echo "${checksums[$1-$2]}"; }

# A missing archive ends the script before it writes a file.
declare -A checksums
for platform in darwin-amd64 darwin-arm64 linux-amd64 linux-arm64; do
  checksums[$platform]=$(sha256sum "$directory/fleetwright-$platform.tar.gz" | cut -d ' ' -f 1)
done

# Prints the archive of one platform in the syntax of formulas.
formula_archive() {
  cat <<END
    on_$1 do
      url "$(url "$2" "$3")"
      sha256 "$(checksum "$2" "$3")"
    end
END
}

formula() {
  cat <<END
# Written by .github/packages.sh for $GITHUB_REF_NAME.
class Fleetwright < Formula
  desc "$about"
  homepage "$source"
  version "$version"
  license "Apache-2.0"

  on_macos do
$(formula_archive arm darwin arm64)
$(formula_archive intel darwin amd64)
  end

  on_linux do
$(formula_archive arm linux arm64)
$(formula_archive intel linux amd64)
  end

  def install
    bin.install "fleetwright"
    generate_completions_from_executable(bin/"fleetwright", "completions")
    system bin/"fleetwright", "man", buildpath/"man"
    man1.install Dir["man/*.1"]
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/fleetwright --version")
  end
end
END
}

manifest() {
  local os arch
  cat <<END
# Written by .github/packages.sh for $GITHUB_REF_NAME.
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: fleetwright
spec:
  version: v$version
  homepage: $source
  shortDescription: Plan and apply EC2 node capacity from Git
  description: |
    Computes the EC2 capacity that the workloads in a Git repository need, shows the difference to
    the running nodes as a plan, and applies approved plans. It uses the current context of the
    kubeconfig, and credentials of AWS as the AWS CLI finds them.
  platforms:
END
  for os in darwin linux; do
    for arch in amd64 arm64; do
      cat <<END
    - selector:
        matchLabels:
          os: $os
          arch: $arch
      uri: $(url "$os" "$arch")
      sha256: $(checksum "$os" "$arch")
      bin: fleetwright
END
    done
  done
}

formula >"$directory/fleetwright.rb"
manifest >"$directory/krew.yaml"
