"""A script: `embed` of a folder, once for each place to die of SIGKILL in; prints the place and the exit code.

usage: python -m helpers.killed_embed FOLDER OUT
"""

import glob
import os
import shutil
import signal
import sys
import time

import torch

from helpers.tiny import tiny_encoder
from pucache.cache import hdf5
from pucache.cache.reader import CacheFile
from pucache.embedding import blocks
from pucache.embedding.embed import run_embedding

PLACES = {  # a function, and the number of the call that does not return
    "in a block": (torch.nn.Conv2d, "forward", 7),
    "in a part": (hdf5.Writer, "write", 16),  # the third: a block of nothing but failures may be the first
    "before a part is named": (os, "replace", 3),
    "in the merge": (CacheFile, "take", 8),
    "before the cache is named": (os, "replace", 6),
    "before the parts are removed": (shutil, "rmtree", 1),
    "while the parts are removed": (os, "rmdir", 1),
    "anywhere": (time, "sleep", 1 << 30),  # killed from outside, wherever it is then
}


def die_in(owner, name, call):
    function, calls = getattr(owner, name), 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def kill_later(child, parts):
    while len(glob.glob(f"{parts}/part-*.h5")) < 2:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)


def main(folder, out):
    blocks.BLOCK_ROWS = 32
    for place, where in PLACES.items():
        child = os.fork()
        if not child:
            die_in(*where)
            encoder = tiny_encoder()
            if place == "anywhere":
                forward = encoder.forward
                encoder.forward = lambda pixels, forward=forward: (time.sleep(0.05), forward(pixels))[1]
            run_embedding(folder, f"{out}/{place}.h5", encoder, workers=0)
            os._exit(0)
        if place == "anywhere":
            kill_later(child, f"{out}/{place}.h5.parts")
        print(place, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep=":", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
