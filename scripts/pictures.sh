#!/usr/bin/env bash
# Make the pictures in the documents from real runs. tests/view/test_pictures.py fails if they are stale.
set -euo pipefail
export LC_ALL=C # the order of names below
cd "$(dirname "$0")/.."

folder=$PWD/docs/pictures
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r train_ddp.py data "$work"
composesim=$PWD/.venv/bin/composesim
page=$PWD/compose_sim/view/page
mkdir -p "$folder"
(
    cd "$work"
    "$composesim" up --engine local --nodes 4 --name demo train_ddp.py --epochs 3
    "$composesim" report --run demo --html demo.html
) >/dev/null 2>&1
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1120 \
    --screenshot="$folder/page.png" "file://$work/demo.html" 2>/dev/null
cat "$page"/* | sha256sum | cut -d ' ' -f 1 >"$folder/page.made-from"
(
    cd "$work"
    PYTHONPATH=$OLDPWD "$OLDPWD/.venv/bin/python" -m scripts.terminal_picture "$folder/run.svg" \
        "composesim up --nodes 4 --name demo train_ddp.py --epochs 1"
)
ls "$folder"/*.png "$folder"/*.svg
