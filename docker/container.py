"""Builds the images and runs containers of them, by whatever `docker` is on PATH."""

import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
HARDENED = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
IMAGES = 3000  # a block and a half
STRANGER = "4242:4343"  # a user that no image knows
_VERSIONS = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"].lower(): d.version for d in m.distributions(path=["SITE"])}))
""".replace("SITE", "/opt/venv/lib/python3.11/site-packages")


def docker(*arguments, check=True):
    """Run the client; a failure that nobody asked for shows what it said."""
    done = subprocess.run(["docker", *map(str, arguments)], capture_output=True, text=True, errors="replace")
    assert not check or done.returncode == 0, f"docker {shlex.join(map(str, arguments))}\n{done.stdout}{done.stderr}"
    return done


def no_engine():
    """Why no engine can be used, in a line; None where one can."""
    try:
        done = docker("version", "--format", "{{.Server.Version}}", check=False)
    except FileNotFoundError:
        return "no Docker engine: docker is not on PATH"
    return None if done.returncode == 0 else f"no Docker engine: {done.stderr.strip().splitlines()[-1]}"


def build(stage, tag, *options):
    """Build a stage of the Dockerfile under a tag; BUILD_ARGS are given to it too."""
    asked = shlex.split(os.environ.get("BUILD_ARGS", ""))
    docker("build", "--network=host", "--quiet", "--target", stage, "--tag", tag, *asked, *options, ROOT)
    return tag


def inspect(name, form):
    """A part of what the engine knows about an image or a container."""
    return json.loads(docker("inspect", "--format", f"{{{{json {form}}}}}", name).stdout)


def versions(image):
    """Version of every package in the environment of an image."""
    return json.loads(docker("run", "--rm", "--entrypoint", "/opt/venv/bin/python", image, "-c", _VERSIONS).stdout)


@dataclass
class Pucache:
    """Runs pucache of an image on one folder, mounted as /data, hardened and as a user the image does not know."""

    image: str
    data: Path
    user: str = STRANGER
    mode: str = "rw"

    def line(self, *arguments, options=()):
        """The arguments of `docker run`."""
        mount = ("--volume", f"{self.data}:/data:{self.mode}")
        return (*HARDENED, "--user", self.user, *mount, *options, self.image, *arguments)

    def __call__(self, *arguments, options=(), check=True):
        """Run a command to its end."""
        return docker("run", "--rm", *self.line(*arguments, options=options), check=check)

    def python(self, program, options=()):
        """What a program prints that runs instead of pucache."""
        return self("-c", program, options=("--entrypoint", "python", *options)).stdout

    def start(self, *arguments, options=()):
        """Run a command in the background."""
        return Started(docker("run", "--detach", *self.line(*arguments, options=options)).stdout.strip())


@dataclass
class Started:
    """A container in the background; a context manager, at the end of which it is gone."""

    name: str

    def __enter__(self):
        return self

    def __exit__(self, *error):
        docker("rm", "--force", self.name)

    def logs(self):
        """What it has printed so far."""
        done = docker("logs", self.name)
        return done.stdout + done.stderr

    def until(self, condition, seconds=180):
        """Wait for something that must happen while it runs."""
        end = time.monotonic() + seconds
        while not condition():
            assert inspect(self.name, ".State.Running"), f"it ended too early: {self.logs()}"
            assert time.monotonic() < end, f"it did not come to it: {self.logs()}"
            time.sleep(0.05)

    def exit_code(self):
        """Its exit code, as soon as there is one."""
        return int(docker("wait", self.name).stdout)
