"""How commands of pucache 0.4 are spelled today, for a comparison of what both versions do.

A cut adds a line to `DROPPED` or `RENAMED`, or a way of its own to `translate`.
"""

import tempfile
from pathlib import Path

DROPPED = {  # command: options that went without a successor, and how many values each took
    "embed": {"--profile": 0},
    "estimate-prior": {"--method": 1},
    "sweep-priors": {"--truth": 1, "--no-plot": 0},
    "export": {"--scores": 1},
}
RENAMED = {"retrieve-positives": {"--review": "--page", "similarity": "whitened"}}
LABELS = "translated-labels.csv"


def translate(arguments: list[str]) -> list[list[str]]:
    """The commands of today in place of one of 0.4: lists of arguments, without ``pucache``."""
    command, kept, rest = arguments[0], arguments[:1], iter(arguments[1:])
    before: list[list[str]] = []
    for argument in rest:
        if argument in DROPPED.get(command, {}):
            for _ in range(DROPPED[command][argument]):
                next(rest)
        elif argument == "--metrics":
            _link_metrics(arguments, next(rest))
        elif argument == "--concepts":
            before.append(["labels", arguments[1], next(rest), "--out", LABELS])
            kept += ["--labels", LABELS]
        elif argument == "--groups":
            before.append(["labels", arguments[1], kept.pop(kept.index("--positives") + 1), "--groups", next(rest)])
            before[-1] += ["--out", LABELS]
            kept[kept.index("--positives")] = "--labels"
            kept.append(LABELS)
        else:
            kept.append(RENAMED.get(command, {}).get(argument, argument))
    if command == "score" and "--precision" in kept:  # an encoder of other settings embeds first
        at = kept.index("--precision")
        cache = kept[kept.index("--out") + 1].replace(".csv", ".h5")
        before.append(["embed", kept[2], cache, "--encoder", kept[1], *kept[at : at + 4]])
        kept = [*kept[:2], cache, *kept[3:at], *kept[at + 4 :]]
    return [*before, kept]


def _link_metrics(arguments: list[str], name: str) -> None:
    """Link the name that --metrics gave to the file that lies beside --out now, in the folder of the comparison."""
    out = arguments[arguments.index("--out") + 1].removesuffix(".safetensors")
    folder = max(Path(tempfile.gettempdir()).glob("behaviour-*"), key=lambda one: one.stat().st_ctime)
    (folder / name).symlink_to(f"{out}.metrics.json")
