#!/usr/bin/env bash
# Create .venv-recipes: composesim with Horovod, Ray, PaddlePaddle and four trainers, and the system packages that Horovod needs.
#
#   scripts/recipes.sh             install what is missing; Horovod is compiled once for each torch, which takes minutes
#   scripts/recipes.sh --check     list what is missing, on stderr; exit status 0 or 1
#   scripts/recipes.sh --wheels    print the folder with the wheel of Horovod, for `composesim image build --wheels`
#
# The versions are those of templates/image/requirements/ and of plug-ins, as in images; the torch is that of .venv (make help).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-recipes
STAMP=$VENV/composesim-recipes
BUILD_HOROVOD=compose_sim/plugins/horovod/templates/image/build-horovod.sh # not there without that plug-in
mapfile -t REQUIREMENTS < <(find templates compose_sim/plugins -path '*/image/requirements/*.txt' 2>/dev/null | sort)
VALIDATORS=(kubernetes-validate==1.37.0 kubeflow-trainer-api==2.3.0) # of exported job files: tests/plugins/job_files/core/exports/test_validators.py
FRAMEWORKS=(lightning==2.6.6 accelerate==1.15.0 transformers==5.24.0 torchdata==0.11.0) # of tests/plugins/resume/frameworks
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/composesim/wheels
PATH=$PATH:/usr/sbin # where sshd is

main() {
    case "${1:-}" in
        --check) check ;;
        --wheels) wheels ;;
        "") ensure ;;
        *) fail "unknown option '$1': --check, --wheels or none" ;;
    esac
}

check() {
    [ -x "$VENV/bin/composesim" ] || fail "there is no $VENV."
    [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ] || fail "$VENV is not what this checkout wants."
    ! [ -e "$BUILD_HOROVOD" ] || has sshd || fail "there is no sshd (Debian: openssh-server), which nodes of the recipe horovod run."
}

ensure() {
    if (check) 2>/dev/null; then return; fi
    [ -x .venv/bin/python ] || fail "there is no .venv to take Python and torch's version from. Type: make setup"
    if [ -e "$BUILD_HOROVOD" ]; then install_system_packages; fi
    echo "Installing the recipes' frameworks into $VENV: some 3 GB ..."
    if ! [ -x "$VENV/lib/python$(python_version)/../../bin/python" ]; then make_venv; fi # none yet, or of another Python
    pip install 'pip>=25.1' # the first with --group
    pip install "$(torch)" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} numpy
    if [ -e "$BUILD_HOROVOD" ]; then
        build_horovod
        pip install --no-index --find-links "$(wheels)" --no-deps --force-reinstall horovod # the one for another torch has the same version
    fi
    # shellcheck disable=SC2046  # one option for each file
    pip install "$(torch)" --editable . --group test $(printf -- '--requirement %s ' "${REQUIREMENTS[@]}")
    pip install "$(torch)" "${VALIDATORS[@]}" "${FRAMEWORKS[@]}"
    pip uninstall --yes rfc3987-syntax lark # Jupyter's: where they are, each process of Ray takes 1.4 s of CPU longer to start
    pip check >/dev/null || { "$VENV/bin/python" -m pip check >&2; fail "packages in $VENV contradict each other."; }
    fingerprint >"$STAMP"
    echo "Ready: $VENV/bin/composesim, $("$VENV/bin/python" -c 'from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("torch", "horovod", "ray", "paddlepaddle")))')"
}

# Everything that would make another .venv-recipes.
fingerprint() {
    { cat pyproject.toml scripts/recipes.sh "${REQUIREMENTS[@]}" && cat "$BUILD_HOROVOD" 2>/dev/null || true; echo "$PWD $(torch) $(python_version)"; } |
        sha256sum | cut -d ' ' -f 1
}

# Named after all that its code depends on: another of these is another wheel.
wheels() {
    local mpi=without-mpi
    if has_mpi_headers; then mpi=with-mpi; fi
    echo "$CACHE/horovod-$(torch)-python$(python_version)-$mpi-$(sha256sum "$BUILD_HOROVOD" | cut -c 1-12)"
}

build_horovod() {
    local folder
    folder=$(wheels)
    if compgen -G "$folder/horovod-*.whl" >/dev/null; then return; fi
    echo "Building Horovod for $(torch), once: it comes to $folder ..."
    mkdir -p "$folder"
    sh "$BUILD_HOROVOD" "$PWD/$VENV/bin/python" "$folder" || fail "Horovod was not built; what pip said stands above."
}

# The torch of .venv as a requirement, and its Python's version, by the names of folders: this runs each time.
torch() {
    local found=(.venv/lib/python3*/site-packages/torch-*.dist-info)
    found=${found[0]##*/torch-}
    echo "torch==${found%.dist-info}"
}

python_version() {
    local found=(.venv/lib/python3*)
    echo "${found[0]##*/python}"
}

make_venv() {
    .venv/bin/python -m venv --clear "$VENV" && return
    rm -rf "$VENV" # half a venv would look like a whole one the next time
    fail "'.venv/bin/python -m venv' failed."
}

# sshd, for nodes that horovodrun reaches; OpenMPI and a compiler, for a Horovod that can be driven by mpirun too.
install_system_packages() {
    local wanted=()
    has sshd || wanted+=(openssh-server)
    has mpirun && has_mpi_headers || wanted+=(openmpi-bin libopenmpi-dev)
    has g++ && has make || wanted+=(g++ make)
    [ "${#wanted[@]}" -gt 0 ] || return 0
    if may_install; then
        scripts/install_packages.sh "${wanted[@]}"
    else
        echo "recipes.sh: not on this machine, and left to its owner to install: ${wanted[*]}" >&2
        has sshd && has g++ || fail "without them the recipe horovod cannot run. On Debian and Ubuntu: apt-get install ${wanted[*]}"
    fi
}

# Where systemd runs, the package openssh-server opens this machine to others: a decision for its owner, except in CI.
may_install() { [ "$(id -u)" = 0 ] && has apt-get && { [ "${CI:-}" = true ] || ! [ -d /run/systemd/system ]; }; }

has_mpi_headers() { echo '#include <mpi.h>' | mpicxx -fsyntax-only -x c++ - 2>/dev/null; } # mpicxx itself comes without them

has() { command -v "$1" >/dev/null; }

pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@"; }

fail() {
    echo "recipes.sh: $1" >&2
    exit 1
}

main "$@"
