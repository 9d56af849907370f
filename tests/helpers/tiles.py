"""Loading the parts of images as an encoder of 224 pixels takes them, without one."""

from concurrent.futures import ThreadPoolExecutor

import torch

from pucache import Decoding, open_source
from pucache.images.loading import ChunkLoader, load_in_threads
from pucache.images.tiling import list_images


class Blank:
    """Stands for a resizer, and takes no time."""

    input_size, sufficient_side = (224, 224), 224

    def __call__(self, image):
        image.load()
        return torch.full((*self.input_size, 3), image.width, dtype=torch.uint8)


def parts(folder, tiles):
    """Load every part in two threads; returns their number, and the megabytes that it took at most."""
    before = peak()
    source = open_source(folder)
    listing = list_images(source, tiles, Decoding())
    sizes = listing.size_mtime[:, 0].tolist()
    loader = ChunkLoader(source, Blank(), listing.keys, sizes, chunk_size=64, tiles=tiles)
    with ThreadPoolExecutor(2) as pool:
        count = sum(len(chunk.to_embed) for chunk in load_in_threads(loader, pool, 4))
    return count, peak() - before


def peak():
    """Most megabytes of this process at any time."""
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) >> 10
