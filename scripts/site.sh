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
# One page for each lesson and each term, which only the site has: here, two pages of the repository lead to them.
.venv/bin/composesim learn dev pages "$source"
marker='<!-- The site links its own pages here. -->'
sed -i "s|^$marker\$|[Read the lessons here](../../../learn/index.md), or take them as one [notebook](../../../learn/course.ipynb).|" "$source/docs/plugins/learn/learn.md"
sed -i "s|^$marker\$|[Each term](../terms/index.md) has a page of its own.|" "$source/docs/glossary.md"
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --quiet
echo "Open build/site/index.html"
