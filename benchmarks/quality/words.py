"""Words in place of examples: looks until positives are found, and a review that begins with words.

    python -m benchmarks.quality.words CIFAR.h5 FASHION.h5 [--reviews N] [--rows N] [--out docs/results/words.md]

The caches are of the bundled encoder, with keys CLASS/NAME: the training images of CIFAR-10 and images of
Fashion-MNIST. Each class is looked for by its name, where it is 1 % (and 5 %) of a pile of all other classes, drawn
with seed 0. Nothing is labelled. A text encoder is needed (extra `words`). With --reviews N, reviews of the first N
classes of each set go on to four fifths of all positives, beside reviews that are given 20 examples.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import table
from benchmarks.common.command_line import write_page
from benchmarks.common.environment import environment
from benchmarks.common.row_cache import write_row_cache
from benchmarks.quality.review_pile import AHEAD, decide
from pucache import EmbeddingCache, retrieve_positives
from pucache.encoders.backbones import class_texts
from pucache.encoders.class_words import KNOWN
from pucache.encoders.sentence_encoder import SentenceEncoder
from pucache.labels.labels import PULabels
from pucache.retrieval.query import Query, QueryScorer
from pucache.reviewing.query_start import ENOUGH, positives_known
from pucache.reviewing.queue import NextImages
from pucache.reviewing.session import open_session
from pucache.training.ranker import Ranker

WANTED, EXAMPLES, GOAL = 20, 20, 0.8
SHARES = (0.01, 0.05)
FORMS, LIMITS = ("{}", "a {}"), (0.40, 0.44, 0.48, 0.52, 0.56)
# nouns, written down before their cosines were looked at: kinds of things that ImageNet has a class of, by other names
# where there are any, and kinds that it has none of
HELD = """
airplane, ambulance, ant, apple, arm chair, baby bed, backpack, ball of wool, balloon, banana, bathtub, beach, bear,
bee, beetle, bell, bicycle, bike helmet, bikini, binoculars, bird, boat, bookcase, bottle, bridge, broccoli, broom,
bus, butterfly, camel, camera, candle, canoe, car, car tyre, castle, cat, cell phone, chimpanzee, church, clock,
coffee, coffee mug, computer, corn, cowboy hat, crab, crocodile, cucumber, dog, dragonfly, drum, duck, eagle,
electric guitar, elephant, fire engine, fish, flute, fly, fountain, fox, frog, garbage truck, goat, goldfish, goose,
grasshopper, guitar, hammer, hamburger, hamster, helmet, horse, hot dog, ice cream, iron for clothes, jeans,
jellyfish, kangaroo, keyboard, knife, ladybird, laptop, lemon, leopard, lighthouse, lion, lipstick, lizard, lobster,
mailbox, microphone, monkey, motorbike, mountain, mushroom, necklace, orange, owl, palace, panda, parrot, penguin,
piano, pig, pillow, pineapple, pizza, polar bear, pumpkin, purse, rabbit, refrigerator, sailing boat, sandals,
saxophone, scorpion, screw, seal, shark, sheep, ship, shopping cart, skunk, snail, snake, sock, sofa, spider,
squirrel, starfish, stethoscope, stove, strawberry, suit, sunglasses, swan, syringe, table, teapot, television,
tent, tiger, toilet, tractor, traffic light, train, truck, turtle, umbrella, vase, violin, volcano, wallet, washing
machine, wedding dress, whale, wolf, worm, zebra
"""
NOT_HELD = """
anger, autumn leaves, bacteria, bamboo, banknote, bat, blood cell, bone fracture, bruise, carrot, cave painting,
cell division, chess game, child, chromosome, circuit board, city at night, clam, cloud, coin, cooking, corrosion,
crack in concrete, crowd, dance, deer, diamond, doctor, dolphin, donkey, drone, earring, earthquake damage, elderly
woman, escalator, explosion, face, factory, fern, fire, flag, flood, fog, foot, forest, freckles, funeral, galaxy,
giraffe, glacier, gold, graffiti, grass, hair, hand, handshake, handwriting, happiness, helicopter, human skeleton,
ice skating, ink drawing, justice, key, king, kiss, landslide, leaf, lightning, logo, map, meadow, meat, mildew,
milk, mold on bread, moon, moose, mosquito, moss, moth, needle, night sky, noise, northern lights, nurse, octopus,
oil painting, oil spill, onion, passport, person, planet, plant disease, police officer, portrait, pothole, protest,
radar image, railway track, rain, rainbow, raccoon, rhinoceros, rice, ring, river, road, robot, rose, running, rust,
sadness, satellite image, scar, scissors, seaweed, shadow, shrimp, signature, skin rash, skyscraper, sleeping man,
smile, smoke, snow, soldier, solar eclipse, spectrogram, spine, squid, stained tissue, staircase, stamp, statue,
steak, sugar, summer, sunflower, sunset, tattoo, teacher, tears, thumb, tomato, tooth decay, toothbrush, tornado,
tree, tulip, tumour, tunnel, ultrasound, virus, war, waterfall, water surface, weed in a field, wheat, window, wing,
winter, wood grain, woman, wound, wrinkles, x-ray of the chest, youth
"""


def pile_rows(y: np.ndarray, share: float) -> np.ndarray:
    """Rows of a pile in which a class has this share, ascending."""
    others, own = np.flatnonzero(~y), np.flatnonzero(y)
    count = min(len(own), round(share * len(others) / (1 - share)))
    return np.sort(np.append(others, np.random.default_rng(0).choice(own, count, replace=False)))


def looks_until(found: np.ndarray, wanted: int) -> int:
    """Looks in order after which so many of the images that are positive, bool (n,), are found."""
    return int(np.flatnonzero(found)[wanted - 1]) + 1


def by_words(cache: EmbeddingCache, classes: np.ndarray) -> Iterator[dict]:
    """What the name of each class finds."""
    for name in np.unique(classes).tolist():
        began = time.perf_counter()
        result = QueryScorer(Query.of(name))(cache, PULabels.of(np.zeros(len(cache), np.int8)))
        seconds, y, row = time.perf_counter() - began, classes == name, {"class": name, "note": result.note}
        for share in SHARES:
            rows = pile_rows(y, share)
            row[f"AP {share:.0%}"] = average_precision_score(y[rows], result.values[rows])
            if share == SHARES[0]:
                ranked = rows[np.lexsort((rows, -result.values[rows]))]
                row["looks"] = looks_until(y[ranked], WANTED)
                row["random"] = WANTED * (len(rows) + 1) / (int(y[rows].sum()) + 1)
        yield row | {"seconds": seconds, "scores": result.values}


def review_looks(cache: EmbeddingCache, y: np.ndarray, scores: np.ndarray | None, seed: int) -> int:
    """Looks until four fifths of all positives are found, by a query's scores first, or from examples."""
    draw = np.random.default_rng(seed)
    s = np.zeros(len(y), np.int8)
    if scores is None:
        s[draw.choice(np.flatnonzero(y), EXAMPLES, replace=False)] = 1
    ranker, looks, given = Ranker(cache), 0, PULabels.of(s) if scores is None else None
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(cache, given, folder=Path(folder) / "session", twins=None) as session,
    ):
        images = NextImages(session, draw)
        if scores is not None:
            session.ask(Query.of("a class").to_json())
        while positives_known(session) < GOAL * y.sum():
            if scores is not None and positives_known(session) < ENOUGH:
                images.set_ranking(scores, None, 0)
            else:
                result = ranker.fit(*session.state.labels())
                images.set_ranking(result.scores, result.posterior, looks)
            rows = images.next("simulated", AHEAD)
            decide(session, rows, y, looks)
            looks += len(rows)
    return looks


