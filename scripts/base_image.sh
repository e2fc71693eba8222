#!/usr/bin/env bash
# Make the image that the docker tests build on, from the distribution's packages, because no registry may be reachable.
#
#   scripts/base_image.sh    make composesim-test-base:1 if it does not exist (about 20 s, as root), and print its name
set -euo pipefail

TAG=composesim-test-base:1
PACKAGES=python3,python3-venv,python3-pip,python-is-python3,ca-certificates

if docker image inspect "$TAG" >/dev/null 2>&1; then
    echo "$TAG"
    exit
fi
command -v mmdebstrap >/dev/null || "$(dirname "$0")/install_packages.sh" mmdebstrap

# The release that this machine runs, and the mirror that it comes from: engine.sh may have added the source of a newer one.
own_release=$(. /etc/os-release && echo "$VERSION_CODENAME")
read -r mirror release origin < <(
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' |
        awk -v own="$own_release" '$3 == "main" && ($4 == "Debian" || $4 == "Ubuntu") && $2 == own && !done { print $1, $2, $4; done = 1 }'
)
components=main
if [ "$origin" = Ubuntu ]; then components=main,universe; fi # there python3-pip is in universe

# Made whole before it is imported: a failure in a pipe would leave an image that looks finished.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mmdebstrap --quiet --variant=minbase --components="$components" --include="$PACKAGES" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$release" "$folder/base.tar" "$mirror" >&2
docker import --change 'CMD ["/bin/bash"]' "$folder/base.tar" "$TAG" >/dev/null
echo "$TAG"
