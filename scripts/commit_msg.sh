#!/usr/bin/env bash
# Git's hook `commit-msg`, which `make setup` installs: refuse a subject of more than 72 characters.
set -euo pipefail
export LC_ALL=C.UTF-8

subject=$(grep -v '^#' "$1" | head -n 1)
case $subject in 'Merge '* | 'fixup! '* | 'squash! '* | 'Revert '*) exit 0 ;; esac
if [ "${#subject}" -gt 72 ]; then
    echo "commit-msg: the subject has ${#subject} characters; at most 72 are allowed: '$subject'" >&2
    echo "The message is kept. Type: git commit --edit --file $(git rev-parse --git-dir)/COMMIT_EDITMSG" >&2
    exit 1
fi
