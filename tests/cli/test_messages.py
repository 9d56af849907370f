"""What the commands refuse: one line that names what it is, what was expected and the remedy; nothing is touched."""

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import SMALL, refused, run
from helpers.files import snapshot
from helpers.hangs import HANG_SECONDS
from helpers.planted import planted, write_cache
from helpers.sources import archive

from pucache import EmbeddingCache, PULinearClassifier
from pucache.errors import CacheError

pytestmark = pytest.mark.usefixtures("one_thread")


LISTS = {  # files of labels as people write them
    "zeros.txt": bytes(3000),
    "absolute.txt": b"/abs/images/red/000.png\n/abs/images/rest/001.png\n",
    "prefix.txt": b"other/red/000.png\nother/red/001.png\n",
    "quoted.txt": b'"red/000.png"\n"red/001.png"\n',
    "table.txt": b"key;label\nred/000.png;1\nred/001.png;0\n",
    "mixed.csv": b"key,label\nred/000.png;1\nred/001.png;0\n",
    "empty.csv": b"",
    "plain.safetensors": b"\2\0\0\0\0\0\0\0{}",
    "no_rows.csv": b"key,margin,posterior,label\n",
    "kinds.csv": b"key,concept\nred/000.png,red\nrest/000.png,blue\n",
    "one_score.csv": b"key,margin,posterior,label\nred/000.png,1,0.5,1\n",
}


@pytest.fixture(scope="session")
def bad(world, trained):
    """Files that are wrong, each in its way."""
    bad = world / "bad"
    (bad / "nothing").mkdir(parents=True)
    (bad / "unreadable").mkdir()
    for name in ("a.jpg", "b.png"):
        (bad / "unreadable" / name).write_bytes(b"no image")
    (bad / "documents").mkdir()
    (bad / "documents" / "a.docx").write_bytes(b"")
    archive(bad / "nested.zip", {"inner.zip": b"PK"})
    (bad / "unknown.txt").write_text("\n".join(["u/1.png", "u/2.png", "red/000.png", "u/3.png", "u/4.png"]))
    for name, content in LISTS.items():
        (bad / name).write_bytes(content)
    whole = (world / "cache.h5").read_bytes()
    (bad / "truncated.h5").write_bytes(whole[: len(whole) // 2])
    (bad / "empty.h5").write_bytes(b"")
    (bad / "text.h5").write_text("no HDF5")
    at = whole.index(EmbeddingCache(world / "cache.h5").X[3].tobytes())
    (bad / "flipped.h5").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    (bad / "models").mkdir()
    shutil.copy(world / "model.safetensors", bad / "models")
    X, s, _ = planted(60, d=6, labelled=10)
    cache = write_cache(bad / "other.h5", X)
    model = PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, s)
    model.save(bad / "bare.safetensors")
    model.encoder_ = cache.encoder
    model.save(bad / "other.safetensors")
    (bad / "truncated.safetensors").write_bytes((world / "model.safetensors").read_bytes()[:-9])
    (bad / "scores.csv").write_text("key,score\na,1\n")
    write_cache(bad / "large.h5", np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32) * np.float32(1e30))
    np.save(bad / "X.npy", X)
    return bad


