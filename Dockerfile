# pucache in a container, to be run as any user, without a network, on a read-only root: docs/scale.md.
#   docker build -t pucache:cuda .                  for a GPU; runs without one too
#   docker build -t pucache:cpu --target cpu .
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ONLY_BINARY=:all: \
    PIP_PYTHON=/opt/venv \
    PIP_REQUIRE_VIRTUALENV=0 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv --without-pip /opt/venv

# --no-deps: the lock names every package, and the one for the CPU leaves out some on purpose
FROM builder AS cuda-packages
COPY docker/cuda.lock packages.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --quiet --require-hashes --no-deps --requirement packages.lock && pip check

FROM builder AS cpu-packages
ARG LOCK=docker/cpu.lock
ARG TORCH_INDEX=
COPY docker/prune.sh ./
COPY ${LOCK} packages.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --quiet --require-hashes --no-deps --requirement packages.lock \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} && \
    ./prune.sh /opt/venv && /opt/venv/bin/python -c "import faiss, torch, torchvision"

# a wheel in a stage of its own, so that a new version of pucache is a small new layer
FROM builder AS wheel
COPY docker/cuda.lock packages.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    sed -n '/^setuptools==/,/[^\\]$/p' packages.lock >setuptools.lock && \
    pip install --quiet --require-hashes --no-deps --requirement setuptools.lock
COPY setup.py pyproject.toml README.md LICENSE NOTICE ./
COPY pucache pucache
COPY cli cli
RUN pip wheel --quiet --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheel .

FROM builder AS pucache
COPY --from=wheel /wheel /wheel
RUN pip install --quiet --no-cache-dir --no-index --no-deps /wheel/*.whl

FROM ${PYTHON} AS base
# caches go where even a read-only container can write
ENV PATH=/opt/venv/bin:${PATH} \
    HOME=/tmp \
    PUCACHE_WORK=/data/.pucache \
    MPLCONFIGDIR=/dev/shm/matplotlib \
    TORCHINDUCTOR_CACHE_DIR=/dev/shm/torchinductor
LABEL org.opencontainers.image.title="pucache" \
      org.opencontainers.image.description="Find the positives hidden among unlabelled images, from a few labelled ones" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.5.0"
WORKDIR /data
USER 1000:1000
ENTRYPOINT ["pucache"]
CMD ["--help"]

FROM base AS cpu
COPY --from=cpu-packages /opt/venv /opt/venv
COPY --from=pucache /opt/venv /opt/venv
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
RUN ["pucache", "--version"]

FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /opt/venv /opt/venv
COPY --from=pucache /opt/venv /opt/venv
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
RUN ["pucache", "--version"]
