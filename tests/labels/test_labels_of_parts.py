"""Labels of a cache of parts: keys of parts label them, those of images all their parts where that is asked for."""

import dataclasses

import numpy as np
import pytest
from helpers import cache_files

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import LabelError
from pucache.labels.concepts import open_concepts
from pucache.labels.labels import Labels
from pucache.storage.tables import LabelTable

PARTS = ["percent:0,0,50,100", "percent:50,0,50,100"]
KEYS = [f"{image}#xywh={part}" for image in ("a/1.jpg", "a/2.jpg", "b/a#xywh=1,2,3,4.jpg", "b/3.jpg") for part in PARTS]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def written(path, tiles):
    spec = dataclasses.replace(cache_files.SPEC, tiles=tiles)
    return EmbeddingCache(cache_files.write(path, KEYS, spec=spec))


@pytest.fixture
def cache(tmp_path):
    return written(tmp_path / "parts.h5", "1x2")


def positives(cache, named, negatives=None):
    return [cache.keys[row] for row in np.flatnonzero(Labels.read(cache, named, negatives).s)]


def test_keys_of_parts_label_parts(cache, tmp_path):
    assert positives(cache, write(tmp_path / "p.txt", KEYS[0], KEYS[5])) == [KEYS[0], KEYS[5]]
    assert positives(cache, "a/*#xywh=percent:0,*") == [KEYS[0], KEYS[2]]


@pytest.mark.parametrize("named", ["list", "t.csv", "a/*", "a/**", "**/[12].jpg"])
def test_images_label_their_parts_where_that_is_asked_for_alone(cache, tmp_path, named):
    write(tmp_path / "list", "a/1.jpg", "a/2.jpg", KEYS[0])
    write(tmp_path / "t.csv", "key,label", "a/1.jpg,1", "a/2.jpg,1", "b/3.jpg,0")
    path = str(tmp_path / named) if named in ("list", "t.csv") else named

    with pytest.raises(LabelError, match=r"names [23] whole images \('a/1.jpg', .* name the parts, .* --all-parts"):
        Labels.read(cache, path)
    assert positives(cache, LabelTable(path, all_parts=True)) == KEYS[:4]


def test_negatives_and_concepts_follow_the_same_rule(cache, tmp_path):
    table = write(tmp_path / "t.csv", "key,label", f'"{KEYS[0]}",1', "b/3.jpg,0")
    concepts = write(tmp_path / "c.csv", "key,concept", "a/1.jpg,ship", f'"{KEYS[6]}",dog')

    with pytest.raises(LabelError, match="--all-parts"):
        Labels.read(cache, table, table)
    with pytest.raises(LabelError, match="--all-parts"):
        open_concepts(cache, concepts)
    asked = LabelTable(table, all_parts=True)
    assert Labels.read(cache, asked, asked).negative.sum() == 2
    assert open_concepts(cache, LabelTable(concepts, all_parts=True)).labels["ship"].s.sum() == 2


def test_a_file_whose_name_has_the_mark_is_an_image_of_a_cache_of_whole_images(tmp_path):
    whole = written(tmp_path / "whole.h5", "")

    assert positives(whole, write(tmp_path / "p.txt", KEYS[0])) == [KEYS[0]]
    assert positives(whole, "a/*") == KEYS[:4]
