#!/bin/sh
# Build a wheel of Horovod's last release for the torch of a Python, with the two changes that were made after that release.
#
#   build-horovod.sh PYTHON FOLDER    make FOLDER/horovod-*.whl; PYTHON has torch; takes minutes on two cores
#
# Gloo is always included, MPI if its headers are installed, NCCL if torch has CUDA and nvcc is installed. The variables of
# Horovod's installation guide take effect, such as HOROVOD_BUILD_CUDA_CC_LIST or HOROVOD_GPU_OPERATIONS.
set -eu
VERSION=0.28.1
python=$1
wheels=$(mkdir -p "$2" && cd "$2" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$python" -m pip --quiet --disable-pip-version-check --no-input "$@"; }

# What the build needs and nobody else: CMake 4 refuses Horovod's files, and newer setuptools its setup.py.
pip install --target "$work/tools" 'cmake<4' 'setuptools<81' wheel packaging cloudpickle psutil pyyaml cffi
export PYTHONPATH="$work/tools" PATH="$work/tools/bin:$PATH"

pip download --no-deps --no-build-isolation --no-binary horovod --dest "$work" "horovod==$VERSION"
tar -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
cd "$work/horovod-$VERSION"

# Upstream's change 3998: the headers of torch 2.1 and newer are C++17.
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt
# Upstream's change 3957, without touching each file: gcc 13 and newer do not include this header by themselves.
export CXXFLAGS="-include cstdint ${CXXFLAGS:-}"
# Python 3.12 has no distutils.
sed -i "s/from distutils.sysconfig import get_python_inc; print(get_python_inc())/import sysconfig; print(sysconfig.get_path('include'))/" \
    horovod/torch/CMakeLists.txt

# Debian's mpicxx is there without them.
if echo '#include <mpi.h>' | mpicxx -fsyntax-only -x c++ - 2>/dev/null; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
if "$python" -W ignore -c 'import torch, torch.utils.cpp_extension as built; assert torch.version.cuda and built.CUDA_HOME' 2>/dev/null; then
    export HOROVOD_GPU_OPERATIONS="${HOROVOD_GPU_OPERATIONS-NCCL}"
    # The NCCL that torch itself loads, under the name that linkers look for.
    if [ -z "${HOROVOD_NCCL_HOME:-}" ] && nccl=$("$python" -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null); then
        mkdir -p "$work/nccl/lib"
        ln -s "$nccl/include" "$work/nccl/include"
        ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so"
        export HOROVOD_NCCL_HOME="$work/nccl" HOROVOD_NCCL_LINK=SHARED
    fi
fi
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
export LDFLAGS="-s ${LDFLAGS:-}" MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" # -s: no symbols for debuggers, a tenth of the size
# The wheel's name tells for which torch it was built: it runs with no other.
HOROVOD_LOCAL_VERSION=$("$python" -W ignore -c 'import torch; print("torch" + torch.__version__.replace("+", "."))')
export HOROVOD_LOCAL_VERSION
pip wheel --no-deps --no-build-isolation --wheel-dir "$wheels" .
