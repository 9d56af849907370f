"""Memory and time per key of listing a source, planning a run, and opening and packing many shares.

    python -m benchmarks.speed.listing FOLDER [--images 1000000] [--shares 16 256] [--out docs/results/listing.md]

Makes as many empty files, a manifest of them, and caches of 64 numbers a row in shares of the keys by their
hash, in FOLDER, and finds them there the next time. Every figure comes from a process of its own, on Linux;
memory is what the process grew by at its peak. Nothing is decoded: only names count here.
"""

import json
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.planted_cache import key
from benchmarks.speed.scale import Measured
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.merging import pack
from pucache.cache.parts import Parts
from pucache.cache.writer import Rows, write_file
from pucache.embedding.resume import ExistingCache, take_inventory
from pucache.encoders.spec import EncoderSpec
from pucache.images.source import open_source

DIM = 64


@dataclass(frozen=True)
class World:
    """What is measured on."""

    folder: Path
    images: int
    shares: int

    @property
    def photos(self) -> Path:
        return self.folder / f"photos-{self.images}"

    @property
    def manifest(self) -> Path:
        return self.folder / f"photos-{self.images}.txt"

    @property
    def caches(self) -> Path:
        return self.folder / f"{self.images}-in-{self.shares}"


# --- making --------------------------------------------------------------------------------------------


def touch(world: World) -> dict[str, float]:
    """Write the empty files, and the manifest last."""
    for row in range(world.images):
        path = world.photos / key(row)
        if row % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.touch()
    world.manifest.write_text("".join(f"{world.photos.name}/{key(row)}\n" for row in range(world.images)))
    return {}


def deal(world: World) -> dict[str, float]:
    """Write a cache for each share of the keys, dealt as `embed --shard` deals them."""
    world.caches.mkdir()
    keys = [key(row) for row in range(world.images)]
    share = np.array([zlib.crc32(name.encode()) % world.shares for name in keys])
    encoder, every = EncoderSpec.imported("planted", DIM), encode_keys(keys)
    for number in range(world.shares):
        mine = every[share == number]
        n = len(mine)
        rows = Rows(mine, np.zeros((n, DIM), "<f2"), np.zeros((n, 32), np.uint8), np.full((n, 2), -1))
        shape = (n, every.itemsize, np.dtype("<f2"))
        write_file(world.caches / f"{number:05}.h5", encoder, "", [rows], shape=shape, failures={})
    return {}


# --- measuring -----------------------------------------------------------------------------------------


def scan_folder(world: World) -> dict[str, float]:
    return scan(world.photos, world)


def scan_manifest(world: World) -> dict[str, float]:
    return scan(world.manifest, world)


def scan(where: Path, world: World) -> dict[str, float]:
    """List a source as `embed` does first."""
    source, measured = open_source(where), Measured()
    with measured:
        listing = source.scan()
    assert len(listing.keys) == world.images
    return measured.figures


def plan(world: World) -> dict[str, float]:
    """List, and find out what is missing, as `embed` does before the first image; nothing is there yet."""
    measured, encoder = Measured(), EncoderSpec.imported("planted", DIM)
    with measured:
        listing = open_source(world.photos).scan()
        parts = Parts(world.folder / "none.h5", encoder, np.dtype("<f2"))
        keys = encode_keys(listing.keys)
        existing = ExistingCache(None, listing, keys)
        inventory = take_inventory(listing, keys, existing=existing, parts=parts, prune=False)
    assert len(inventory.missing) == world.images
    return measured.figures


def open_shares(world: World) -> dict[str, float]:
    """Open every share as one cache, which looks for keys that stand in two."""
    measured = Measured()
    with measured:
        cache = EmbeddingCache(world.caches)
    assert len(cache) == world.images
    return measured.figures


def pack_shares(world: World) -> dict[str, float]:
    measured, out = Measured(), world.folder / "packed.h5"
    with measured:
        rows = pack([world.caches], out)
    assert rows == world.images
    out.unlink()
    return measured.figures


PROBES = {call.__name__: call for call in (touch, deal, scan_folder, scan_manifest, plan, open_shares, pack_shares)}


def alone(name: str, world: World) -> dict[str, float]:
    """Run one of the probes in a process of its own."""
    command = [
        sys.executable,
        "-m",
        __spec__.name,
        "--probe",
        name,
        str(world.folder),
        str(world.images),
        str(world.shares),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{name} {figures}", file=sys.stderr, flush=True)
    return figures


def main(folder: Path, images: int, counts: list[int]) -> str:
    from benchmarks.common.environment import environment

    worlds = [World(folder, images, count) for count in counts]
    folder.mkdir(parents=True, exist_ok=True)
    if not worlds[0].manifest.exists():
        alone("touch", worlds[0])
    asked = [(name, name.replace("_", " of a "), worlds[0]) for name in ("scan_folder", "scan_manifest")]
    asked.append(("plan", "scan of a folder, and what is missing", worlds[0]))
    for world in worlds:
        if not world.caches.exists():
            alone("deal", world)
        asked.append(("open_shares", f"open {world.shares} shares as one", world))
        asked.append(("pack_shares", f"pack {world.shares} shares", world))
    lines = [
        "# Listing, opening and packing many images",
        "",
        f"`python -m benchmarks.speed.listing FOLDER --images {images} --shares {' '.join(map(str, counts))}`: "
        f"{images:,} names of {len(key(0))} bytes, caches of {DIM} numbers a row; n = 1, files in the page cache. "
        "Memory is what the process grew by at its peak, "
        "*anonymous* what of it are no pages of files, which the kernel may drop.",
        "",
        "| | seconds | of them CPU | MB | anonymous, MB | anonymous bytes a key |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, title, world in asked:
        figures = alone(name, world)
        each = 1e6 * figures["anonymous"] / images
        lines.append(
            f"| {title} | {figures['seconds']:.1f} | {figures['CPU']:.1f} | {figures['peak']:.0f} "
            f"| {figures['anonymous']:.0f} | {each:.0f} |"
        )
    return "\n".join([*lines, "", environment()]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        name, where, images, shares = sys.argv[2:]
        print(json.dumps(PROBES[name](World(Path(where), int(images), int(shares)))))
        raise SystemExit
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--shares", type=int, nargs="+", default=[16, 256])
    arguments = parser.parse_args()
    report = main(arguments.folder, arguments.images, arguments.shares)
    write_page(report, arguments.out)
