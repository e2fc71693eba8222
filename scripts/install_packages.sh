#!/usr/bin/env bash
# Install packages of Debian or Ubuntu, as root, without recommended ones and without questions.
#
#   scripts/install_packages.sh PACKAGE…    exit code 4 if this user or this system cannot
#
# Several scripts run at once in CI, and apt does not wait while another process reads the package lists.
set -euo pipefail

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "To install, as root: apt-get install $*" >&2
    exit 4
fi
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a
exec 9>/run/lock/composesim-apt
flock 9
apt-get update --quiet --quiet </dev/null >&2
apt-get install --quiet --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" </dev/null >&2
