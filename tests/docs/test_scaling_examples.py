"""The examples of docs/scale.md: run with a real shell, and stand-ins for the schedulers alone."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.hangs import HANG_SECONDS

from pucache import EmbeddingCache
from pucache.cli.main import WrongUsage, main

DOCS = Path(__file__).parents[2] / "docs"
SLURM, FINISH = DOCS / "scaling" / "slurm-array.sh", DOCS / "scaling" / "slurm-finish.sh"
JOB = DOCS / "scaling" / "kubernetes-job.yaml"
NOTES = f"""#!{sys.executable}
import json, os, sys
open(os.environ["NOTES"], "a").write(json.dumps(sys.argv) + "\\n")
"""
UNTIL_TOLD = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder first on the PATH whose `pucache` and `scontrol` only write down what they are asked."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    for name in ("pucache", "scontrol"):
        program(tmp_path, name, NOTES)
    return tmp_path


def program(folder, name, text):
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def noted(folder, name):
    """The arguments of each call of a program."""
    notes = folder / "notes"
    calls = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    return [arguments for program, *arguments in calls if Path(program).name == name]


# --- Slurm ---------------------------------------------------------------------------------------------


def array_task(*arguments, restarts=0):
    """Start the script as task 3 of array 70."""
    told = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "70", "SLURM_RESTART_COUNT": str(restarts)}
    return subprocess.Popen(["bash", SLURM, *arguments], env=os.environ | told, stdout=subprocess.PIPE, text=True)


def test_a_task_of_the_array_embeds_its_share_of_as_many_as_it_is_told(desk):
    task = array_task("my photos/", "shards/", "64", "--device", "cpu")
    assert task.communicate() and task.returncode == 0
    [arguments] = noted(desk, "pucache")
    assert arguments == ["embed", "my photos/", "shards/00003.h5", "--shard", "3/64", "--device", "cpu"]
    main.commands["embed"].make_context("embed", arguments[1:])
    assert noted(desk, "scontrol") == []


@pytest.mark.parametrize(
    "code, restarts, again",
    [(0, 0, False), (1, 0, True), (137, 4, True), (1, 5, False), (WrongUsage.exit_code, 0, False)],
)
def test_a_task_that_failed_is_queued_again_a_few_times_unless_it_was_used_wrongly(desk, code, restarts, again):
    program(desk, "pucache", f"#!/bin/bash\nexit {code}\n")
    task = array_task("photos/", "shards/", "4", restarts=restarts)
    task.communicate()
    assert task.returncode == code
    assert noted(desk, "scontrol") == ([["requeue", "70_3"]] if again else [])


@pytest.mark.parametrize("number, again", [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_task_out_of_time_stops_pucache_and_is_queued_again_but_not_one_that_is_cancelled(desk, number, again):
    program(desk, "pucache", NOTES + UNTIL_TOLD)
    task = array_task("photos/", "shards/", "4", restarts=9)
    assert task.stdout.readline() == "ready\n"
    task.send_signal(number)
    task.communicate(timeout=HANG_SECONDS)
    assert task.returncode == 143
    assert noted(desk, "scontrol") == ([["requeue", "70_3"]] if again else [])


def test_what_comes_after_the_array_checks_before_it_scores_and_packs(desk):
    subprocess.run(["bash", FINISH, "my shards/", "model.safetensors"], check=True)
    calls = noted(desk, "pucache")
    assert [arguments[0] for arguments in calls] == ["verify", "score", "pack"]
    for verb, *arguments in calls:
        assert "my shards/" in arguments
        main.commands[verb].make_context(verb, arguments)
    program(desk, "pucache", "#!/bin/bash\nexit 1\n")
    assert subprocess.run(["bash", FINISH, "shards/", "model.safetensors"]).returncode == 1


# --- Kubernetes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_pods_of_the_job_together_embed_every_image(desk, image_folder):
    [container] = yaml.safe_load(JOB.read_text())["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    caches, images = desk / "caches", image_folder(9)
    caches.mkdir()
    here = {"PHOTOS": str(images), "CACHES": str(caches), "SHARES": "2"}
    assert here.keys() <= environment.keys()
    for index in ("0", "1"):
        pod = os.environ | environment | here | {"JOB_COMPLETION_INDEX": index}
        subprocess.run([*container["command"], "--device", "cpu", "--json"], env=pod, check=True)
    for arguments in noted(desk, "pucache"):
        main(arguments, standalone_mode=False)
    assert sorted(path.name for path in caches.glob("*.h5")) == ["00001.h5", "00002.h5"]
    assert sorted(EmbeddingCache(caches).keys) == sorted(path.name for path in images.iterdir())
