"""Count the functions and modules of pucache that a call runs through, as a reader who follows it would meet them.

    python tools/trace.py            # three calls on the demo's images, into a temporary folder
    python tools/trace.py --list     # also each function, in the order of the first calls

Functions are those of pucache/ and cli/ with a name; what child processes run is not seen.
"""

import inspect
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from pucache import EmbeddingCache, embed, train_pu
from pucache.demonstration import unpack
from pucache.images.source import open_source
from pucache.neighbours.graph import cached_graph
from pucache.reviewing.log import Choice
from pucache.reviewing.pictures import Pictures
from pucache.reviewing.queue import NextImages
from pucache.reviewing.service import Proposal, ReviewService
from pucache.reviewing.session import open_session
from pucache.training.ranker import Ranker

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tuple(f"{ROOT / name}/" for name in ("pucache", "cli"))


def traced(call):
    """Functions that a call runs, (file, name), in the order of their first calls."""
    met = {}

    def look(frame, event, _):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")  # such as <lambda>
        if event == "call" and is_function and code.co_filename.startswith(PACKAGES):
            met[code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname] = None

    threading.setprofile(look)  # of threads that begin from now on
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(met)


def click(cache, folder):
    """A function that decides one image, ranks by it, and asks for the next one; its session is open already."""
    session = open_session(cache, folder / "found.txt", folder=folder / "review")
    queue = NextImages(session, np.random.default_rng(0))
    service = ReviewService(session, queue, Pictures(cache), identifier="trace", reviewer="trace")
    ranker = Ranker(cache, cached_graph(cache), groups=session.state.groups)
    service.take_ranking(ranker.fit(*session.state.labels()), session.state.label_serial)
    (card,) = service.next("tab", 1)

    def run():
        service.decide("tab", [Proposal(request="1", row=card["row"], choice=Choice.POSITIVE, replaces=card["serial"])])
        result = replace(ranker.fit(*session.state.labels()), seconds=0.0)  # a slow one would be kept on disk
        service.take_ranking(result, session.state.label_serial)
        service.next("tab", 1)

    return run


def main(arguments):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(folder)
        (folder / "three").mkdir()
        for key in sorted(open_source(folder / "photos").scan().keys)[:3]:
            (folder / "three" / Path(key).name).write_bytes((folder / "photos" / key).read_bytes())
        calls = {"embed of three images": lambda: embed(folder / "three", folder / "three.h5")}
        embed(folder / "photos", folder / "photos.h5")
        cache = EmbeddingCache(folder / "photos.h5")
        calls["train_pu"] = lambda: train_pu(folder / "photos.h5", folder / "found.txt")
        calls["a click to the next ranking"] = click(cache, folder)
        for what, call in calls.items():
            met = traced(call)
            print(f"{what}: {len(met)} functions in {len({file for file, _ in met})} modules")
            if "--list" in arguments:
                print(*(f"  {file} {function}" for file, function in met), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