def reviews(cache: EmbeddingCache, classes: np.ndarray, found: list[dict]) -> Iterator[list]:
    for row in found:
        rows = pile_rows(classes == row["class"], SHARES[0])
        with tempfile.TemporaryDirectory() as folder:
            pile = write_row_cache(Path(folder) / "rows.h5", cache.take(rows), cache.encoder)
            y = classes[rows] == row["class"]
            words, examples = (review_looks(pile, y, scores, 0) for scores in (row["scores"][rows], None))
        yield [row["class"], int(y.sum()), words, examples, f"{words / (examples + EXAMPLES):.2f}"]


def section(title: str, path: Path, count: int) -> list[str]:
    cache = EmbeddingCache(path)
    classes = np.array([key.split("/")[0] for key in cache.keys])
    found = list(by_words(cache, classes))
    columns = ["looks until 20", "random, expected", *(f"AP, {share:.0%}" for share in SHARES)]
    lines = [
        [row["class"], row["looks"], f"{row['random']:.0f}", *(f"{row[f'AP {share:.0%}']:.3f}" for share in SHARES)]
        for row in found
    ]
    means = [f"{np.mean([row[f'AP {share:.0%}'] for row in found]):.3f}" for share in SHARES]
    lines.append(["mean", f"{np.mean([row['looks'] for row in found]):.0f}", "", *means])
    said = "; ".join(row["note"] for row in found)
    seconds = f"{np.median([row['seconds'] for row in found]):.1f} s a query of {len(cache):,} images (median)"
    text = [f"## {title}", "", table(["class", *columns], lines), "", f"What the words stand for: {said}.", ""]
    text += [f"Time: {seconds}.", ""]
    if count:
        head = ["class", "positives", "from words", "from 20 examples", "words / (examples + the 20)"]
        text += ["Looks of a review until four fifths are found (neighbours not counted):", ""]
        text += [table(head, list(reviews(cache, classes, found[:count]))), ""]
    return text


