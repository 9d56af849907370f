"""A small world to go wrong in: images, some of them broken; commands on them, and what must hold after a fault."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from helpers.command_line import save_images, save_picture
from helpers.started import Started, Strike

from pucache import EmbeddingCache

ENCODER = "test_convnext"
RED, REST = 20, 60
BLOCK_ROWS = 16  # images in one part, so that a small source has several
LEFTOVER = re.compile(r"(.*/)?\..*\.\w{8}\.partial|.*\.(parts|import)(/.*)?|(.*/)?\..*\.lock")
MISSING = "missing"
KEPT_BESIDE = (".whitening",)
BUSY = "is being written by another process"
State = dict[str, bytes | None]  # files by path, with their content; folders have none


@dataclass(frozen=True)
class Job:
    """One command, the files it begins with (name in the working folder: name in the world), and those it writes."""

    name: str
    command: list[str]
    inputs: dict[str, str]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit code (minus the signal that killed it), what it said, rows that it had made safe."""

    code: int
    stdout: str
    stderr: str
    acknowledged: int = 0

    @property
    def complete(self) -> bool:
        """Whether it wrote every file, those that are kept beside a cache too."""
        return self.code == 0 and "is not kept, and made anew each time" not in self.stderr

    def error(self, *words: str) -> None:
        """Check that it failed with one line, which has these words."""
        errors = [line for line in self.stderr.splitlines() if line.startswith("Error: ")]
        assert self.code == 1 and not self.stdout and len(errors) == 1, (self.code, self.stderr)
        assert "Traceback" not in self.stderr and all(word in errors[0] for word in words), self.stderr


@dataclass(frozen=True)
class Undisturbed:
    """What a job makes where nothing goes wrong."""

    before: State
    after: State
    seconds: float
    todo: int


