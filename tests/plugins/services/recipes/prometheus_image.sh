#!/usr/bin/env bash
# Make an image of the distribution's Prometheus that starts like the official one, because no registry may be reachable.
#
#   prometheus_image.sh    make composesim-test-prometheus:2 if it does not exist (seconds, as root), and print its name
set -euo pipefail

TAG=composesim-test-prometheus:2

if docker image inspect "$TAG" >/dev/null 2>&1; then
    echo "$TAG"
    exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder" # apt downloads as a user of its own
cd "$folder"
mkdir -p package root/bin root/usr/share
mkdir -m 1777 root/tmp # runc gives this mode to what is mounted there
{
    flock 9 # other scripts may be installing packages
    apt-get download -q prometheus </dev/null >&2 || { apt-get update -q </dev/null >&2 && apt-get download -q prometheus </dev/null >&2; }
} 9>/run/lock/composesim-apt
dpkg-deb -x prometheus_*.deb package
cp package/usr/bin/prometheus root/bin/
cp -r package/usr/share/prometheus root/usr/share/ # its pages
# What it is linked with, where the linker looks for it: `NAME => PATH (ADDRESS)`, and the linker itself, which is a PATH alone.
ldd root/bin/prometheus | grep -o '/[^ ]*' | while read -r library; do
    install -D "$library" "root$library"
done
tar --create --directory root --owner 0 --group 0 . | docker import --change 'ENTRYPOINT ["/bin/prometheus"]' - "$TAG" >/dev/null
echo "$TAG"
