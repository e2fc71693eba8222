#!/usr/bin/env bash
# Check that a tag may be published: it is signed, names the version, and has a section in CHANGELOG.md.
#
#   scripts/release.sh v0.1.0    write build/release/notes.md, the section of CHANGELOG.md
#
# On GitHub, GitHub verifies the signature, and pyproject.toml and README.md get the addresses of the repository for the build.
set -euo pipefail
cd "$(dirname "$0")/.."

tag=$1
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' compose_sim/version.py)
fail() { echo "release.sh: $1" >&2; exit 1; }

[ "$tag" = "v$version" ] || fail "the tag is $tag, and compose_sim/version.py has $version"
mkdir -p build/release
awk -v heading="## [$version]" 'index($0, "## ") == 1 { inside = index($0, heading) == 1; next } inside' CHANGELOG.md >build/release/notes.md
grep -q '[^[:space:]]' build/release/notes.md || fail "CHANGELOG.md has no section '## [$version]'"
if [ -n "${GITHUB_REPOSITORY:-}" ]; then
    object=$(gh api "repos/$GITHUB_REPOSITORY/git/ref/tags/$tag" --jq '.object.type + " " + .object.sha')
    [ "${object%% *}" = tag ] || fail "$tag is no annotated tag, so it cannot be signed: git tag --sign $tag"
    signed=$(gh api "repos/$GITHUB_REPOSITORY/git/tags/${object#* }" --jq .verification.verified)
    [ "$signed" = true ] || fail "the signature of $tag is not verified"
    python3 scripts/release_metadata.py "${GITHUB_SERVER_URL:-https://github.com}/$GITHUB_REPOSITORY" "$tag"
else
    git verify-tag "$tag" || fail "$tag is not signed by a key that you trust"
fi
echo "$tag: ready"
