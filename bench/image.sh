#!/bin/sh
# The image that the rivals run: a plain Debian with Python and the same torch as composesim's own environment.
#
#   bench/image.sh [PYTHON]     builds composesim-bench:1 unless it is there already with that torch
#
# No registry is asked. The base comes from the distribution's packages (mmdebstrap), torch from pip, both unpacked in
# one pass. `python` and `torchrun` are on the PATH of a login shell too, because two of the rivals start one.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${1:-$here/../.venv/bin/python}
tag=composesim-bench:1
unset PYTHONDONTWRITEBYTECODE # an image whose modules are compiled at every start would slow the rivals down

torch=$("$python" -c 'from importlib.metadata import version; print(version("torch"))')
minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $minor in
    3.11) suite=bookworm ;;
    3.13) suite=trixie ;;
    *) echo "image.sh: no Debian release has Python $minor as its python3; give another PYTHON (3.11 or 3.13)" >&2; exit 4 ;;
esac

have=$(docker image inspect --format '{{index .Config.Labels "composesim.bench.torch"}}' "$tag" 2>/dev/null || true)
if [ "$have" = "$torch" ]; then
    exit 0
fi
command -v mmdebstrap >/dev/null || "$here/../scripts/install_packages.sh" mmdebstrap

mkdir -p "$here/.cache"
work=$(mktemp -d "$here/.cache/image.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

echo "image.sh: building $tag: Debian $suite, Python $minor, torch $torch" >&2
"$python" -m pip download --quiet --quiet --dest "$work/wheels" "torch==$torch"
mmdebstrap --quiet --variant=minbase --include=python3,python3-pip,ca-certificates \
    --customize-hook="copy-in $work/wheels /tmp" \
    --customize-hook='chroot "$1" python3 -m pip install --quiet --root-user-action=ignore --break-system-packages --no-index --find-links=/tmp/wheels torch' \
    --customize-hook='rm -rf "$1/tmp/wheels"; ln -sf python3 "$1/usr/bin/python"' \
    "$suite" "$work/root.tar"
docker import \
    --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'CMD ["/bin/bash"]' \
    --change "LABEL composesim.bench.torch=$torch" \
    "$work/root.tar" "$tag" >/dev/null
docker run --rm "$tag" bash -lc 'python -c "import torch; print(\"image.sh: built, torch\", torch.__version__)" && command -v torchrun' >&2
