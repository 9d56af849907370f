"""Fuzzing: feed damaged input to every reader of pucache and compare with an independent reader.

    python -m benchmarks.robustness.fuzz [--inputs 20000] [--seed 0] [--only cache,tar] [--out docs/results/fuzz.md]

Asked for: no crash, no hang, no wrong answer, nothing written beside the output. Input number N of a
seed is the same for ever; those that make trouble are kept in --found. `tests/fuzz` says what is fed,
how it is damaged, and what the right answer is.
"""

import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from fuzz.runner import TIMEOUT, Tally, Trouble, numbered, run  # noqa: E402
from fuzz.targets import TARGETS, prepare  # noqa: E402

KINDS = ("crash", "hang", "wrong", "unexpected", "memory", "spill")


def main(inputs: int, seed: int, names: list[str], children: int, reproducers: Path) -> tuple[str, int]:
    began = time.perf_counter()
    prepare()
    total = sum(TARGETS[name].share for name in names)
    jobs = []
    for name in names:
        target = TARGETS[name]
        jobs += numbered(target, seed, range(max(1, round(inputs * target.share / total))))
    tallies = run(jobs, found=reproducers, children=children)
    return report(tallies, seed, children, time.perf_counter() - began), sum(len(t.troubles) for t in tallies.values())


def report(tallies: dict[str, Tally], seed: int, children: int, seconds: float) -> str:
    inputs = sum(tally.inputs for tally in tallies.values())
    troubles = [trouble for tally in tallies.values() for trouble in tally.troubles]
    counts = {kind: sum(trouble.kind == kind for trouble in troubles) for kind in KINDS}
    lines = [
        "# Fuzzing",
        "",
        f"`python -m benchmarks.robustness.fuzz --seed {seed}`: {inputs:,} damaged inputs to {len(tallies)} readers in "
        f"{seconds:,.0f} s, {children} processes, {TIMEOUT:g} s for one input. **{counts['crash']} crashes, "
        f"{counts['hang']} hangs, {counts['wrong']} wrong answers**, {counts['unexpected']} errors of another class "
        f"than promised, {counts['memory']} that took more memory than their input needs, {counts['spill']} that "
        "wrote beside the output. What was accepted was compared with an independent reading of the same bytes.",
        "",
        "| reader | inputs | what became of them | crash | hang | wrong | other |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for name, tally in tallies.items():
        became = ", ".join(f"{what} {count:,}" for what, count in tally.outcomes.most_common() if what not in KINDS)
        first = (tally.count("crash"), tally.count("hang"), tally.count("wrong"))
        other = len(tally.troubles) - sum(first)
        lines.append(f"| {name} | {tally.inputs:,} | {became} | {' | '.join(map(str, first))} | {other} |")
    if troubles:
        lines += ["", "| found | reader | seed-number | sample | what |", "|---|---|---|---|---|"]
        lines += [
            f"| {t.kind} | {t.target} | {t.label} | {_cell(t.sample)} | {_cell(t.what)} |" for t in _some(troubles)
        ]
    return "\n".join([*lines, "", environment(), ""])


def _some(troubles: list[Trouble]) -> list[Trouble]:
    """The first few of each reader and kind."""
    seen: Counter[tuple[str, str]] = Counter()
    shown = []
    for trouble in troubles:
        seen[trouble.target, trouble.kind] += 1
        if seen[trouble.target, trouble.kind] <= 3:
            shown.append(trouble)
    return shown


def _cell(text: str) -> str:
    """Text on one line of a table, whatever it holds."""
    return ascii(text)[1:-1].replace("|", "\\|")[:300]


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="READER,...", help=f"Of {', '.join(TARGETS)}.")
    parser.add_argument("--children", type=int, default=2, help="Processes at once.")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), metavar="FOLDER")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(TARGETS)
    unknown = sorted(set(chosen) - set(TARGETS))
    if unknown:
        parser.error(f"no reader is called {', '.join(unknown)}; choose from {', '.join(TARGETS)}")
    text, bad = main(arguments.inputs, arguments.seed, chosen, arguments.children, arguments.found)
    write_page(text, arguments.out)
    sys.exit(bad > 0)
