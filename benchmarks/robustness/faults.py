"""Fault injection: kills, full and failing disks, power loss, signals and concurrent writers.

    python -m benchmarks.robustness.faults WORK [--only embed,pack,...] [--kills 500] [--seed 0]
                                             [--out docs/results/faults.md]

Runs the real commands on a small set of images, injects a fault, and counts which checks passed. What is checked each
time is in `World` of tests/faults/places.py: outputs are byte for byte the old or the new ones, inputs are untouched,
finished parts verify, the same command run again succeeds, computes nothing that was safe a second time, ends in the
bytes of an undisturbed run and leaves nothing else in the folder. Sections that are done are kept in WORK and not run
again.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import commit, environment

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from faults.commands import Zygote
from faults.filling import can_mount, fill_pages, limit_files
from faults.places import Job, World, differences, error_line, state
from faults.powerloss import check_crash, crashes
from faults.stopping import interrupt_often, kill_often
from faults.tracing import RENAMES, can_trace, count_calls, run_traced, run_unwritable

EMBEDS = ("embed", "embed, workers", "update", "update, workers, prune", "reuse", "score, images")
OTHERS = ("train-pu", "retrieve", "sweep", "import")
SCORES = ("score", "score, Parquet", "score, rows")
PACKS = ("pack", "pack, rows")
ROWS = 60_000  # of embeddings made elsewhere, so that a job on them lasts
PLAIN_EVERY = 25  # one in so many kills is of a command as users start it
AT_ONCE = 5  # kills in one go; what fails costs the rest of it
BUSY = "is being written by another process"
Strike = tuple[str, str, str]  # job, where it struck or what kind of fault, what did not hold (or nothing)


class Trials:
    """Runs one fault after the other and collects what struck where, and what did not hold."""

    def __init__(self, world: World, seed: int):
        self.world, self.seed = world, seed

    def one(self, job: Job, kind: str, run: Callable[[], str | None]) -> Strike:
        """Run one trial; it returns a better name of its kind, or None."""
        try:
            kind, problem = run() or kind, ""
        except AssertionError as error:
            problem = " / ".join(str(error).split("\n"))[:1500] or "an assertion without a word"
        shutil.rmtree(self.world.folder / "places", ignore_errors=True)
        return job.name, kind, problem

    def kills(self, names: tuple[str, ...], total: int) -> Iterator[Strike]:
        """Kills at random moments, spread evenly over the jobs."""
        for number, name in enumerate(names):
            job, left = self.world.jobs[name], -(-total // len(names))
            while left:
                count = min(left, AT_ONCE)
                yield from self._some(job, count, f"{self.seed}:{number}:{left}")
                left -= count

    def _some(self, job: Job, count: int, seed: str) -> Iterator[Strike]:
        phases: list[str] = []
        plain = zlib.crc32(seed.encode()) % PLAIN_EVERY < AT_ONCE and count == AT_ONCE

        def run() -> None:
            struck = kill_often(self.world, job, count, seed, plain_every=count if plain else 0)
            phases.extend(phase for _, phase in struck)

        _, _, problem = self.one(job, "", run)
        for number, phase in enumerate(phases):
            yield job.name, phase, problem if number == len(phases) - 1 else ""

    def signals(self, total: int) -> Iterator[Strike]:
        """SIGINT and SIGTERM in turn, at random moments."""
        names = (*EMBEDS, *PACKS, *SCORES, *OTHERS)
        for number in range(total):
            job = self.world.jobs[names[number % len(names)]]
            sent = signal.SIGINT if number // len(names) % 2 == 0 else signal.SIGTERM

            def run(job: Job = job, number: int = number, sent: signal.Signals = sent) -> str:
                return next(iter(interrupt_often(self.world, job, 1, f"{self.seed}:{number}", sent)))[1]

            yield self.one(job, sent.name, run)

    def disk(self) -> Iterator[Strike]:
        """Full disks: of pages and of inodes, where one can be mounted, and files that cannot grow."""
        for job in self.world.jobs.values():
            sizes = sorted({len(content) for name, content in self._new(job) if content})
            limits = sorted({0, *(int(share * size) for size in sizes for share in (0.3, 0.99))})
            for limit in limits:
                yield self.one(job, "file cannot grow", lambda job=job, limit=limit: self._limit(job, limit))
            if can_mount(self.world.folder):
                for room in (0, 1, 2, 5, 9, 14):
                    yield self.one(job, "disk full", lambda job=job, room=room: self._fill(job, room, False))
                for room in range(3):
                    yield self.one(job, "no inodes", lambda job=job, room=room: self._fill(job, room, True))

    def _new(self, job: Job) -> list[tuple[str, bytes | None]]:
        whole = self.world.undisturbed(job)
        return [(name, content) for name, content in whole.after.items() if name in job.outputs]

    def _limit(self, job: Job, limit: int) -> str:
        return "file cannot grow" if limit_files(self.world, job, [limit]) else "enough room"

    def _fill(self, job: Job, room: int, inodes: bool) -> str:
        struck = fill_pages(self.world, job, [room], inodes=inodes)
        return ("no inodes" if inodes else "disk full") if struck else "enough room"

    def errors(self) -> Iterator[Strike]:
        """A kill, and an I/O error, at each fsync and rename of a run; and writes that all fail."""
        if not can_trace():
            return
        for name in ("embed", "update", "pack", *SCORES, *OTHERS):
            job = self.world.jobs[name]
            log = self.world.folder / "calls" / name.replace(" ", "")
            log.mkdir(parents=True, exist_ok=True)
            for calls, what in (("fsync", "fsync"), (RENAMES, "rename")):
                for when in range(1, count_calls(self.world, job, calls, log / what) + 1):
                    for fault in ("signal=KILL", "error=EIO"):
                        inject = f"{calls}:{fault}:when={when}"
                        kind = f"{'kill' if 'KILL' in fault else 'EIO'} at a {what}"
                        yield self.one(job, kind, lambda job=job, inject=inject: self._inject(job, inject))
            yield self.one(job, "EIO at a write", lambda job=job: self._unwritable(job))

    def _inject(self, job: Job, inject: str) -> str | None:
        folder = self.world.place(job)
        done = run_traced(self.world, job, folder, inject)
        self.world.check_interrupted(job, folder)
        if "KILL" not in inject:
            error_line(done, "Input/output error")
        else:
            assert done.code in (0, -signal.SIGKILL), done.stderr
        self.world.check_rerun(job, folder, done.acknowledged)
        return None if done.code else "not reached"

    def _unwritable(self, job: Job) -> None:
        folder = self.world.place(job)
        error_line(run_unwritable(self.world, job, folder), "Input/output error")
        self.world.check_interrupted(job, folder)
        self.world.check_rerun(job, folder)

    def power(self) -> Iterator[Strike]:
        """Every distinct disk that a loss of power can leave."""
        for job in self.world.jobs.values():
            record = self.world.folder / "seen" / job.name.replace(" ", "")
            shutil.rmtree(record, ignore_errors=True)
            for crash in crashes(self.world, job, record):
                kind = crash.when.partition(", ")[0]
                yield self.one(job, kind, lambda job=job, crash=crash, record=record: self._crash(job, crash, record))

    def _crash(self, job: Job, crash: object, record: Path) -> None:
        check_crash(self.world, job, crash, record)  # type: ignore[arg-type]

    def rivals(self, total: int) -> Iterator[Strike]:
        """The same command twice at nearly the same time."""
        names = ("embed", "update", "pack", "score", "train-pu", "retrieve")
        draw = np.random.default_rng(self.seed)
        for number in range(total):
            job = self.world.jobs[names[number % len(names)]]
            apart = draw.uniform(0, self.world.undisturbed(job).seconds)
            yield self.one(job, "", lambda job=job, apart=apart: self._rivals(job, apart))

    def _rivals(self, job: Job, apart: float) -> str:
        folder = self.world.place(job)
        first = self.world.zygote.start(job.command, folder)
        time.sleep(apart)
        both = [self.world.zygote.start(job.command, folder).wait(), first.wait()]
        lost = [done for done in both if done.code]
        assert len(lost) < 2, both
        for done in lost:
            error_line(done, BUSY)
        differing = differences(self.world.undisturbed(job).after, state(folder))
        assert not differing, differing
        return "one was refused" if lost else "both ended well"


def sections(trials: Trials, bundled: Callable[[], Trials], kills: int) -> dict[str, Callable[[], Iterator[Strike]]]:
    """Name of each section and what runs it."""
    return {
        "embed": lambda: trials.kills(EMBEDS, kills),
        "bundled": lambda: bundled().kills(("embed", "update"), max(4, kills // 25)),
        "pack": lambda: trials.kills(PACKS, kills * 2 // 5),
        "score": lambda: trials.kills(SCORES, kills * 2 // 5),
        "others": lambda: trials.kills(OTHERS, kills // 5),
        "signals": lambda: trials.signals(kills * 2 // 5),
        "disk": trials.disk,
        "errors": trials.errors,
        "power": trials.power,
        "rivals": lambda: trials.rivals(kills // 5),
    }


TITLES = {
    "embed": "SIGKILL of embed at random moments",
    "bundled": "SIGKILL of embed with the bundled encoder",
    "pack": "SIGKILL of pack",
    "score": "SIGKILL of score on a cache",
    "others": "SIGKILL of the other commands",
    "signals": "SIGINT and SIGTERM at random moments",
    "disk": "Full disks",
    "errors": "Kills and I/O errors at chosen system calls",
    "power": "Losses of power, by a model of what was fsynced",
    "rivals": "Two of the same command at once",
}


def run_section(name: str, strikes: Iterator[Strike], work: Path) -> None:
    """Run one section, tell how it goes, and keep its result."""
    began, last_shown, seen = time.monotonic(), 0.0, []
    for strike in strikes:
        seen.append(strike)
        if time.monotonic() - last_shown > 10 or strike[2]:
            last_shown = time.monotonic()
            bad = sum(bool(problem) for _, _, problem in seen)
            print(f"{name}: {len(seen)} faults, {bad} bad  {strike[2]}", file=sys.stderr, flush=True)
    result = {"strikes": seen, "seconds": time.monotonic() - began, "commit": commit()}
    (work / f"{name}.json").write_text(json.dumps(result))


def report(work: Path, seed: int, kills: int) -> str:
    """All sections that are done, as markdown."""
    lines = [
        "# Faults",
        "",
        "`python -m benchmarks.robustness.faults WORK`: " + " ".join((__doc__ or "").split("\n\n")[2].split()),
    ]
    lines += [
        "",
        f"Seed {seed}. A fault is bad where one of these checks failed. Kills that came after the end of the command "
        f"are checked too, but do not count towards the number asked for ({kills} of embed, {kills * 2 // 5} of pack "
        "and of score).",
        "",
    ]
    lines += ["| fault | job | n | bad | where it struck |", "|---|---|---:|---:|---|"]
    notes, total, wrong, seconds, commits = [], 0, 0, 0.0, {}
    for name, title in TITLES.items():
        path = work / f"{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        seconds += result["seconds"]
        commits.setdefault(result["commit"], []).append(name)
        for job in dict.fromkeys(strike[0] for strike in result["strikes"]):
            mine = [strike for strike in result["strikes"] if strike[0] == job]
            bad = [problem for _, _, problem in mine if problem]
            phases = ", ".join(f"{phase} {count}" for phase, count in Counter(s[1] for s in mine).most_common())
            lines.append(f"| {title} | {job} | {len(mine)} | {len(bad)} | {phases} |")
            notes += [f"- {title}, {job}, {count} times: {text}" for text, count in Counter(bad).most_common()]
            total, wrong = total + len(mine), wrong + len(bad)
    lines += ["", f"**{total:,} faults, {wrong:,} bad**, in {seconds / 60:.0f} minutes.", ""]
    measured = "; ".join(f"{', '.join(names)} at commit {at}" for at, names in commits.items())
    return "\n".join([*lines, *notes, *([""] if notes else []), environment(), f"Sections: {measured}.", ""])


def main(work: Path, only: list[str], kills: int, seed: int) -> None:
    work.mkdir(parents=True, exist_ok=True)
    logs = work / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    with Zygote(logs) as zygote:

        def made(name: str, encoder: str = "") -> Trials:
            folder = work / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            return Trials(World(folder, zygote, encoder, ROWS), seed)

        for name, strikes in sections(made("world"), lambda: made("bundled", "bundled"), kills).items():
            if name in only and not (work / f"{name}.json").exists():
                run_section(name, strikes(), work)


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", default=",".join(TITLES), help=f"sections: {', '.join(TITLES)}")
    parser.add_argument("--kills", type=int, default=500, help="of embed; the other sections follow")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.work.resolve(), arguments.only.split(","), arguments.kills, arguments.seed)
    text = report(arguments.work, arguments.seed, arguments.kills)
    write_page(text, arguments.out)
