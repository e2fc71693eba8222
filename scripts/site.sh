#!/usr/bin/env bash
# Build the site of the documents in build/site, with search; a link that leads nowhere is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/site-venv source=build/site-source
[ -x "$venv/bin/mkdocs" ] || {
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement docs/site-requirements.txt
}
rm -rf "$source"
git ls-files -z --cached --others --exclude-standard -- '*.md' 'docs/pictures/*' 'docs/*.svg' LICENSE train_ddp.py |
    xargs -0 cp --parents --target-directory="$(mkdir -p "$source" && echo "$source")"
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --quiet
echo "Open build/site/index.html"