EMBED, TRAIN = "embed {w}/images", "train-pu {w}/cache.h5 --positives {w}/positives.txt"
PRIOR = "estimate-prior {w}/cache.h5 --positives {w}/positives.txt"
SWEEP = "sweep-priors {w}/cache.h5 --positives {w}/positives.txt"
LABELS = "labels {w}/cache.h5"
REPORT = "report {w}/cache.h5 --positives {w}/positives.txt"
FIND, SCORE = "retrieve-positives {w}/cache.h5", "score {w}/model.safetensors"
BAD = {  # command: (exit code, what the one line must tell)
    "embed {b}/nowhere old.h5": (1, "no such source: .*nowhere; expected a folder, a manifest"),
    "embed {b}/unreadable old.h5" + SMALL: (
        1,
        "old.h5 holds images of .*, and .*unreadable has others under their keys",
    ),
    REPORT + " --model {b}/none.safetensors": (1, "no such model: .*none.safetensors; pass what train-pu"),
    "report {w}/cache.h5 --positives {b}/nowhere.txt": (1, "no such file: .*nowhere.txt"),
    REPORT + " --images {b}/nowhere": (1, "no such source: .*nowhere"),
    REPORT + " --truth {b}/prefix.txt": (1, r"none of the 2 keys of .* \('.*'\) is one of the rows' keys \('"),
    TRAIN + " --positives {b}/nothing": (1, "a folder, and no file: .*nothing; expected .* or a glob on keys"),
    TRAIN + " --prior some": (2, "--prior must be a number or auto, got 'some'"),
    TRAIN + " --penalty much": (2, "--penalty must be a number or auto, got 'much'"),
    TRAIN + " --out models/": (1, "models/ names a folder; name a file to write instead"),
    TRAIN + " --solver adam": (2, "unknown solver 'adam'; use batch or sgd"),
    TRAIN + " --labels {w}/truth.csv": (2, "--positives is a list of positives, --labels a table .*; give one of them"),
    TRAIN + " --beside {b}/nothing": (2, "--beside is for labels of a review; name its folder with --labels"),
    TRAIN + " --twins 0": (2, "--twins must be a cosine above 0, such as 0.999, or above 1 .*got 0"),
    PRIOR + " --level 90": (2, "level must be in .0, 1."),
    SWEEP + " --priors 0.1,much": (2, "--priors must be numbers with commas between, got '0.1,much'"),
    SWEEP + " --priors 0.1,1e-6": (2, "priors must lie between 1e-05 and 0.999, got 1e-06"),
    SWEEP + " --out old.png": (2, "--out is the table, got the name of a picture, old.png; name a .csv file"),
    "embed {b}/nothing old.h5" + SMALL: (1, "no image in .*nothing; expected files such as .jpg"),
    "embed {b}/documents old.h5" + SMALL: (1, r"no image in .*\(1 file with other endings: 1 .docx\)"),
    "embed {b}/nested.zip old.h5" + SMALL: (1, r"1 .zip\); archives within an archive are not read: unpack it"),
    "embed {b}/unreadable new.h5" + SMALL: (1, "none of the 2 images in .*unreadable can be read.*nothing was written"),
    EMBED + " {b}/other.h5" + SMALL: (1, "other.h5 holds .* of imported:planted .*, not of timm:.*write another cache"),
    EMBED + " {b}/truncated.h5" + SMALL: (1, "truncated.h5 ends without .* checksums.*; restore it"),
    EMBED + " old.h5 --reuse {b}/other.h5" + SMALL: (
        1,
        "other.h5 holds embeddings of imported:planted.*; leave out --reuse",
    ),
    EMBED + " old.h5 --reuse {b}/none.h5" + SMALL: (1, "no such cache: .*none.h5"),
    EMBED + " old.h5 --encoder timm/resnet18.a1_in1k": (2, "use 'hf-hub:timm/resnet18.a1_in1k' for the repository of"),
    EMBED + " old.h5 --encoder https://hf.co/a-b/c_d/": (2, "use 'hf-hub:a-b/c_d' for the repository of this name"),
    EMBED + " old.h5 --encoder {w}/cache.h5": (1, "cache.h5 is a cache, not an encoder; pass a folder that pretrain"),
    EMBED + " old.h5 --encoder {b}/plain.safetensors": (1, "network it is; use --encoder timm:NAME --weights /"),
    EMBED + " old.h5 --encoder resnet50": (2, "unknown encoder 'resnet50'; use 'bundled', 'timm:NAME'"),
    EMBED + " old.h5 --encoder timm:resnt50": (2, "no model called 'resnt50'; did you mean resnet50"),
    EMBED + " old.h5 --weights w.pth": (1, "the bundled encoder has its own weights; use --encoder"),
    EMBED + " old.h5 --encoder timm:resnet50 --weights w.pth": (1, "no such weights file: w.pth"),
    EMBED + " old.h5 --device cpu --precision fp16": (2, "on the CPU use --precision fp32 or bf16"),
    EMBED + " old.h5" + SMALL + "--shard=3/2": (2, "there is no shard 3/2; expected I/N"),
    EMBED + " old.h5" + SMALL + "--shard=-1/2": (2, "shard expects I/N such as 2/8, got '-1/2'"),
    TRAIN + " --prior nan": (2, "prior must lie strictly between 0 and 1, got nan; it is a share"),
    "train-pu {w}/cache.h5 --labels {b}/nothing": (2, "nothing is not the folder of a review; .*pucache labels CACHE"),
    "train-pu {b}/nowhere.h5 --positives red/** --prior 0.1": (1, "no such cache: .*nowhere.h5"),
    **{
        FIND + f" --positives {{b}}/{name}": (1, expected)
        for name, expected in {
            "nowhere.txt": "no such file: .*nowhere.txt; expected a text file of keys, a table, or a glob",
            "zeros.txt": "zeros.txt is not a text file .it holds NUL bytes",
            "absolute.txt": "without the folders before them each names one image: .*labels --match-keys folders",
            "quoted.txt": "without the quotes or spaces around them each names one image: .*labels --match-keys quotes",
            "table.txt": "no line is one: save a table as .csv",
            "mixed.csv": "rows of .* have one column for 2 names; columns are separated by semicolons there",
        }.items()
    },
    FIND + " --words ''": (2, "words are empty; say what is looked for"),
    FIND + " --words dress": (1, "cache.h5 is of timm:.* which has no words: the bundled encoder and those"),
    FIND + " --words dress --model m": (2, "words and pictures rank by themselves; leave out model"),
    FIND + " --words dress --labels {b}/kinds.csv": (2, "words and pictures rank one list; leave them out with the"),
    FIND + " --like {b}/nowhere": (1, "no such source: .*nowhere"),
    FIND + " --like {w}/cache.h5": (1, "cache.h5 is a cache; give the pictures, or a .npy file of their vectors"),
    FIND + " --like {b}/X.npy": (1, r"X.npy holds float32 of shape .*; expected numbers of shape \(m, "),
    "review {w}/cache.h5 --words dress --session {b}/new": (1, "which has no words: the bundled encoder and those"),
    "review {w}/cache.h5 --like {b}/unreadable --session {b}/new": (1, "none of the 2 images .* can be read"),
    "review {w}/cache.h5 --words dress --labels {b}/kinds.csv": (2, "words and pictures begin a single review; leave"),
    FIND + " --labels {b}/kinds.csv --page page.html": (2, "--page"),
    FIND + " --labels {b}/kinds.csv --by fused": (2, "needs a model"),
    FIND + " --positives red/** -k 0": (2, "-k must be a whole number of at least 1, or all; got '0'"),
    FIND + " --positives red/** --by fused": (2, "ranking by fused needs a model; train one with train-pu"),
    FIND + " --positives red/** --diverse 1.5": (2, "diverse must lie between 0 and 1, got 1.5"),
    FIND + " --positives red/** --images {w}/images": (2, "--images is for --page; leave it out, or name a page"),
    FIND + " --positives red/** --by topk --model {w}/model.safetensors": (2, "ranking by topk uses no model"),
    LABELS: (1, "nothing is named to read; give tables of labels, or groups"),
    LABELS + " {w}/positives.txt --negatives {b}/nowhere.txt": (1, "no such file: .*nowhere.txt; expected a"),
    LABELS + " {w}/positives.txt --negatives red/**": (1, "positive and negative at once: 8 keys"),
    LABELS + " {w}/positives.txt --out memory://new.csv": (1, "is a URL; expected a file of this machine"),
    LABELS + " {w}/positives.txt --out new.parquet": (1, "end it in .csv"),
    LABELS + " {w}/positives.txt --match-keys x": (2, "must be auto, or of quotes"),
    LABELS + " {w}/positives.txt --encoding x": (2, "encoding .x. is not known"),
    LABELS + " {w}/positives.txt --groups nowhere": (1, "no such file: nowhere"),
    FIND + " --positives red/** --model {b}/other.safetensors": (1, "cache.h5 holds .* of timm.* expects imported"),
    FIND + " --positives red/** --model {b}/models": (1, "expected a model of one list, got that of "),
    REPORT + " --model {b}/models": (1, "expected a model of one list, got that of "),
    "report {w}/cache.h5 --labels {b}/kinds.csv --out new": (1, "new would be a page, and the folder of .*in .html"),
    "sweep-priors {w}/cache.h5 --labels {b}/kinds.csv": (1, "2 concepts where one list is expected; give those of one"),
    SCORE + " {b}/other.h5": (1, "other.h5 holds embeddings of imported:planted.*expects timm:"),
    "score {w}/images {w}/model.safetensors": (
        1,
        "images holds no CONCEPT.safetensors, .*; score takes the model before",
    ),
    "score {b}/models {w}/cache.h5 --neighbours {w}/cache.h5": (2, "for one model"),
    SCORE + " {b}/nowhere": (1, "no such source: .*nowhere"),
    SCORE + " {w}/images {w}/images": (2, "give one source of images, or any number of caches"),
    SCORE + " {w}/cache.h5 --cache c.h5": (2, "cache is for images that are to be embedded.*leave it out"),
    "score {b}/bare.safetensors {w}/cache.h5 --neighbours {w}/cache.h5": (1, "this model does not score with neighb"),
    SCORE + " {w}/cache.h5 --out old.txt": (2, "old.txt must end in .csv or .parquet"),
    "score {b}/bare.safetensors {w}/cache.h5": (1, "expects 6-d rows; .*cache.h5 holds timm:"),
    "score {b}/bare.safetensors {w}/images": (1, "trained on bare arrays, which pucache cannot make; score a cache"),
    "score {b}/other.safetensors {w}/images": (1, "trained on imported:planted.* cannot make; score a cache"),
    "score {b}/truncated.safetensors {w}/cache.h5": (1, "truncated.safetensors is damaged"),
    "score {w}/weights.safetensors {w}/cache.h5": (1, "not a pucache model; pass what train-pu wrote"),
    "evaluate {b}/scores.csv --truth {w}/truth.csv": (1, "not a table of scores.*expected columns key, margin"),
    "evaluate {w}/cache.h5 --truth {w}/truth.csv": (1, "is a pucache cache, not UTF-8 text; expected the CSV or Parq"),
    "evaluate {b}/empty.csv --truth {w}/truth.csv": (1, "empty.csv is not a table of scores .Empty.*key, margin"),
    "evaluate {b}/no_rows.csv --truth {w}/truth.csv": (1, "no_rows.csv has no rows, only the names of columns"),
    "evaluate {b}/one_score.csv --truth {b}/prefix.txt": (1, "none of the 2 keys .*without the folders before them"),
    "score {w}/cache.h5 {w}/model.safetensors": (1, "cache.h5 is a cache, not a model; pass what train-pu wrote"),
    "train-pu {w}/model.safetensors --positives red/**": (1, "model.safetensors is not a pucache cache .not an HDF5"),
    "review {w}/cache.h5 --positives red/** --session new --images nowhere": (1, "no such source: nowhere"),
    EMBED + " new --shards 2": (2, "--shards is for a Ray cluster; add --ray, or leave it out"),
    EMBED + " new --ray": (2, "--ray writes a folder of shards; say how many with --shards N, and name a folder"),
    EMBED + " new --ray --shards 2 --shard 1/2": (2, "--shard is for one file that this machine embeds; leave it out"),
    EMBED + " new --ray --shards 2 --device cuda:1": (2, "Ray shares out GPUs itself: .* auto, cpu or cuda,"),
    EMBED + " c.h5 --key-column id": (2, "a column of keys is named, which is for a Parquet file or a list"),
    EMBED + " c.h5 --category animal" + SMALL: (
        2,
        "a category of detections is named, which is for the JSON of COCO or MegaDetector; .* is none: leave it out, "
        "or give such a file as the source",
    ),
    EMBED + " c.h5 --images photos" + SMALL: (
        2,
        "a folder of images is named, which is for a list of images, or the JSON",
    ),
    EMBED + " c.h5 --encoding cp1252": (
        2,
        "an encoding is named, which is for a list of images, or a tar or ZIP file; .* leave",
    ),
    "export {w}/cache.h5 out.csv": (2, "must end in .parquet .a cache., or .onnx .a model."),
    "export {w}/cache.h5 out.parquet --images {w}/images": (2, "--images are for --thumbnails"),
    "export {w}/cache.h5 out.parquet --input uint8": (2, "--input is for a model"),
    "export {w}/model.safetensors out.onnx --thumbnails": (2, "are for a cache; leave them out"),
    "export {w}/cache.h5 out.onnx": (1, "cache.h5 is a cache, not a model"),
    "export {w}/cache.h5 out.parquet --session {w}/nowhere": (1, "nowhere"),
    "review {w}/cache.h5 --session {w}/truth.csv": (1, "truth.csv is a file; expected the folder of a review"),
    EMBED + f" old.h5{SMALL} --shard 1/100000": (1, "share 1 of 100000 holds none of the 61 .*fewer shares"),
    "train-pu {b}/large.h5 --positives 0000?.png": (1, "the squares of the embeddings overflow float32; scale them"),
    "evaluate {b}/nowhere.csv --truth {w}/truth.csv": (1, "no such scores: .*nowhere.csv"),
    "info ''": (2, "CACHE is empty, .*; name a file"),
    "import-embeddings '' old.h5": (2, "SOURCE is empty, .*; name a file"),
    "pack {w}/cache.h5 {b}/other.h5 --out old.h5": (1, "caches of different encoders cannot be mixed"),
    "pack {w}/cache.h5 {w}/cache.h5 --out old.h5": (1, "the key 'red/000.png' stands both in .*cache.h5 and"),
    "pack {b}/flipped.h5 --out old.h5": (1, "flipped.h5 is damaged: embeddings are not as they were written"),
    **{
        f"{command}": (1, "flipped.h5 is damaged: embeddings are not as they were written")
        for command in (
            SCORE + " {b}/flipped.h5",
            "train-pu {b}/flipped.h5 --positives red/**",
            "estimate-prior {b}/flipped.h5 --positives red/**",
            "sweep-priors {b}/flipped.h5 --positives red/**",
            "retrieve-positives {b}/flipped.h5 --positives red/**",
            "retrieve-positives {b}/flipped.h5 --positives red/** --model {w}/model.safetensors",
            "export {b}/flipped.h5 old.parquet",
        )
    },
    "import-embeddings {b}/X.npy old.h5 --keys {b}/unknown.txt": (1, "X.npy has 60 rows, and .*unknown.txt 5 keys"),
    **{
        f"info {{b}}/{name}": (1, expected)
        for name, expected in {
            "truncated.h5": "truncated.h5 ends without pucache's checksums.*; restore it",
            "empty.h5": r"empty.h5 is empty \(0 bytes\); remove it and make it again",
            "text.h5": r"text.h5 is not a pucache cache \(not an HDF5 file\)",
            "nothing": "no cache in folder .*nothing; expected .*, as embed writes",
        }.items()
    },
}


