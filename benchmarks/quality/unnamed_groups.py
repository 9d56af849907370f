"""How often groups that nobody named are seen: in piles of frames, where they are, and in piles of independent images.

    python -m benchmarks.quality.unnamed_groups CIFAR.h5 FASHION.h5 --images cifar10/train [--piles 200] [--minutes 60]

Both are caches by `pucache embed`, their keys CLASS/NAME. A video is ten augmented frames of one CIFAR image: crops of
at least 60 % of the area, mirror images, other brightness and contrast. Writes its section of docs/results/groups.md.
"""

import argparse
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import embedded
from benchmarks.quality.groups import SHARES, UNNAMED
from pucache import EmbeddingCache
from pucache.labels.near_duplicates import groups as twins_of
from pucache.labels.unnamed_groups import find_unnamed_groups

FRAMES, VIDEOS_A_CLASS = 10, 200
VIDEOS, POSITIVE, HOLDING, LABELLED_FRAMES = 146, 17, 5, 8  # of a pile; with positives, with labels; of a video
ROWS, LABELS, CLASSES = (500, 5000), (12, 100), 4  # of independent piles; classes that are positive, at most
SEARCHES = ("at random", "first of the listing", "nearest neighbours")
SITES = 12


def month_folders(classes: np.ndarray, draw: np.random.Generator) -> list[str]:
    return [f"2024-{month:02}/" for month in draw.integers(1, 13, len(classes))]


def site_folders(classes: np.ndarray, draw: np.random.Generator) -> list[str]:
    """Sites with classes in different shares."""
    _, number = np.unique(classes, return_inverse=True)
    shares = draw.dirichlet(np.ones(SITES), size=number.max() + 1)
    return [f"site{draw.choice(SITES, p=shares[one]):02}/" for one in number]


FOLDERS = {
    "folders of classes": lambda classes, draw: [f"train/{name}/" for name in classes],
    "numbers alone": lambda classes, draw: [""] * len(classes),
    "folders of months": month_folders,
    "folders of sites": site_folders,
}
NAMES = {  # of a frame, by the numbers of video and frame
    "folders of videos": lambda video, frame: f"v{video:03}/f{frame:02}.png",
    "names with a separator": lambda video, frame: f"v{video:03}_f{frame:02}.png",
    "names without one": lambda video, frame: f"{video:03}{frame:02}.png",
    "numbers in any order": None,
}


@cache
def classes_of(path: Path) -> tuple[EmbeddingCache, np.ndarray]:
    opened = EmbeddingCache(path)
    return opened, np.array([key.split("/")[0] for key in opened.keys])


def seen(X: np.ndarray, keys: list[str], labelled: np.ndarray) -> np.ndarray | None:
    """Groups that are seen in rows with these keys, in any order, of which some are labelled."""
    order = np.argsort(keys)
    ordered, rows = X[order], np.sort(np.argsort(order)[labelled])
    found = find_unnamed_groups(ordered, [keys[row] for row in order], rows, twins_of(ordered))
    return None if found is None else found.group[np.argsort(order)]


