import base64
import hashlib
import io
import socketserver
import threading

import numpy as np
import pytest
from helpers.pictured import cache_of, folder_of, shaded
from helpers.pictures import encode
from helpers.planted import write_cache
from helpers.sources import tar
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.pages.thumbnails import CHANGED, NO_SOURCE, thumbnails
from pucache.storage import retries


def shown(thumbnail):
    """The picture inside a thumbnail."""
    kind, data = thumbnail.uri.split(",")
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_thumbnails_come_in_the_order_of_the_rows_from_the_source_of_each_file(tmp_path):
    folder_of(tmp_path, {"a.png": encode(shaded(40, 20)), "b.png": encode(shaded(41, 20))}, "one")
    folder_of(tmp_path, {"c.png": encode(shaded(42, 20)), "d.png": encode(shaded(43, 20))}, "two")
    cache = EmbeddingCache(tmp_path / "one.h5", tmp_path / "two.h5")
    found = thumbnails(cache, np.array([3, 0, 2, 0]))
    assert [one.width for one in found] == [43, 40, 42, 40]
    assert [one.path for one in found][:2] == [str(tmp_path / "two/d.png"), str(tmp_path / "one/a.png")]
    assert {one.problem for one in found} == {""}


@pytest.mark.parametrize("size, expected", [((640, 320), (160, 80)), ((100, 400), (40, 160)), ((30, 20), (30, 20))])
def test_a_thumbnail_keeps_the_proportions_and_is_never_larger_than_the_original(tmp_path, size, expected):
    (one,) = thumbnails(folder_of(tmp_path, {"a.png": encode(shaded(*size))}), np.array([0]))
    assert shown(one).size == expected and (one.width, one.height) == size


def test_a_changed_file_is_shown_and_said_to_have_changed(tmp_path):
    cache = folder_of(tmp_path, {"a.png": encode(shaded(40, 20)), "b.png": encode(shaded(41, 20))})
    (tmp_path / "images/b.png").write_bytes(encode(shaded(50, 50)))
    same, changed = thumbnails(cache, np.arange(2))
    assert same.problem == "" and changed.problem == CHANGED and shown(changed).size == (50, 50)


def test_images_that_cannot_be_shown_say_why_and_hold_up_no_other(tmp_path):
    files = {"gone.png": b"x", "none.png": b"", "text.png": b"hello", "whole.png": encode(shaded(40, 20))}
    cache = folder_of(tmp_path, {**files, "cut.png": encode(shaded(400, 400))[:300]})
    (tmp_path / "images/gone.png").unlink()
    found = {cache.keys[row]: one for row, one in enumerate(thumbnails(cache, np.arange(5)))}
    assert "No such file" in found["gone.png"].problem
    assert "empty file" in found["none.png"].problem
    assert "not an image" in found["text.png"].problem
    assert "cannot be decoded" in found["cut.png"].problem and found["cut.png"].width == 400
    assert found["whole.png"].problem == "" and shown(found["whole.png"]).size == (40, 20)
    assert all(one.uri == "" for key, one in found.items() if key != "whole.png")
    assert all("\n" not in one.problem for one in found.values())


def test_imported_embeddings_have_no_source_until_one_is_named(tmp_path):
    cache = write_cache(tmp_path / "c.h5", np.ones((2, 3), np.float32), ["a.png", "b.png"])
    assert {one.problem for one in thumbnails(cache, np.arange(2))} == {NO_SOURCE}
    (tmp_path / "a.png").write_bytes(encode(shaded(40, 20)))
    here, gone = thumbnails(cache, np.arange(2), images=tmp_path)
    assert here.uri and here.problem == "" and "No such file" in gone.problem


def test_a_host_that_does_not_answer_is_not_asked_again_for_every_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    files = {f"{number:02}.png": encode(shaded(20, 10)) for number in range(60)}
    cache = folder_of(tmp_path, files)
    met = []

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self):
            met.append(self.request)  # and close the connection

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangUp) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        found = thumbnails(cache, np.arange(60), images=f"http://127.0.0.1:{server.server_address[1]}/photos")
        server.shutdown()
    assert all("tried 4 times" in one.problem for one in found)
    assert len(met) <= 4 * 16, "a series of four attempts, of four connections each, for each of the four threads"


def test_images_inside_a_tar_are_shown_and_have_no_path(tmp_path):
    files = {f"{number:02}.png": encode(shaded(20 + number, 10)) for number in range(12)}
    (tmp_path / "all.tar").write_bytes(tar(*files.items()))
    digests = {key: hashlib.sha256(data).digest() for key, data in files.items()}
    cache = cache_of(tmp_path / "c.h5", tmp_path / "all.tar", {**digests, "99.png": None})
    *found, absent = thumbnails(cache, np.arange(13))
    assert [one.width for one in found] == [20 + number for number in range(12)]
    assert {one.path for one in found} == {""} and {one.problem for one in found} == {""}
    assert absent.uri == "" and absent.problem == f"{tmp_path / 'all.tar'} does not hold it"
