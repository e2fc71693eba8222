# composesim as an image: docker run --rm -v "$PWD:/work" IMAGE check train.py
# Nodes are processes in this container (--engine local). Build: docker build -t composesim .
# TORCH_INDEX=URL adds a package index. PyTorch's own has builds without CUDA, which are a tenth of the size.
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH=torch
ARG TORCH_INDEX=
COPY . /src
# The secret, which no layer keeps, is a pip.conf for builds behind a mirror.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/composesim \
    && /opt/composesim/bin/pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} /src "$TORCH" \
    && rm -rf /src
# With --user root, root works in a mounted checkout of another user.
ENV PATH=/opt/composesim/bin:$PATH COMPOSESIM_RUNS=/tmp COMPOSESIM_TRUST_PROJECT=1
WORKDIR /work
USER 1000
ENTRYPOINT ["composesim"]
CMD ["--help"]
