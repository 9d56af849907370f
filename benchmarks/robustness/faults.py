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

import errno
import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import commit, environment

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from faults.filling import can_mount, disk
from faults.places import POINTS, After, Job, Outcome, World, strike_each
from faults.powerloss import Crash, check_crash, crashes

EMBEDS = ("embed", "embed, workers", "update", "update, workers, prune", "reuse", "score, images")
OTHERS = ("train-pu", "retrieve", "sweep", "import")
SCORES = ("score", "score, Parquet")
PACKS = ("pack",)
CALLS = 500  # more than any run makes of one kind
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

    def kills(
        self, names: tuple[str, ...], total: int, numbers: tuple[int, ...] = (signal.SIGKILL,)
    ) -> Iterator[Strike]:
        """Signals at random moments, spread evenly over the jobs; those after the end are checked, but not counted."""
        draw = np.random.default_rng([self.seed, len(names), len(numbers)])
        for number in range(total):
            job, struck = self.world.jobs[names[number % len(names)]], False
            sent = numbers[number // len(names) % len(numbers)]
            while not struck:
                fault = After(draw.uniform(0, self.world.undisturbed(job).seconds), sent)
                strike = self.one(job, "not checked", lambda job=job, fault=fault: self._struck(job, fault))
                struck = strike[1] != "after the end"
                yield strike

    def _struck(self, job: Job, fault: After) -> str:
        ended = self.world.strike(job, fault)
        return "at work" if ended.code else "after the end"

    def disk(self) -> Iterator[Strike]:
        """Full disks, of pages and of inodes, where one can be mounted."""
        rooms = [{"pages": pages} for pages in (0, 1, 2, 5, 9, 14)] + [{"inodes": inodes} for inodes in range(3)]
        for job in self.world.jobs.values() if can_mount(self.world.folder) else ():
            for room in rooms:
                kind = "no inodes" if "inodes" in room else "disk full"
                yield self.one(job, kind, lambda job=job, room=room: self._fill(job, **room))

    def _fill(self, job: Job, **room: int) -> str | None:
        self.world.undisturbed(job)
        with disk(self.world.folder / "disk") as full:
            folder = self.world.place(job, full.folder)
            used = dict(zip(("pages", "inodes"), full.used, strict=True))
            full.resize(**{kind: max(1, used[kind] + more) for kind, more in room.items()})
            ended = self.world.run(job.command, folder)
            self.world.check_interrupted(job, folder)
            if ended.code:
                ended.error("No space left on device")
            full.resize()
            self.world.check_rerun(job, folder, ended.acknowledged)
        return None if ended.code else "enough room"

    def errors(self) -> Iterator[Strike]:
        """A kill, and an error, at each fsync, rename, new file and write of a run."""
        for name in ("embed", "update", *PACKS, *SCORES, *OTHERS):
            job = self.world.jobs[name]
            for point in POINTS:
                for fault, what in ((signal.SIGKILL, "kill"), (-errno.EIO, "EIO"))[: 1 if point == "write" else 2]:
                    for call in range(1, CALLS):
                        reached: list[Outcome] = []
                        yield self.one(
                            job,
                            f"{what} at a {point}",
                            lambda job=job, point=point, fault=fault, call=call, reached=reached: reached.extend(
                                strike_each(self.world, job, point, [call], number=fault)
                            ),
                        )
                        if not reached:
                            break

    def power(self) -> Iterator[Strike]:
        """Every distinct disk that a loss of power can leave."""
        for job in self.world.jobs.values():
            for crash in crashes(self.world, job):
                kind = crash.when.partition(", ")[0]
                yield self.one(job, kind, lambda job=job, crash=crash: self._crash(job, crash))

    def _crash(self, job: Job, crash: Crash) -> None:
        check_crash(self.world, job, crash)

    def rivals(self, total: int) -> Iterator[Strike]:
        """The same command twice at nearly the same time."""
        names = ("embed", "update", "pack", "score", "train-pu", "retrieve")
        draw = np.random.default_rng(self.seed)
        for number in range(total):
            job = self.world.jobs[names[number % len(names)]]
            apart = draw.uniform(0, self.world.undisturbed(job).seconds)
            yield self.one(job, "", lambda job=job, apart=apart: self._rivals(job, apart))

    def _rivals(self, job: Job, apart: float) -> str:
        return "one was refused" if self.world.rivals(job, apart) else "both ended well"


def sections(trials: Trials, bundled: Callable[[], Trials], kills: int) -> dict[str, Callable[[], Iterator[Strike]]]:
    """Name of each section and what runs it."""
    return {
        "embed": lambda: trials.kills(EMBEDS, kills),
        "bundled": lambda: bundled().kills(("embed", "update"), max(4, kills // 25)),
        "pack": lambda: trials.kills(PACKS, kills * 2 // 5),
        "score": lambda: trials.kills(SCORES, kills * 2 // 5),
        "others": lambda: trials.kills(OTHERS, kills // 5),
        "signals": lambda: trials.kills(
            (*EMBEDS, *PACKS, *SCORES, *OTHERS), kills * 2 // 5, (signal.SIGINT, signal.SIGTERM)
        ),
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
    "errors": "Kills and I/O errors at chosen calls",
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

    def made(name: str, encoder: str = "") -> Trials:
        folder = work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return Trials(World(folder, encoder), seed)

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