@dataclass(frozen=True)
class Setting:
    """Prepares a started command: its folder, small parts, a record of the rows of each part that is safe; faults."""

    folder: Path
    log: Path
    faults: tuple[Any, ...]

    def prepare(self) -> None:
        from pucache.cache.parts import Parts
        from pucache.embedding import blocks, engine

        os.chdir(self.folder)
        blocks.BLOCK_ROWS, engine.CHUNK_ROWS = BLOCK_ROWS, BLOCK_ROWS // 2
        safe = os.open(self.log / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def add(parts: Parts, rows: Any, *rest: Any, add: Any = Parts.add, **options: Any) -> None:
            add(parts, rows, *rest, **options)
            os.write(safe, f"{len(rows.keys)}\n".encode())

        Parts.add = add  # type: ignore[method-assign]
        for fault in self.faults:
            fault.prepare()


def acknowledged(log: Path) -> int:
    """Rows that a command has said to be safe."""
    return sum(map(int, (log / "acknowledged").read_text().split()))


@dataclass(frozen=True)
class After:
    """A signal after so many seconds."""

    seconds: float
    number: int

    def prepare(self) -> None:
        timer = threading.Timer(self.seconds, os.kill, (os.getpid(), self.number))
        timer.daemon = True
        timer.start()


@dataclass(frozen=True)
class Clock:
    """A time of day that jumps by so many seconds, to the next of `jumps` after seven looks at the clock."""

    jumps: tuple[float, ...]

    def prepare(self) -> None:
        real, looks = time.time_ns, itertools.count()
        time.time_ns = lambda: real() + int(self.jumps[next(looks) // 7 % len(self.jumps)] * 1e9)
        time.time = lambda: time.time_ns() / 1e9


class World:
    """Images, weights, caches, shards and a model in one folder; and the jobs."""

    def __init__(self, folder: Path):
        self.folder, self.images = folder, folder / "images"
        self._undisturbed: dict[str, Undisturbed] = {}
        self._count = 0
        small = ["--weights", str(folder / "weights.safetensors"), "--device", "cpu", "--batch-size", "8"]
        small += ["--precision", "fp32", "--runtime", "torch"]
        self._embed = ["embed", str(self.images), "cache.h5", "--encoder", f"timm:{ENCODER}", *small]
        _save_images(self.images)
        torch.manual_seed(0)
        safetensors.torch.save_file(timm.create_model(ENCODER).state_dict(), folder / "weights.safetensors")
        (folder / "positives.txt").write_text("".join(f"red/{number:03}.png\n" for number in range(RED // 2)))
        np.save(folder / "X.npy", np.random.default_rng(0).normal(size=(500, 16)))
        self._make(*self._embed)
        os.rename(folder / "cache.h5", folder / "old.h5")
        _change_images(self.images)
        self._make(*self._embed)
        self._make("train-pu", "cache.h5", "--positives", "positives.txt", "--prior", "0.15")
        self.jobs = {job.name: job for job in self._jobs()}

    def _make(self, *command: str) -> None:
        ended = self.run(command, self.folder)
        assert ended.code == 0, ended.stderr

    def _jobs(self) -> list[Job]:
        embed, sources = [*self._embed, "--json"], ("cache.h5", "positives.txt", "model.safetensors")
        cache, listed, model = ({name: name} for name in sources)
        shards = {f"shard-{number}.h5": f"shard-{number}.h5" for number in (1, 2, 3)}
        old, known = {"cache.h5": "old.h5"}, ["--positives", "positives.txt"]
        train = ["train-pu", "cache.h5", *known, "--prior", "0.15"]
        score, parquet = ["score", "model.safetensors"], "new/folder/scores.parquet"
        return [
            Job("embed", [*embed, "--workers", "0"], {}, ("cache.h5",)),
            Job("embed, workers", [*embed, "--workers", "2"], {}, ("cache.h5",)),
            Job("update", embed, old, ("cache.h5",)),
            Job("update, workers, prune", [*embed, "--workers", "2", "--prune"], old, ("cache.h5",)),
            Job("reuse", [*embed, "--reuse", "old.h5"], {"old.h5": "old.h5"}, ("cache.h5",)),
            Job("pack", ["pack", *shards, "--out", "packed.h5"], shards, ("packed.h5",)),
            Job("score", [*score, "cache.h5"], model | cache, ("cache.scores.csv",)),
            Job("score, Parquet", [*score, "cache.h5", "--out", parquet], model | cache, (parquet,)),
            Job("score, images", [*score, str(self.images)], model, ("images.h5", "images.scores.csv")),
            Job("train-pu", train, cache | listed, ("model.safetensors", "model.metrics.json")),
            Job("retrieve", ["retrieve-positives", "cache.h5", *known], cache | listed, ("ranked.csv",)),
            Job("export", ["export", "cache.h5", "c.parquet"], cache, ("c.parquet",)),
            Job("import", ["import-embeddings", str(self.folder / "X.npy"), "imported.h5"], {}, ("imported.h5",)),
        ]

    def place(self, job: Job, folder: Path | None = None) -> Path:
        """Make a working folder with the inputs of a job."""
        if folder is None:
            self._count += 1
            folder = self.folder / "places" / f"{self._count:05}"
            folder.mkdir(parents=True)
        for name, source in job.inputs.items():
            if source.startswith("shard-") and not (self.folder / source).exists():
                self._make(*self._embed[:2], source, *self._embed[3:], "--shard", f"{source[6]}/3")
            shutil.copy2(self.folder / source, folder / name)
        return folder

    def new_log(self) -> Path:
        """A folder for what one command says."""
        self._count += 1
        return self.folder / "logs" / f"{self._count:05}"

    def start(
        self, command: list[str] | tuple[str, ...], folder: Path, *faults: Any, log: Path | None = None
    ) -> Started:
        """A process that runs `pucache` with these arguments in `folder`, with faults to come."""
        log = log or self.new_log()
        environ = {"SOURCE_DATE_EPOCH": "1700000000", "HF_HUB_OFFLINE": "1"}
        return Started(command, log, strike=Setting(folder, log, faults), **environ)

    def run(self, command: list[str] | tuple[str, ...], folder: Path, *faults: Any) -> Outcome:
        """Start and wait."""
        with self.start(command, folder, *faults) as started:
            return ended(started)

    def undisturbed(self, job: Job) -> Undisturbed:
        """What the job makes, and how long it takes."""
        if job.name not in self._undisturbed:
            folder = self.place(job)
            before, began = state(folder), time.monotonic()
            done = self.run(job.command, folder)
            assert done.code == 0, done.stderr
            self._undisturbed[job.name] = Undisturbed(before, state(folder), time.monotonic() - began, _work(job, done))
        return self._undisturbed[job.name]

    # --- what must hold ------------------------------------------------------------------------

    def strike(self, job: Job, *faults: Any) -> Outcome:
        """Run a job that faults befall; check what it said and left, and that it goes on once they are gone."""
        self.undisturbed(job)
        folder = self.place(job)
        done = self.run(job.command, folder, *faults)
        self.check_interrupted(job, folder)
        if done.complete:
            self.check_finished(job, folder, done)
        elif done.code > 0:
            left = [name for name in state(folder) if name.endswith(".partial")]
            assert not left and "Traceback" not in done.stderr, (left, done.stderr)
        if done.code > 1:
            assert done.code in (130, 143) and "run the same command again" in done.stderr, (done.code, done.stderr)
        without = KEPT_BESIDE if done.code == 0 and not done.complete else ()
        self.check_rerun(job, folder, done.acknowledged, without=without)
        return done

    def check_interrupted(self, job: Job, folder: Path) -> None:
        """Outputs are the old or the new ones, inputs untouched, parts whole, and leftovers have their names."""
        whole, now = self.undisturbed(job), state(folder)
        for name in whole.before.keys() | whole.after.keys():
            if name in now:
                allowed = [side[name] for side in (whole.before, whole.after) if name in side]
                assert now[name] in allowed, f"{job.name}: {name} is neither the old nor the new one"
            else:
                assert name not in whole.before, f"{job.name}: {name} is gone"
        strangers = [name for name in now.keys() - whole.after.keys() if not LEFTOVER.fullmatch(name)]
        assert not strangers, f"{job.name} left {strangers}"
        for path in folder.rglob("part-*.h5"):
            EmbeddingCache(path).verify()

    def check_rerun(self, job: Job, folder: Path, safe: int = 0, *faults: Any, without: tuple[str, ...] = ()) -> None:
        """The same command succeeds, embeds nothing again, ends in the same bytes, and leaves nothing else."""
        done = self.run(job.command, folder, *faults)
        self.check_finished(job, folder, done, without=without)
        todo, computed = self.undisturbed(job).todo, _work(job, done)
        assert computed <= todo - safe or not todo, f"{computed} of {todo} again, {safe} were safe"

    def check_finished(self, job: Job, folder: Path, done: Outcome, *, without: tuple[str, ...] = ()) -> None:
        """It succeeded, with the bytes of the undisturbed run and nothing else left.

        Files that end so need not be there: a run that has the graph of neighbours makes no whitening for it.
        """
        assert done.code == 0, done.stderr
        differing = differences(self.undisturbed(job).after, state(folder))
        differing = {name: how for name, how in differing.items() if how != MISSING or not name.endswith(without)}
        assert not differing, f"{job.name}: {differing}"

    def rivals(self, job: Job, apart: float) -> bool:
        """Run a job twice, so many seconds apart: both end well, or one is refused; whether one was."""
        self.undisturbed(job)
        folder = self.place(job)
        with self.start(job.command, folder) as first:
            time.sleep(apart)
            both = [self.run(job.command, folder), ended(first)]
        refused = [done for done in both if done.code]
        assert len(refused) < 2, both
        for done in refused:
            done.error(BUSY)
        differing = differences(self.undisturbed(job).after, state(folder))
        assert not differing, differing
        return bool(refused)


def ended(started: Started) -> Outcome:
    """Wait for the end of a command."""
    return Outcome(started.wait(), started.stdout, started.stderr, acknowledged(started.log))


def _work(job: Job, done: Outcome) -> int:
    """Rows that were not in the old cache."""
    summary = json.loads(done.stdout) if "--json" in job.command else {}
    return int(summary.get("computed", 0)) + int(summary.get("reused", 0))


def state(folder: Path) -> State:
    """Every file below a folder, with its content; locks are left out, they come and stay."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix != ".lock"}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


def differences(expected: State, got: State) -> dict[str, str]:
    """Names of which two states disagree, and how."""
    other = {name: "other bytes" for name in expected.keys() & got.keys() if expected[name] != got[name]}
    left_over, missing = got.keys() - expected.keys(), expected.keys() - got.keys()
    return other | dict.fromkeys(left_over, "left over") | dict.fromkeys(missing, MISSING)


# --- points ------------------------------------------------------------------------------------

POINTS = {
    "fsync": "os.fsync",
    "rename": "os.replace",
    "new file": "os.open",
    "write": "pucache.cache.writer.HashedColumn.append",
    "removal": "os.rmdir",
}


def strike_each(world: World, job: Job, point: str, calls: list[int] | range, **fault: Any) -> list[Outcome]:
    """A fault at each of these calls of one kind, up to the first that a run does not reach; how each ended."""
    struck: list[Outcome] = []
    for call in calls:
        of = ".partial" if point == "new file" else ""
        done = world.strike(job, Strike(function=POINTS[point], call=call, of=of, **fault))
        if done.complete:
            break
        struck.append(done)
    return struck


# --- images ------------------------------------------------------------------------------------


def _save_images(folder: Path) -> None:
    draw = np.random.default_rng(0)
    save_images(folder / "red", RED, (220, 40, 40), draw)
    save_images(folder / "rest", REST, (40, 60, 200), draw, ("png", "jpg"))
    (folder / "rest" / "broken.jpg").write_bytes(b"no image")
    (folder / "rest" / "empty.png").write_bytes(b"")


def _change_images(folder: Path) -> None:
    """Some other pixels, some new files, some gone, one broken now, and one restored."""
    draw = np.random.default_rng(1)
    for number in (*range(0, 12, 2), *range(60, 84, 2)):
        save_picture(folder / "rest" / f"{number:03}.png", (60, 60, 190), draw)
    for number in range(21, 29, 2):
        (folder / "rest" / f"{number:03}.jpg").unlink()
    (folder / "rest" / "031.jpg").write_bytes(b"broken now")
    save_picture(folder / "rest" / "empty.png", (60, 60, 190), draw)
