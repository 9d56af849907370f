import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from pucache import __version__

ROOT = Path(__file__).parents[1]
NOT_OURS = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*-demo", "*.h5")
UNIMPORTED = {"torchvision"}  # timm's preprocessing needs it
FAISS = {"faiss-gpu", "faiss-cpu"}  # one or the other, by platform


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel built from a copy, so that nothing is left behind in the repository."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "copy", ignore=NOT_OURS)
    options = "--no-deps --no-build-isolation --no-index --quiet --wheel-dir".split()
    subprocess.run([sys.executable, "-m", "pip", "wheel", folder / "copy", *options, folder], check=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def names(requirements):
    return {re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def imported():
    """Top-level packages that the library and its command line import, at module level or later."""
    found = set()
    for path in [*(ROOT / "pucache").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"pucache"}


def test_the_wheel_holds_library_command_line_data_and_the_typing_mark(wheel):
    expected = {f"pucache/{path.relative_to(ROOT / 'pucache')}" for path in (ROOT / "pucache").rglob("*.py")}
    expected |= {f"pucache/cli/{path.name}" for path in (ROOT / "cli").glob("*.py")}
    for folder in ("pucache/data", "pucache/pages/assets"):
        expected |= {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
    assert len(expected) > 60 and {"pucache/cli/main.py", "pucache/pages/assets/sheet.html"} < expected
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == expected | {"pucache/py.typed"}, "all of it, and no top-level cli, tests or tools"


def test_the_wheel_carries_its_licence_its_notice_and_the_command(wheel):
    ends = {name.split(".dist-info/")[1]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert {"licenses/LICENSE", "licenses/NOTICE"} <= set(ends)
    assert "pucache = pucache.cli.start:run" in wheel.read(ends["entry_points.txt"]).decode()


@pytest.mark.slow
def test_the_demo_runs_from_an_installed_wheel(wheel, tmp_path):
    """In an empty virtual environment with the wheel in it; the libraries are those of this environment."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, wheel.filename], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    folder = tmp_path / "empty"
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    where = "import pucache.cli.main as cli; print(cli.__file__)"
    for code in (where, where.replace(".cli.main as cli", " as cli")):
        printed = subprocess.check_output([python, "-c", code], cwd=folder, env=environ, text=True)
        assert Path(printed.strip()).is_relative_to(python.parents[1]), "of the wheel, not of the checkout"
    ended = subprocess.run([python.parent / "pucache", "demo"], cwd=folder, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    pages = {path.name for path in folder.rglob("*.html")}
    assert {"report.html", "review.html"} <= pages, ended.stdout


def test_every_import_is_a_requirement_and_every_requirement_is_imported(metadata):
    required = metadata.get_all("Requires-Dist")
    always = names(line for line in required if "extra ==" not in line)
    optional = names(line for line in required if 'extra == "test"' not in line.replace("'", '"')) - always
    homes = importlib.metadata.packages_distributions()
    used = {module: {name.lower() for name in homes.get(module, [module])} for module in imported()}
    used = {module: home | {name.replace("_", "-") for name in home} for module, home in used.items()}
    unnamed = {module for module, home in used.items() if not home & (always | optional)}
    assert not unnamed, "setup.py must name what these come from"
    idle = always - set().union(*used.values()) - UNIMPORTED - FAISS
    assert not idle, "setup.py names what nobody imports"


def test_extras_that_the_messages_name_exist(metadata):
    extras = set(metadata.get_all("Provides-Extra"))
    text = "".join(path.read_text() for path in (ROOT / "pucache").rglob("*.py"))
    named = set(re.findall(r"pip install -e '\.\[(\w+)\]", text))
    assert named and named <= extras


UNSAFE = re.compile(
    r"^\s*(?:import|from) (?:c?[pP]ickle|dill|cloudpickle|joblib|shelve|marshal)\b"
    "|shell=True|allow_pickle=True|weights_only=False",
    re.MULTILINE,
)


def test_nothing_unpickles_or_asks_a_shell():
    """What the linter's security rules do not see: an import alone, or a flag."""
    ours = [*ROOT.glob("pucache/**/*.py"), *ROOT.glob("cli/*.py")]
    assert len(ours) > 100
    assert not [path.name for path in ours if UNSAFE.search(path.read_text())]


def test_the_version_is_the_same_wherever_it_is_said():
    said = {"Dockerfile": 'image.version="{}"', "CITATION.cff": "version: {}", "CHANGELOG.md": "## {}"}
    for file, text in (said | {"CONTRIBUTING.md": "v{} -m"}).items():
        assert text.format(__version__) in (ROOT / file).read_text(), file