@pytest.mark.parametrize("command", BAD)
def test_what_cannot_be_is_one_line_with_the_remedy_and_touches_nothing(world, bad, here, command):
    code, expected = BAD[command]
    for name in ("model.metrics.json", "ranked.csv", "old.json"):
        Path(name).write_text("precious")
    shutil.copy(world / "model.safetensors", "model.safetensors")
    shutil.copy(world / "cache.h5", "old.h5")
    before = snapshot(world) | snapshot(here)
    told = refused(command, code, w=world, b=bad)
    assert re.search(expected, told), told
    assert snapshot(world) | snapshot(here) == before


OUTPUTS = {  # command: each has a second flaw, which shows if the output is looked at after the work
    "embed {b}/nowhere {out}": "{out}",
    "import-embeddings {b}/nowhere.npy {out} --keys {b}/unknown.txt": "{out}",
    "train-pu {b}/nowhere.h5 --positives x --prior 0.1 --out {out}": "{out}",
    "retrieve-positives {b}/nowhere.h5 --positives x --out {out}": "{out}",
    "retrieve-positives {b}/nowhere.h5 --positives x --page {out}": "{out}",
    "score {b}/nowhere {b}/nowhere.h5 --out {out}.csv": "{out}.csv",
    "score {w}/model.safetensors {b}/nowhere --cache {out}": "{out}",
    "pack {b}/nowhere.h5 --out {out}": "{out}",
    "demo {out}": "{out}",
}