def known() -> list[str]:
    """How many nouns are said to be unknown, by the limit of the cosine to the nearest class."""
    encode, nouns = SentenceEncoder(), {"held": HELD, "not held": NOT_HELD}
    of_classes = encode(class_texts())
    cosines = {
        (name, form): (encode([form.format(" ".join(noun.split())) for noun in text.split(",")]) @ of_classes.T).max(1)
        for name, text in nouns.items()
        for form in FORMS
    }
    lines = [
        [
            f"{limit:.2f}",
            *(
                f"{np.mean(each < limit if name == 'held' else each >= limit):.1%}"
                for (name, _), each in cosines.items()
            ),
        ]
        for limit in LIMITS
    ]
    head = [
        "limit",
        *(
            f"{what}, “{form.format('noun')}”"
            for what in ("held, said to be unknown", "not held, said to be known")
            for form in FORMS
        ),
    ]
    counts = [len(cosines[name, FORMS[0]]) for name in nouns]
    text = (
        f"{counts[0]} nouns of which ImageNet has a class, and {counts[1]} of which it has none; the limit is {KNOWN}."
    )
    return ["## What is said to be unknown", "", text, "", table(head, lines), ""]


def times(cache: EmbeddingCache, rows: int) -> list[str]:
    """Seconds of a query of so many rows, which repeat those of a cache, beside the ranking by labelled positives."""
    with tempfile.TemporaryDirectory() as folder:
        X = np.resize(np.asarray(cache.take(np.arange(len(cache))), np.float16), (rows, cache.encoder.dim))
        large = write_row_cache(Path(folder) / "rows.h5", X, cache.encoder)
        del X
        examples = np.arange(EXAMPLES)
        np.save(Path(folder) / "like.npy", large.take(examples))
        labels = [large.keys[row] for row in examples]
        queries: dict[str, dict] = {
            "--words": {"words": "a frog"},
            "--like": {"like": Path(folder) / "like.npy"},
            "by similarity": {"positives": labels},
        }
        lines = []
        for name, query in queries.items():
            seconds = []
            for _ in range(3):
                began = time.perf_counter()
                retrieve_positives(large, k=100, **query)
                seconds.append(time.perf_counter() - began)
            lines.append([name, f"{min(seconds):.1f}", f"{np.median(seconds):.1f}"])
    text = f"Seconds of a query of {rows:,} rows of {cache.encoder.dim} numbers in float16, thrice:"
    return ["## Time", "", text, "", table(["query", "least", "median"], lines), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("fashion", type=Path)
    parser.add_argument("--reviews", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = [
        "# Words",
        "",
        "`python -m benchmarks.quality.words CIFAR.h5 FASHION.h5 --reviews 10 --rows 1000000`: " + PURPOSE,
        "",
    ]
    text += section("CIFAR-10", options.cifar, options.reviews)
    text += section("Fashion-MNIST", options.fashion, options.reviews)
    text += known()
    if options.rows:
        text += times(EmbeddingCache(options.cifar), options.rows)
    write_page("\n".join([*text, environment(), ""]), options.out)


PURPOSE = (
    "finding a class by its name alone, with the bundled encoder's ImageNet classes and the text encoder "
    "all-MiniLM-L6-v2. Temperature and number of classes were chosen on CIFAR-10, of which the first table is; nothing "
    "was chosen on Fashion-MNIST, whose grey pictures ImageNet hardly knows. Random: the mean until 20 are found."
)


if __name__ == "__main__":
    main()
