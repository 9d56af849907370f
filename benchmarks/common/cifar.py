"""CIFAR-10 tasks: embeddings by pucache's default encoder, computed once, and the positive classes.

The folder holds train/<class>/<index>.png and test/<class>/<index>.png, `index` being the place in the
original batches; or those batches themselves, ``cifar-10-batches-py``, see `unpack.py`.
"""

from pathlib import Path

import numpy as np

from benchmarks.common.image_classes import ImageClasses, Task
from benchmarks.common.unpack import unpacked

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VEHICLES = ("airplane", "automobile", "ship", "truck")
LABELLED, HIDDEN = 150, 600  # of each class of vehicles, in the authors' task


class Cifar(ImageClasses):
    """Embeddings of CIFAR-10.

    Parameters
    ----------
    folder, work : Path
        The images, or the original batches; where the caches are kept.
    quick : bool
        One image in `QUICK`.
    """

    classes, prefix, quick_prefix = CLASSES, "suite", "quick"

    def __init__(self, folder: Path, work: Path, *, quick: bool = False):
        work.mkdir(parents=True, exist_ok=True)
        super().__init__(unpacked(folder, work), work, quick=quick)

    def authors(self) -> Task:
        """The authors' 1:10 task: of each class of vehicles the first 750 by index, the last 150 of them labelled."""
        return self.first_of_each(VEHICLES, hidden=HIDDEN, labelled=LABELLED)

    def balanced(self, labelled: int, seed: int) -> Task:
        """All images, and so many vehicles labelled at random: the task of most other papers."""
        positive, s = np.flatnonzero(np.isin(self.label, VEHICLES)), np.zeros(len(self.label), np.int8)
        s[np.random.default_rng(seed).choice(positive, labelled // self.part, replace=False)] = 1
        return self.task(np.ones(len(s), bool), s, np.array(VEHICLES))
