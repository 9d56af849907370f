"""Some of the images that the demo unpacks."""

import csv

from PIL import Image

from pucache import demonstration


def demo_images(shares):
    """Row of the packaged table and tile of so many images of each folder, positive or not."""
    left, size = dict(shares), demonstration.TILE_SIDE
    with (
        Image.open(demonstration.DATA / "fashion-mnist.png") as sheet,
        (demonstration.DATA / "fashion-mnist.csv").open(newline="") as table,
    ):
        for position, row in enumerate(csv.DictReader(table)):
            kind = row["folder"], row["class"] == demonstration.POSITIVE_CLASS
            if left.get(kind):
                left[kind] -= 1
                top, side = (size * part for part in divmod(position, sheet.width // size))
                yield row, sheet.crop((side, top, side + size, top + size))
