#!/usr/bin/env bash
# Remake docker/cuda.lock and docker/cpu.lock: every package of the two images, with its version and hashes.
# With TORCH_INDEX=URL, an index that has torch and torchvision built for the CPU, make docker/cpu-index.lock too.
# Needs uv (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v uv >/dev/null || { echo "tools/lock.sh: uv is not on PATH; pip install uv" >&2; exit 1; }
export UV_CUSTOM_COMPILE_COMMAND=tools/lock.sh

lock() { # OUTPUT [ARGUMENT ...]
  local output=$1
  shift
  uv --no-config pip compile setup.py "$@" --extra openvino --extra s3 --upgrade --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$output" >/dev/null
  echo "$output: $(grep -c '==' "$output") packages, $(grep -o '^torch==[^ ]*' "$output")"
}

lock docker/cuda.lock
lock docker/cpu.lock docker/cpu.in --override docker/cpu-overrides.txt
if [ -n "${TORCH_INDEX:-}" ]; then
  lock docker/cpu-index.lock docker/cpu.in --override docker/cpu-overrides.txt \
    --extra-index-url "$TORCH_INDEX" --index-strategy unsafe-best-match
  for package in torch torchvision; do
    grep -q "^$package==.*+cpu" docker/cpu-index.lock ||
      { echo "tools/lock.sh: TORCH_INDEX has no $package+cpu as new as what the default index has" >&2; exit 1; }
  done
fi