def of_independent(path: Path, layout: str, search: str, number: int) -> dict:
    """Whether groups are seen in a pile of independent images."""
    draw = np.random.default_rng([list(FOLDERS).index(layout), SEARCHES.index(search), number])
    opened, classes = classes_of(path)
    n, share = (np.exp(draw.uniform(*np.log(ends))) for ends in (ROWS, SHARES))
    wanted = np.isin(classes, draw.choice(np.unique(classes), draw.integers(1, CLASSES + 1), replace=False))
    positive, negative = (draw.permutation(np.flatnonzero(wanted == value)) for value in (True, False))
    count = min(int(np.exp(draw.uniform(*np.log(LABELS)))), int(n * share) // 2)
    rows = np.sort(np.concatenate([positive[: int(n * share)], negative[: int(n - n * share)]]))
    X, folders = opened.take(rows), FOLDERS[layout](classes[rows], draw)
    names = draw.permutation(len(rows)) if layout == "numbers alone" else np.arange(len(rows))
    keys = [f"{folder}{name:05}.png" for folder, name in zip(folders, names, strict=True)]
    found = np.flatnonzero(wanted[rows])
    labelled = searched(X, keys, found, search, count, draw)
    return {"rows": len(rows), "labels": count, "seen": seen(X, keys, labelled) is not None}


def searched(
    X: np.ndarray, keys: list[str], positive: np.ndarray, search: str, count: int, draw: np.random.Generator
) -> np.ndarray:
    """So many of the positive rows, as somebody finds them."""
    if search == "at random":
        return draw.permutation(positive)[:count]
    if search == "first of the listing":
        return np.array(sorted(positive, key=lambda row: keys[row])[:count])
    unit = X[positive] / np.linalg.norm(X[positive].astype(np.float32), axis=1, keepdims=True)
    return positive[np.argsort(-(unit @ unit[draw.integers(len(unit))]))[:count]]


def pile_of_videos(
    path: Path, layout: str, positive: int, videos: int, draw: np.random.Generator
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Embeddings of videos frame by frame, those with positives first, keys, and the video of each row."""
    opened, classes = classes_of(path)
    wanted = classes[::FRAMES] == draw.choice(np.unique(classes))
    of_class, others = (draw.permutation(np.flatnonzero(wanted == value)) for value in (True, False))
    chosen = np.concatenate([of_class[:positive], others[: videos - positive]])
    video, frame = np.divmod(np.arange(len(chosen) * FRAMES), FRAMES)
    rows = chosen[video] * FRAMES + frame
    place, numbers = draw.permutation(len(chosen)), draw.permutation(len(rows))  # in the listing
    named = NAMES[layout]
    keys = [
        f"{numbers[row]:05}.png" if named is None else named(place[row // FRAMES], row % FRAMES)
        for row in range(len(rows))
    ]
    return opened.take(np.sort(rows))[np.argsort(np.argsort(rows))], keys, video


def of_frames(path: Path, layout: str, number: int) -> dict:
    """Whether groups are seen in a pile of 146 videos of ten frames, with 40 labels in five of them."""
    draw = np.random.default_rng([list(NAMES).index(layout), number])
    X, keys, video = pile_of_videos(path, layout, POSITIVE, VIDEOS, draw)
    labelled = np.flatnonzero((video < HOLDING) & (np.arange(len(X)) % FRAMES < LABELLED_FRAMES))
    return {"seen": seen(X, keys, labelled) is not None}


def frames_of(images: Path, work: Path) -> Path:
    """Cache of the frames, made once from the first images of each class in folders."""
    folder = work / "frames"
    for of_class in sorted(path for path in images.iterdir() if path.is_dir()):
        (folder / of_class.name).mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(sorted(of_class.iterdir())[:VIDEOS_A_CLASS]):
            draw, image = np.random.default_rng(number), Image.open(file).convert("RGB")
            for frame in range(FRAMES):
                if not (target := folder / of_class.name / f"{number:03}_{frame}.png").exists():
                    augmented(image, draw).save(target)
    embedded(folder, work / "frames.h5")
    return work / "frames.h5"


def augmented(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """A crop of at least 60 % of the area, mirrored or not, of another brightness and contrast."""
    side = image.width * np.sqrt(draw.uniform(0.6, 1))
    left, top = draw.uniform(0, image.width - side, 2)
    image = image.resize(image.size, Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else image
    image = ImageEnhance.Brightness(image).enhance(draw.uniform(0.7, 1.3))
    return ImageEnhance.Contrast(image).enhance(draw.uniform(0.7, 1.3))


def section(independent: list[dict], videos: list[dict]) -> str:
    layouts = list(dict.fromkeys((row["data"], row["layout"]) for row in independent))
    of_layouts = [[row for row in independent if (row["data"], row["layout"]) == one] for one in layouts]
    alarms = [
        [data, layout, len(rows), sum(row["seen"] for row in rows)]
        for (data, layout), rows in zip(layouts, of_layouts, strict=True)
    ]
    of_names = {name: [row["seen"] for row in videos if row["layout"] == name] for name in NAMES}
    return "\n\n".join(
        [
            UNNAMED,
            "`python -m benchmarks.quality.unnamed_groups CIFAR.h5 FASHION.h5 --images cifar10/train`.",
            "**False alarms** on piles of 500 to 5,000 independent images, 3 to 30 % of them positive, of one to four "
            "classes; 12 to 100 labels, at random, first of the listing, or nearest to one image, in turn.",
            table(["images", "keys", "piles", "alarms"], alarms),
            f"**Videos seen** in piles of {VIDEOS}, {POSITIVE} of them of one class; {HOLDING * LABELLED_FRAMES} "
            f"labels, {LABELLED_FRAMES} of the {FRAMES} frames of {HOLDING} videos.",
            table(["keys", "piles", "seen"], [[name, len(one), sum(one)] for name, one in of_names.items() if one]),
            environment(),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("caches", type=Path, nargs=2, metavar="CIFAR.h5 FASHION.h5")
    parser.add_argument("--images", type=Path, required=True, help="CIFAR-10's training images, CLASS/NAME")
    parser.add_argument("--piles", type=int, default=200, help="of each kind (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="after which no pile of a table is begun")
    parser.add_argument("--work", type=Path, default=Path("build/benchmarks"), help="where piles measured are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/results/groups.md"))
    options = parser.parse_args()
    caches = dict(zip(("CIFAR-10", "Fashion-MNIST"), options.caches, strict=True))
    frames = frames_of(options.images, options.work)
    run = partial(measured, options.work, minutes=options.minutes)
    numbers = range(options.piles)
    piles = product(numbers, caches, FOLDERS)
    wanted = [{"data": data, "layout": layout, "number": number} for number, data, layout in piles]

    def independent(data: str, layout: str, number: int) -> dict:
        return of_independent(caches[data], layout, SEARCHES[number % len(SEARCHES)], number)

    rows = run("unnamed-independent", wanted, independent)
    videos = [{"layout": layout, "number": number} for number, layout in product(numbers, NAMES)]
    seen_in = run("unnamed-videos", videos, partial(of_frames, frames))
    before = options.out.read_text().partition(UNNAMED)[0]
    write_page(before.rstrip() + "\n\n" + section(rows, seen_in) + "\n", options.out)


if __name__ == "__main__":
    main()