@pytest.mark.parametrize("out", ["taken", "file/out"])
@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_that_cannot_be_written_is_found_before_the_work(world, bad, here, command, out):
    for name in ("taken", "taken.csv"):
        (here / name / "inside").mkdir(parents=True)
    (here / "file").write_text("precious")
    told = refused(command, w=world, b=bad, out=out)
    assert OUTPUTS[command].format(out=out) in told
    assert re.search("cannot write|is a directory|not the demo's", told), told
    assert (here / "file").read_text() == "precious"


def test_debugging_shows_the_error_itself(monkeypatch, here):
    monkeypatch.setenv("PUCACHE_DEBUG", "1")
    with pytest.raises(CacheError, match=r"no such cache: nowhere\.h5"):
        run("info nowhere.h5")


def test_verify_names_each_damaged_file(world, bad):
    ended = run("verify {b}/flipped.h5 {w}/cache.h5 {b}/truncated.safetensors {b}/nowhere.h5", 1, w=world, b=bad)
    assert ended.stdout == f"{world}/cache.h5: 60 rows, whole\n"
    errors = ended.stderr.splitlines()
    assert [line.startswith("Error: ") for line in errors] == [True] * 3
    flipped = "flipped.h5 is damaged: embeddings .*; restore it .* embed --verify"
    names = (flipped, "truncated.safetensors is damaged", "no such cache: .*nowhere.h5")
    assert all(re.search(name, line) for name, line in zip(names, errors, strict=True))


