#!/usr/bin/env bash
# Collect the wheels that benchmarks/gpu.py needs on a machine with Python 3.12, torch, and no network:
#   tools/gpu_bundle.sh OUT [PACKAGE ...]
# OUT gets the packages that setup.py and the tests of CUDA name, or PACKAGE instead, and all that these need, but for
# torch, torchvision, numpy and scipy. On the machine, in the checkout:
#   python -m pip install --no-index --no-deps --target SITE OUT/*.whl
#   PYTHONPATH=SITE python -m benchmarks.gpu RESULTS
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
repository=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
python=${PYTHON:-python3}

target=(--only-binary=:all: --implementation cp --python-version 3.12)
for version in 2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17; do
  target+=(--platform "manylinux_${version}_x86_64")
done
target+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)

missing() { # [PACKAGE ...]: requirements of these, and of the wheels that are there, that no wheel meets
  "$python" - "$repository/setup.py" "$out" "$@" <<'PY'
import ast
import email
import sys
import zipfile
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

THERE = {"torch", "torchvision", "numpy", "scipy"}
INSTEAD = {"faiss-gpu": "faiss-cpu"}  # the former needs libraries of CUDA 12; without it, torch searches on the GPU
TESTS = ["pytest>=8", "hypothesis>=6.100"]
MACHINE = {
    "extra": "",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.0",
    "python_version": "3.12",
    "sys_platform": "linux",
}

setup, wheels, *requirements = sys.argv[1:]
if not requirements:
    words = [word for node in ast.walk(ast.parse(Path(setup).read_text())) if isinstance(node, ast.Call)
             for word in node.keywords]
    requirements = [*next(ast.literal_eval(word.value) for word in words if word.arg == "install_requires"), *TESTS]
have = {}
for wheel in Path(wheels).glob("*.whl"):
    name, version, *_ = parse_wheel_filename(wheel.name)
    have[name] = version
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = [entry for entry in opened.namelist() if entry.endswith(".dist-info/METADATA")]
        requirements += email.message_from_bytes(opened.read(metadata)).get_all("Requires-Dist") or []
lacking = {}
for requirement in map(Requirement, requirements):
    name = canonicalize_name(INSTEAD.get(requirement.name, requirement.name))
    if name in THERE or not (requirement.marker is None or requirement.marker.evaluate(MACHINE)):
        continue
    if name not in have:
        lacking[name] = lacking.get(name, requirement.specifier) & requirement.specifier
    elif not requirement.specifier.contains(have[name], prereleases=True):
        sys.exit(f"tools/gpu_bundle.sh: {name} {have[name]} lies in {wheels}, needed is {requirement}; remove it")
for name, specifier in sorted(lacking.items()):
    print(f"{name}{specifier}")
PY
}

while :; do
  requirements=$(missing "$@")
  [ -n "$requirements" ] || break
  mapfile -t names <<<"$requirements"
  echo "fetching ${names[*]}"
  "$python" -m pip --disable-pip-version-check download --quiet --no-deps "${target[@]}" --dest "$out" \
    "${names[@]}"
done
du -sh "$out"
