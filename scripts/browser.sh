#!/usr/bin/env bash
# Install Chromium from the distribution's packages (as root), unless there is one: tests of the page drive it, or are
# skipped. In CI, where a skipped test would go unnoticed, a failed installation is an error.
set -euo pipefail

if command -v chromium >/dev/null; then exit 0; fi
"$(dirname "$0")/install_packages.sh" chromium && exit 0
echo "Chromium cannot be installed: tests of the page are skipped." >&2
[ "${CI:-}" != true ]
