"""Tasks on embeddings of text: docstrings of installed packages, by topic and by kind.

Topics are clusters of the embeddings: neighbours help. Kinds cut across the topics: neighbours may mislead.
The source files are parsed, not imported. Which docstrings there are depends on the versions installed.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.common.image_classes import QUICK, Task, one_vs_rest_rows
from pucache.storage.atomic import replacing

PACKAGES = {  # module: distribution; what pucache's own dependencies and scikit-learn bring
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "networkx": "networkx",
}
STANDARD_LIBRARY = "standard library"
MIN_CHARACTERS, DIM, TEST_SHARE, RANDOM_STATE = 40, 256, 0.2, 0
TESTS = re.compile(r"(^|[/_])(tests?|testing|conftest|idlelib|lib2to3|test_\w+|_pytest)([/_.]|$)")


@dataclass(frozen=True)
class Docstring:
    """A docstring and the definition that it stands in.

    Attributes
    ----------
    module : str
        Path of the source file, from its package on: ``scipy/stats/_fit.py``.
    name : str
        Of the class or function.
    kind : str
        "class", "function", "method" or "property".
    text : str
        Without the indentation.
    """

    module: str
    name: str
    kind: str
    text: str


TOPICS: dict[str, Callable[[Docstring], bool]] = {
    name: lambda doc, prefix=prefix: doc.module.startswith(prefix)
    for name, prefix in {
        "networkx": "networkx/",
        "scipy": "scipy/",
        "scikit-learn": "sklearn/",
        "numpy": "numpy/",
        STANDARD_LIBRARY: f"{STANDARD_LIBRARY}/",
    }.items()
}
KINDS: dict[str, Callable[[Docstring], bool]] = {
    "class": lambda doc: doc.kind == "class",
    "function": lambda doc: doc.kind == "function",
    "method": lambda doc: doc.kind == "method",
    "private": lambda doc: doc.name.startswith("_"),
    "examples": lambda doc: ">>> " in doc.text,
    "one line": lambda doc: "\n" not in doc.text,
}


# --- docstrings of source files ----------------------------------------------------------------------


def sources() -> Iterator[tuple[str, Path]]:
    """Name and folder of what is read."""
    for module in PACKAGES:
        spec = importlib.util.find_spec(module)
        if spec and spec.origin:
            yield module, Path(spec.origin).parent
    yield STANDARD_LIBRARY, Path(sysconfig.get_paths()["stdlib"])


def documented(module: str, text: str) -> Iterator[Docstring]:
    """The docstrings of classes and functions of one source file, in order."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while waiting:
        parent, in_class = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            waiting.append((node, isinstance(node, ast.ClassDef)))
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if docstring := ast.get_docstring(node):
                yield Docstring(module, node.name, kind_of(node, in_class), docstring)


def kind_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    decorators = {ast.unparse(one).split("(")[0].split(".")[-1] for one in node.decorator_list}
    if any("property" in name or name in ("setter", "getter") for name in decorators):
        return "property"
    return "method" if in_class else "function"


def installed() -> list[Docstring]:
    """The docstrings of all sources, each text once, in the order of the files."""
    kept: dict[str, Docstring] = {}
    for name, folder in sources():
        for path in sorted(folder.rglob("*.py")):
            at = path.relative_to(folder).as_posix()
            if "site-packages" in at or TESTS.search(at):
                continue
            try:
                module_texts = list(documented(f"{name}/{at}", path.read_text("utf-8")))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for doc in module_texts:
                if len(doc.text) >= MIN_CHARACTERS:
                    kept.setdefault(" ".join(doc.text.split()), doc)
    return list(kept.values())


# --- tasks ----------------------------------------------------------------------------------------------


def versions() -> str:
    """What the docstrings depend on."""
    packages = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES.values()]
    return f"Python {platform.python_version()}, {', '.join(packages)}"


class Texts:
    """Docstrings by topic and by kind, as TF-IDF reduced to `DIM` dimensions by SVD.

    A fifth of the docstrings, drawn at random, are the test set. Vocabulary, weights and directions are of the
    others.

    Parameters
    ----------
    work : Path
        Where embeddings and labels are kept, by the versions of the packages.
    quick : bool
        One docstring in `QUICK`.

    Attributes
    ----------
    X : ndarray of float16, (n, 256)
        All docstrings' embeddings.
    labels : dict of str to ndarray of bool, (n,)
        By topic or kind.
    test : ndarray of bool, (n,)
        Which docstrings are for the test.
    """

    def __init__(self, work: Path, *, quick: bool = False):
        work.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(f"{versions()} {TOPICS.keys()} {KINDS.keys()} {quick}".encode()).hexdigest()[:12]
        path = work / f"texts-{digest}.npz"
        if not path.exists():
            _write(path, installed()[:: QUICK if quick else 1])
        with np.load(path) as stored:
            self.X, self.test, labels = stored["X"], stored["test"], stored["labels"]
        self.labels = dict(zip([*TOPICS, *KINDS], labels.T, strict=True))

    def one_vs_rest(self, name: str, share: float, labelled: int, seed: int) -> Task:
        """The docstrings of one topic or kind, at a share of the unlabelled, among all others."""
        draw = np.random.default_rng([list(self.labels).index(name), round(1000 * share), labelled, seed])
        X, y = self.X[~self.test], self.labels[name][~self.test]
        pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=draw)
        return Task(X[pile], s[pile], y[pile], self.X[self.test], self.labels[name][self.test])

    def describe(self) -> str:
        """One sentence for the page."""
        counts = ", ".join(f"{name} {label.sum():,}" for name, label in self.labels.items())
        return f"{len(self.X):,} docstrings ({versions()}): {counts}."


def _write(path: Path, docs: list[Docstring]) -> None:
    test = np.random.default_rng(RANDOM_STATE).random(len(docs)) < TEST_SHARE
    labels = np.array([[is_one(doc) for is_one in (TOPICS | KINDS).values()] for doc in docs])
    tfidf = TfidfVectorizer(sublinear_tf=True, min_df=3)
    tfidf.fit([doc.text for doc, held_out in zip(docs, test, strict=True) if not held_out])
    Z = tfidf.transform(doc.text for doc in docs)
    X = TruncatedSVD(DIM, random_state=RANDOM_STATE).fit(Z[~test]).transform(Z)
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, X=X.astype(np.float16), test=test, labels=labels)
