#!/usr/bin/env bash
# Install Chromium from the distribution's packages (as root), unless there is one: tests of the page drive it, or are skipped.
set -euo pipefail

if command -v chromium >/dev/null; then exit 0; fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null ||
    echo "Chromium cannot be installed: tests of the page are skipped."