# --- the machine, in a process of its own ------------------------------------------------------


def in_shell(line, **places):
    command = f"{sys.executable} -m pucache"
    return subprocess.run(
        ["bash", "-c", line.format(pucache=command, **places)], capture_output=True, text=True, timeout=HANG_SECONDS
    )


@pytest.mark.parametrize("arguments", ["--help", "verify {w}/cache.h5 --json"])
def test_a_full_output_device_is_one_line(world, embedded, arguments):
    ended = in_shell("{pucache} " + arguments + " > /dev/full", w=world)
    assert (ended.returncode, ended.stderr) == (1, "Error: cannot write the standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", ["--help", "info none.h5"])
def test_a_closed_standard_output_is_one_line(here, arguments):
    ended = in_shell("cd {here}; {pucache} " + arguments + " >&-", here=here)
    assert ended.returncode == 1
    assert ended.stderr == "Error: the standard output is closed; name a file, or discard it with > /dev/null\n"
    assert in_shell("{pucache} " + arguments + " >&- 2>&- <&-").returncode == 1


def test_files_do_not_take_the_numbers_of_closed_streams(world, embedded, here):
    ended = in_shell("cd {here}; {pucache} pack {w}/cache.h5 --out packed.h5 <&- 2>&-", w=world, here=here)
    assert ended.returncode == 0 and EmbeddingCache(here / "packed.h5").verify() is None


