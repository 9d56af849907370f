"""The public API: one function per command, resolved on first use."""

import pkgutil
import subprocess
import sys

import pytest

import pucache
from pucache.cli.main import main

COMMANDS = sorted(main.commands)


def test_no_module_or_package_has_the_name_of_a_public_name():
    modules = {module.name for module in pkgutil.iter_modules(pucache.__path__)}
    assert len(modules) > 10 and not modules & set(pucache.__all__)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_function(command):
    name = command.replace("-", "_")
    assert name in pucache.__all__ and callable(getattr(pucache, name))


def test_every_public_name_resolves_and_is_listed():
    assert dir(pucache) == sorted(pucache.__all__)
    assert all(getattr(pucache, name) is not None for name in pucache.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pucache.nothing


def test_importing_pucache_imports_neither_torch_nor_h5py():
    code = "import pucache, sys; print(sorted({'torch', 'h5py', 'numpy', 'sklearn'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
