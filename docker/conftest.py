import datetime
import os
import random
import subprocess
from pathlib import Path

import pytest
from container import IMAGES, ROOT, Pucache, build, docker, no_engine
from PIL import Image

TARGETS = os.environ.get("TARGETS", "cpu cuda").split()
_MISSING = no_engine()
_FIGURES: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="session", params=TARGETS)
def image(request):
    """The image of a target, built from the working tree."""
    if _MISSING:
        pytest.skip(_MISSING)
    return build(request.param, f"pucache:{request.param}")


@pytest.fixture(scope="session")
def target(image):
    return image.partition(":")[2]


@pytest.fixture(scope="session")
def figure(target):
    """Note a figure of the image under test."""

    def note(what, value):
        _FIGURES.setdefault(what, {})[target] = value

    return note


@pytest.fixture(scope="session")
def demo(image, tmp_path_factory):
    """What `pucache demo` leaves and says, when a user whom the image does not know runs it without a network."""
    pucache = Pucache(image, _open_to_all(tmp_path_factory.mktemp("demo")))
    pucache.said = pucache("demo", "demo")
    return pucache


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """A folder of small images, no two of them alike."""
    folder = tmp_path_factory.mktemp("noise")
    for number in range(IMAGES):
        pixels = random.Random(number).randbytes(32 * 32 * 3)
        Image.frombytes("RGB", (32, 32), pixels).save(folder / f"{number:04}.png")
    folder.chmod(0o755)
    return folder


@pytest.fixture
def pucache(image, demo, noise, tmp_path):
    """A folder to work in, open to all, with a model, one image, and `noise` mounted for reading."""
    (tmp_path / "model.safetensors").write_bytes((demo.data / "demo/model.safetensors").read_bytes())
    (tmp_path / "one").mkdir()
    (tmp_path / "one/0.png").write_bytes((noise / "0000.png").read_bytes())
    (tmp_path / "noise").mkdir()
    return Pucache(image, _open_to_all(tmp_path))


def _open_to_all(folder):
    folder.chmod(0o777)
    return folder


def pytest_terminal_summary(terminalreporter):
    if _FIGURES:
        terminalreporter.write_line(_table())


def pytest_unconfigure(config):
    if _MISSING:  # below the count of those that passed, which need no engine
        print(f"SKIP: {_MISSING}; no image was built, and nothing of one was tested")


def _table():
    lines = ["# Container", "", f"`make test-docker`, {_provenance()}.", ""]
    lines += [f"| | {' | '.join(TARGETS)} |", "| --- |" + " --- |" * len(TARGETS)]
    rows = [f"| {what} | {' | '.join(values.get(t, '') for t in TARGETS)} |" for what, values in _FIGURES.items()]
    return "\n".join([*lines, *rows]) + "\n"


def _provenance():
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    engine = docker("version", "--format", "{{.Server.Version}}").stdout.strip()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    date = datetime.datetime.now(datetime.UTC).date()
    return f"{len(models)} x {models[0]}, Docker {engine}, commit {commit.stdout.strip() or 'unknown'}, {date}"
