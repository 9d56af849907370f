"""A small world to go wrong in: images, some of them broken; jobs on them, and what each makes undisturbed."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from PIL import Image

from faults.commands import Outcome, Zygote
from pucache.cache.reader import CacheFile

ENCODER = "test_convnext"
RED, REST = 20, 60
LEFTOVER = re.compile(r"(.*/)?\..*\.\w{8}\.partial|.*\.(parts|import)(/.*)?|(.*/)?\..*\.lock")
State = dict[str, bytes | None]  # files by path, with their content; folders have none


@dataclass(frozen=True)
class Job:
    """One command, the files it begins with, and those it writes."""

    name: str
    command: list[str]
    inputs: dict[str, str]  # name in the working folder -> name in the world
    outputs: tuple[str, ...]
    embeds: bool = False


@dataclass(frozen=True)
class Undisturbed:
    """What a job makes where nothing goes wrong."""

    before: State
    after: State
    seconds: float
    said: list[str]
    result: dict[str, Any] = field(repr=False)

    @property
    def todo(self) -> int:
        """Rows that are not in the old cache."""
        return int(self.result.get("computed", 0)) + int(self.result.get("reused", 0))


class World:
    """Images, weights, caches, shards and a model in one folder; and the jobs.

    `rows` says how many embeddings made elsewhere there are: the more, the longer does a job on them last.
    """

    def __init__(self, folder: Path, zygote: Zygote, encoder: str = "", rows: int = 500):
        self.folder, self.zygote = folder, zygote
        self._undisturbed: dict[str, Undisturbed] = {}
        self._count = 0
        self._rows = rows
        self.images = folder / "images"
        self._small = ["--device", "cpu", "--batch-size", "8", "--precision", "fp32", "--runtime", "torch"]
        self.weights = [] if encoder else ["--weights", str(folder / "weights.safetensors")]
        self.encoder = ["--encoder", encoder or f"timm:{ENCODER}", *self.weights, *self._small]
        _save_images(self.images)
        if not encoder:
            torch.manual_seed(0)
            safetensors.torch.save_file(timm.create_model(ENCODER).state_dict(), folder / "weights.safetensors")
            (folder / "weights.safetensors").chmod(0o644)
        (folder / "positives.txt").write_text("".join(f"red/{number:03}.png\n" for number in range(RED // 2)))
        self._make("embed", str(self.images), "old.h5", *self.encoder)
        _change_images(self.images)
        self._make("embed", str(self.images), "cache.h5", *self.encoder)
        self._make("train-pu", "cache.h5", "--positives", "positives.txt", "--prior", "0.15", "--device", "cpu")
        self.jobs = {job.name: job for job in self._jobs()}

    def _provide(self, name: str) -> None:
        """Make an input, and those that go with it, before the first job that reads it."""
        if not (self.folder / name).exists():
            if name.startswith("shard-"):
                for number in (1, 2, 3):
                    self._make("embed", str(self.images), f"shard-{number}.h5", "--shard", f"{number}/3", *self.encoder)
            else:
                self._import(self._rows)

    def _import(self, rows: int) -> None:
        """Embeddings made elsewhere: an array and its keys, a cache of them, three shards, and a model."""
        X = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
        keys = [f"{number:06}" for number in range(rows)]
        for name, taken in {"": slice(None), **{f"-{n + 1}": slice(n, None, 3) for n in range(3)}}.items():
            np.save(self.folder / f"X{name}.npy", X[taken])
            (self.folder / f"keys{name}.txt").write_text("".join(f"{key}\n" for key in keys[taken]))
            of = ["--keys", f"keys{name}.txt", "--name", "elsewhere"]
            self._make("import-embeddings", f"X{name}.npy", f"rows{name}.h5", *of)
        options = ["--prior", "0.15", "--out", "rows.safetensors", "--metrics", "rows.json", "--device", "cpu"]
        self._make("train-pu", "rows.h5", "--positives", "0000[0-3]?", *options)

    def _make(self, *command: str) -> None:
        done = self.zygote.run(list(command), self.folder)
        assert done.code == 0, done.stderr

    def _jobs(self) -> list[Job]:
        images, workers = str(self.images), ["--workers", "2", "--json"]
        embed = ["embed", images, "cache.h5", *self.encoder]
        model, cache, listed = ({name: name} for name in ("model.safetensors", "cache.h5", "positives.txt"))
        model_options = [*self.weights, *self._small, "--json"]
        shards = {f"shard-{number}.h5": f"shard-{number}.h5" for number in (1, 2, 3)}
        parts = {f"rows-{number}.h5": f"rows-{number}.h5" for number in (1, 2, 3)}
        positives = ["--positives", "positives.txt"]
        return [
            Job("embed", [*embed, "--workers", "0", "--json"], {}, ("cache.h5",), True),
            Job("embed, workers", [*embed, *workers], {}, ("cache.h5",), True),
            Job("update", [*embed, "--json"], {"cache.h5": "old.h5"}, ("cache.h5",), True),
            Job("update, workers, prune", [*embed, *workers, "--prune"], {"cache.h5": "old.h5"}, ("cache.h5",), True),
            Job("reuse", [*embed, "--json", "--reuse", "old.h5"], {"old.h5": "old.h5"}, ("cache.h5",), True),
            Job("pack", ["pack", *shards, "--out", "packed.h5", "--json"], shards, ("packed.h5",)),
            Job("pack, rows", ["pack", *parts, "--out", "packed.h5", "--json"], parts, ("packed.h5",)),
            Job("score", ["score", "model.safetensors", "cache.h5"], model | cache, ("scores.csv",)),
            Job(
                "score, rows",
                ["score", "rows.safetensors", "rows.h5"],
                {name: name for name in ("rows.safetensors", "rows.h5")},
                ("scores.csv",),
            ),
            Job(
                "score, Parquet",
                ["score", "model.safetensors", "cache.h5", "--out", "new/folder/scores.parquet"],
                model | cache,
                ("new/folder/scores.parquet",),
            ),
            Job(
                "score, images",
                ["score", "model.safetensors", images, *model_options],
                model,
                ("scores.h5", "scores.csv"),
                True,
            ),
            Job(
                "train-pu",
                ["train-pu", "cache.h5", *positives, "--prior", "0.15", "--device", "cpu"],
                cache | listed,
                ("model.safetensors", "metrics.json"),
            ),
            Job("retrieve", ["retrieve-positives", "cache.h5", *positives], cache | listed, ("ranked.csv",)),
            Job(
                "sweep",
                ["sweep-priors", "cache.h5", *positives, "--priors", "0.1,0.2", "--seeds", "1", "--device", "cpu"],
                cache | listed,
                ("sweep.csv", "sweep.png"),
            ),
            Job(
                "import",
                ["import-embeddings", str(self.folder / "X.npy"), "imported.h5", "--keys", "keys.txt"],
                {"keys.txt": "keys.txt"},
                ("imported.h5",),
            ),
        ]

    def place(self, job: Job, folder: Path | None = None) -> Path:
        """Make a working folder with the inputs of a job."""
        if folder is None:
            self._count += 1
            folder = self.folder / "places" / f"{self._count:05}"
            folder.mkdir(parents=True)
        for name, source in job.inputs.items():
            self._provide(source)
            shutil.copy2(self.folder / source, folder / name)
        return folder

    def undisturbed(self, job: Job) -> Undisturbed:
        """What the job makes; run twice, the second time for how long it takes."""
        if job.name not in self._undisturbed:
            runs = [self._run(job) for _ in range(2)]
            assert runs[0].after == runs[1].after, f"{job.name} is not repeatable"
            self._undisturbed[job.name] = runs[1]
        return self._undisturbed[job.name]

    def _run(self, job: Job) -> Undisturbed:
        folder = self.place(job)
        before = state(folder)
        began = time.monotonic()
        done = self.zygote.run(job.command, folder)
        seconds = time.monotonic() - began
        assert done.code == 0, done.stderr
        result = done.result if "--json" in job.command else {}
        return Undisturbed(before, state(folder), seconds, done.said, result)

    # --- what must hold ------------------------------------------------------------------------

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
            CacheFile(path).verify()

    def check_rerun(self, job: Job, folder: Path, acknowledged: int = 0, **options: Any) -> Outcome:
        """The same command succeeds, embeds nothing again, ends in the same bytes, and leaves nothing else."""
        whole = self.undisturbed(job)
        done = self.zygote.run(job.command, folder, **options)
        self.check_finished(job, folder, done)
        if job.embeds and "computed" in done.result:
            computed = done.result["computed"] + done.result["reused"]
            assert computed <= whole.todo - acknowledged, f"{computed} of {whole.todo} again, {acknowledged} were safe"
        return done

    def check_finished(self, job: Job, folder: Path, done: Outcome) -> None:
        """It succeeded, with the bytes of the undisturbed run and nothing else left."""
        assert done.code == 0, done.stderr
        whole = self.undisturbed(job)
        assert done.said == whole.said, done.stderr
        differing = differences(whole.after, state(folder))
        assert not differing, f"{job.name}: {differing}"


def state(folder: Path) -> State:
    """Every file below a folder, with its content; locks are left out, they come and stay."""
    found: State = {}
    for root, folders, files in os.walk(folder):
        found |= {os.path.relpath(os.path.join(root, name), folder): None for name in folders}
        for name in files:
            path = Path(root) / name
            if not name.endswith(".lock"):
                found[os.path.relpath(path, folder)] = path.read_bytes()
    return found


def differences(expected: State, got: State) -> dict[str, str]:
    """Names of which two states disagree, and how."""
    told = dict.fromkeys(expected.keys() - got.keys(), "missing")
    told |= dict.fromkeys(got.keys() - expected.keys(), "left over")
    return told | {name: "other bytes" for name in expected.keys() & got.keys() if expected[name] != got[name]}


def error_line(done: Outcome, *words: str) -> str:
    """The one line on stderr, beside progress, with which it failed, and which has these words.

    A graph of neighbours that cannot be kept is no error: a warning says so, and the command goes on.
    """
    assert done.code == 1 and not done.stdout, (done.code, done.stderr)
    lines = [line for line in done.said if not line.startswith("the graph of neighbours is not kept")]
    assert len(lines) == 1 and lines[0].startswith("Error: "), done.stderr
    for word in words:
        assert word in lines[0], done.stderr
    return lines[0]


# --- images ------------------------------------------------------------------------------------


def _save_images(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for name, count, colour in (("red", RED, (220, 40, 40)), ("rest", REST, (40, 60, 200))):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            _save_image(
                folder / name / f"{number:03}.{'jpg' if name == 'rest' and number % 2 else 'png'}", colour, draw
            )
    (folder / "rest" / "broken.jpg").write_bytes(b"no image")
    (folder / "rest" / "empty.png").write_bytes(b"")
    whole = (folder / "rest" / "000.png").read_bytes()
    (folder / "rest" / "short.png").write_bytes(whole[: len(whole) // 2])


def _change_images(folder: Path) -> None:
    """Some other pixels, some new files, some gone, one broken now, and one restored."""
    draw = np.random.default_rng(1)
    for number in (*range(0, 12, 2), *range(60, 84, 2)):
        _save_image(folder / "rest" / f"{number:03}.png", (60, 60, 190), draw)
    for number in range(21, 29, 2):
        (folder / "rest" / f"{number:03}.jpg").unlink()
    (folder / "rest" / "031.jpg").write_bytes(b"broken now")
    _save_image(folder / "rest" / "empty.png", (60, 60, 190), draw)


def _save_image(path: Path, colour: tuple[int, int, int], draw: np.random.Generator) -> None:
    pixels = draw.normal(colour, 40, (12, 12, 3)).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