def test_names_in_utf_8_are_read_in_a_locale_of_ascii(world, embedded, here):
    os.mkdir("Bäume")
    os.symlink(world / "cache.h5", "Bäume/犬.h5")
    environ = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "
    ended = in_shell(f"cd {here}; {environ}{{pucache}} info Bäume")
    assert ended.returncode == 0 and "Bäume/犬.h5" in ended.stdout, ended.stderr


def test_an_output_file_on_a_full_device_is_one_line(world, embedded, here):
    told = refused(FIND + " --positives red/** --out /dev/full", w=world)
    assert "/dev/full is not a regular file" in told
    find = "{pucache} retrieve-positives {w}/cache.h5 --positives 'red/00?.png' --out -"
    ended = in_shell(f"unset PYTHONUNBUFFERED; {find} > /dev/full", w=world)
    assert ended.returncode == 1 and re.fullmatch("Error: cannot write -: No space left on device.*\n", ended.stderr)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v is of Linux")
def test_a_limit_of_memory_is_one_line(world, embedded, here):
    ended = in_shell("ulimit -v 1000000; {pucache} " + TRAIN, w=world)
    assert ended.returncode == 1 and re.fullmatch("Error: out of memory.*\n", ended.stderr), ended.stderr


EARLY = """
import atexit, os, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))
import pucache.cli.start
sys.meta_path.insert(0, Strike())
atexit.register(lambda: print(hasattr(sys.modules.get("pucache.reviewing.session_labels"), "decided_keys")))
pucache.cli.start.run(["evaluate", "none.csv", "--truth", "none.csv", "--labels", "."])
"""


@pytest.mark.parametrize(
    ("module", "number", "is_whole"),
    [
        ("pucache.cli.main", signal.SIGINT, ""),  # the process ends at once
        ("click", signal.SIGTERM, ""),
        ("pucache.cli.evaluate", signal.SIGTERM, ""),
        ("h5py.h5f", signal.SIGINT, "True\n"),  # the outermost import is finished, as it may run native code
    ],
)
def test_an_interruption_while_modules_are_imported_is_one_line(here, module, number, is_whole):
    ended = subprocess.run([sys.executable, "-c", EARLY, module, str(int(number))], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (128 + number, is_whole), ended.stderr
    assert re.fullmatch("\\s*interrupted.*\n", ended.stderr), ended.stderr


def catches(process, number):
    """Whether a process has a handler for a signal."""
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return int(caught, 16) >> (number - 1) & 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_signal_at_any_moment_of_the_start_ends_it_in_one_line(world, embedded, here, seed):
    moment = random.Random(seed)
    number = moment.choice([signal.SIGINT, signal.SIGTERM])
    arguments = moment.choice([TRAIN, FIND + " --positives {w}/positives.txt", EMBED + " new.h5" + SMALL]).format(
        w=world
    )
    command = [sys.executable, "-m", "pucache", *shlex.split(arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not catches(process.pid, signal.SIGTERM):  # until Python runs, which no code of ours can say in a line
            time.sleep(0.001)
        time.sleep(moment.uniform(0, 3))
        process.send_signal(number)
        _, told = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode in (0, 128 + number) and "Traceback" not in told, (process.returncode, told)
