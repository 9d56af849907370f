"""The bundle for a machine with a GPU and no network, made from a few wheels in place of a package index."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "gpu_bundle.sh"
NEEDS = {
    "alpha": [
        'beta>=1; python_version >= "3.12"',
        "torch>=2",
        'gamma; extra == "test"',
        'delta; sys_platform == "win32"',
    ],
    "beta": ["faiss-gpu>=1"],
    "faiss-cpu": ["numpy>=1"],
    "faiss-gpu": [],
    "clash": ["beta>=3"],
}


@pytest.fixture
def index(tmp_path):
    """A folder with wheels 2.0 of `NEEDS`."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, needs in NEEDS.items():
        stem = f"{name.replace('-', '_')}-2.0"
        described = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 2.0"])
        described += "".join(f"\nRequires-Dist: {need}" for need in needs) + "\n"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", described)
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return folder


@pytest.fixture
def cifar(tmp_path):
    """Ten images of 700 bytes, which take 2 kB each of a tar file."""
    for number in range(10):
        path = tmp_path / "cifar" / ("train" if number % 2 else "test") / "cat" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 700)
    return tmp_path / "cifar"


def bundle(out, cifar, index, *packages, **variables):
    environ = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    command = [SCRIPT, out, cifar, *packages]
    return subprocess.run(command, env=environ | variables, capture_output=True, text=True)


def wheels(out):
    return sorted(path.name.split("-")[0] for path in (out / "wheels").glob("*.whl"))


def test_a_bundle_has_what_the_packages_need_and_a_machine_with_torch_lacks(tmp_path, index, cifar):
    ended = bundle(tmp_path / "out", cifar, index, "alpha")
    assert ended.returncode == 0, ended.stderr
    assert wheels(tmp_path / "out") == ["alpha", "beta", "faiss_cpu"]


def test_images_lie_in_parts_that_hold_each_of_them_once(tmp_path, index, cifar):
    out = tmp_path / "out"
    for _ in range(2):
        ended = bundle(out, cifar, index, "faiss-cpu", PART_BYTES="20480")
        assert ended.returncode == 0, ended.stderr
    parts = sorted((out / "cifar").iterdir())
    assert [part.name for part in parts] == ["cifar-001.tar", "cifar-002.tar"]
    assert all(part.stat().st_size <= 20480 for part in parts)
    members = []
    for part in parts:
        with tarfile.open(part) as tar:
            members += tar.getnames()
            tar.extractall(tmp_path / "unpacked", filter="data")
    assert sorted(members) == sorted(str(path.relative_to(cifar)) for path in cifar.rglob("*.png"))
    assert (tmp_path / "unpacked/train/cat/3.png").read_bytes() == b"\3" * 700


def test_a_folder_without_images_is_refused(tmp_path, index):
    ended = bundle(tmp_path / "out", tmp_path, index)
    assert ended.returncode == 2 and "has no folder train; expected CIFAR-10 as PNG files by class" in ended.stderr
    ended = subprocess.run([SCRIPT], capture_output=True, text=True)
    assert ended.returncode == 2 and "tools/gpu_bundle.sh OUT CIFAR [PACKAGE ...]" in ended.stderr
