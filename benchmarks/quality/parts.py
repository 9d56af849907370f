"""Parts of images: a small thing in a large image, what tiles cost, and the memory that a very large image takes.

    python -m benchmarks.quality.parts DIR WORK [--images 3000] [--files 1000] [--out docs/results/parts.md]

DIR is CIFAR-10. Images are made of 3 x 3 of its test pictures, of 96 pixels each; one image in a hundred has a ship in
one cell, twenty more are labelled. AP is that of the classifier's ranking of the other images: of whole images, and of
the largest of the nine parts of each. Seconds are of `embed` of FILES such images by tiles, and of their parts as
files.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.environment import environment
from pucache import embed, train_pu
from pucache.images.regions import split_key

CELL, SIDE, LABELLED, SHARE, KIND, HUGE = 96, 3, 20, 0.01, "ship", 20_000
Made = tuple[list[str], np.ndarray, np.ndarray]  # keys, which of them show the kind, and in which cell


def mosaics(pictures: Path, folder: Path, count: int) -> Made:
    """Write the images, with the labelled ones first."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {name: sorted((pictures / name).glob("*.png")) for name in sorted(path.name for path in pictures.iterdir())}
    others = [path for name, of in kinds.items() if name != KIND for path in of]
    positive = np.arange(count) < LABELLED
    positive[LABELLED:] = draw.random(count - LABELLED) < SHARE
    cells, ships = draw.integers(0, SIDE * SIDE, count), iter(draw.permutation(len(kinds[KIND])))
    for number in range(count):
        image = Image.new("RGB", (SIDE * CELL, SIDE * CELL))
        for cell in range(SIDE * SIDE):
            shows = positive[number] and cell == cells[number]
            path = kinds[KIND][next(ships)] if shows else others[draw.integers(len(others))]
            image.paste(Image.open(path).resize((CELL, CELL)), (cell % SIDE * CELL, cell // SIDE * CELL))
        image.save(folder / f"{number:05}.jpg", quality=95)
    return [f"{number:05}.jpg" for number in range(count)], positive, cells


def of_whole_images(folder: Path, made: Made) -> float:
    keys, positive, _ = made
    cache = embed(folder, folder.with_suffix(".h5"))
    margins = train_pu(cache, keys[:LABELLED]).margins(cache.X)
    return float(average_precision_score(positive[LABELLED:], margins[LABELLED:]))


def of_tiles(folder: Path, made: Made) -> tuple[float, float]:
    """AP of the parts, and of the images by their largest part."""
    keys, positive, cells = made
    cache = embed(folder, folder.with_suffix(".parts.h5"), tiles=f"{SIDE}x{SIDE}")
    parts = [split_key(key) for key in cache.keys]
    image = np.array([keys.index(of) for of, _ in parts])
    place = [region.box((SIDE * CELL, SIDE * CELL))[:2] for _, region in parts if region]
    cell = np.array([top // CELL * SIDE + left // CELL for left, top in place])
    y = positive[image] & (cell == cells[image])
    labelled = y & (image < LABELLED)
    model = train_pu(cache, [key for key, is_one in zip(cache.keys, labelled, strict=True) if is_one])
    margins = model.margins(cache.X)
    rest = image >= LABELLED
    largest = np.full(len(keys), -np.inf)
    np.maximum.at(largest, image, margins)
    return (
        float(average_precision_score(y[rest], margins[rest])),
        float(average_precision_score(positive[LABELLED:], largest[LABELLED:])),
    )


def cost(folder: Path, work: Path, count: int) -> tuple[float, float]:
    """Seconds of `embed` of some images by tiles, and of their tiles as files."""
    images, files = work / "images", work / "files"
    for made in (images, files):
        made.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.jpg"))[:count]:
        whole = Image.open(path)
        whole.save(images / path.name, quality=95)
        for cell in range(SIDE * SIDE):
            left, top = cell % SIDE * CELL, cell // SIDE * CELL
            part = whole.crop((left, top, left + CELL, top + CELL))
            part.save(files / f"{path.stem}-{cell}.jpg", quality=95)
    return seconds(images, work / "tiles.h5", f"{SIDE}x{SIDE}"), seconds(files, work / "files.h5", "")


def seconds(source: Path, cache: Path, tiles: str) -> float:
    cache.unlink(missing_ok=True)
    began = time.perf_counter()
    embed(source, cache, tiles=tiles)
    return time.perf_counter() - began


def huge(work: Path) -> tuple[int, int, float]:
    """Rows and failures of an image of `HUGE` pixels a side by tiles of 1,000, and the GiB of the largest process."""
    source = work / "huge"
    source.mkdir(parents=True, exist_ok=True)
    if not (source / "a.jpg").exists():
        Image.effect_noise((HUGE // 8, HUGE // 8), 60).resize((HUGE, HUGE)).save(source / "a.jpg", quality=80)
    code = (
        "import resource, sys; from pucache import Decoding, embed\n"
        "how = {'tiles': '1000', 'decoding': Decoding(large_images=True), 'workers': 1, 'force': True}\n"
        "cache = embed(sys.argv[1], sys.argv[2], **how)\n"
        "who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)\n"
        "print(len(cache), len(cache.failures), *(resource.getrusage(of).ru_maxrss for of in who))"
    )
    run = [sys.executable, "-c", code, str(source), str(work / "huge.h5")]
    rows, failures, *kilobytes = map(
        int, subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    )
    return rows, failures, kilobytes[1] / (1 << 20)


def page(options: argparse.Namespace) -> str:
    folder, work = options.work / "mosaics", options.work
    made = mosaics(options.folder / "test", folder, options.images)
    whole, (parts, images) = of_whole_images(folder, made), of_tiles(folder, made)
    rows, failures, memory = huge(work)
    by_tiles, by_files = cost(folder, work, options.files)
    hidden, tiles = int(made[1][LABELLED:].sum()), f"{SIDE}x{SIDE}"
    ranked = {"whole images": whole, "parts": parts, "images by their largest part": images}
    paragraphs = [
        "# Parts of images",
        f"`python -m benchmarks.quality.parts DIR WORK`: {options.images:,} images of {tiles} pictures of CIFAR-10, "
        f"{LABELLED} labelled, {hidden} others with a {KIND} in one cell; the bundled encoder, `--tiles {tiles}`. One "
        "run.",
        table(["ranked", "AP"], [[name, f"{ap:.3f}"] for name, ap in ranked.items()]),
        f"`embed` of {options.files:,} images by tiles took {by_tiles:.1f} s, and of the same parts as "
        f"{SIDE * SIDE * options.files:,} files {by_files:.1f} s: {by_tiles / by_files:.2f} times as long.",
        f"A JPEG file of {HUGE:,} x {HUGE:,} pixels with `--tiles 1000 --large-images`: {rows} parts, {failures} "
        f"failures, {memory:.2f} GiB in the largest worker process.",
        environment(),
    ]
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=3_000)
    parser.add_argument("--files", type=int, default=1_000)
    print_page(page, parser.parse_args())
