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
cp scripts/hanging_ddp.py "$work/train.py"
(
    cd "$work"
    "$composesim" up --engine local --nodes 4 --hang-timeout 6s --name train train.py
    "$composesim" report --run train --html train.html
) >/dev/null 2>&1 || true # it hangs
.venv/bin/python -m scripts.page_picture "$folder/page.png" "$work/train.html" page
.venv/bin/python -m scripts.page_picture "$folder/page-dark.png" "$work/train.html" page dark

# The block `<!-- run: FILE -->` of a page.
block() { sed -n "/<!-- run: $2 -->/,/^\`\`\`\$/p" "docs/$1" | sed '1,2d;$d' >"$work/$2"; }
# Run composesim, whatever its verdict, and picture a section of the report: NAME SECTION WORDS…
picture() {
    (
        cd "$work"
        "$composesim" "$3" --name "$1" "${@:4}" || true
        "$composesim" report --run "$1" --html "$1.html" || true # its exit code is that of the run
    ) >/dev/null 2>&1
    .venv/bin/python -m scripts.page_picture "$folder/$1.png" "$work/$1.html" "$2"
}
block hangs.md hang.py
block check.md train.py
cat >"$work/loss.yaml" <<'END'
cluster: {engine: local, nodes: 3, elastic: "2:3"}
steps:
  - at: {step: 60}
    fault: {kind: kill, node: node-0, for: 1s}
expect: [exit_code: 0]
END
cat >"$work/pause.yaml" <<'END'
cluster: {engine: local, nodes: 3}
steps:
  - at: {step: 40}
    fault: {kind: rank-stop, rank: 1, for: 1s}
expect: [exit_code: 0]
END
picture hang hang up --engine local --nodes 3 --hang-timeout 2s hang.py
picture check samples check --engine local train.py
picture elastic timeline play loss.yaml train_ddp.py --epochs 20
picture faults timeline play pause.yaml train_ddp.py --epochs 3
picture scenarios timeline play node-0-loss --engine local train_ddp.py --epochs 20
grep -v 'optimizer.load_state_dict' train_ddp.py >"$work/forgets.py"
picture resume compare check --resume --engine local --nodes 2 forgets.py --epochs 2
picture links cluster up --nodes 4 --link ethernet-10g --link node-0,node-1:node-2,node-3=1gbit train_ddp.py --epochs 1
(
    cd "$work"
    PYTHONPATH=$OLDPWD "$OLDPWD/.venv/bin/python" -m scripts.terminal_picture "$folder/run.svg" \
        "composesim up --nodes 4 --name demo train_ddp.py --epochs 1"
)
recording=docs/plugins/learn/pictures/course.svg
.venv/bin/python -m scripts.terminal_recording "$recording"
(
    cd "$folder"
    { cat "$page"/* | sha256sum; sha256sum ./*.png; } >made-from
)
ls "$folder"/*.png "$folder"/*.svg "$recording"
