"""Listing and opening of images, and everything in storage, must not cost the seconds that torch takes to import."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

HEAVY = {"torch", "torchvision", "timm", "sklearn", "h5py"}


def modules(package):
    return [f"{package}.{module.name}" for module in iter_modules(import_module(package).__path__)]


@pytest.mark.parametrize("package", ["pucache.storage", "pucache.images"])
def test_no_module_imports_torch(package):
    code = f"import sys, {', '.join(modules(package))}; print(sorted({HEAVY!r} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr
