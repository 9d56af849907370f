"""No output of any command replaces a file that the command reads, or one of another kind."""

import shlex
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet
import pytest
from helpers.cache_files import write
from helpers.command_line import refused
from helpers.files import snapshot
from helpers.planted import planted
from PIL import Image

from pucache import PULinearClassifier
from pucache.cli.main import main
from pucache.reviewing.session import open_session

# Parameters of text that name no file; those of OUTPUTS are written, all others are read
WORDS = set(
    "device key_column label_column label_value label_separator undecided match_keys encoding concept_column concept "
    "loss penalty prior priors threshold k address shard tiles embedding_column name backbone reviewer host "
    "words not_words deploy_prior".split()
)
# Folders that a command owns: each refuses one that holds other files, or holds a log that nothing replaces
FOLDERS = {("demo", "folder"), ("pretrain", "run_dir"), ("review", "session"), ("audit", "session")}
LABELS = "--positives positives.txt"
OUTPUTS = {  # command and parameter: command lines, {out} of which is a link with the ending that the output must have
    ("train-pu", "out"): [
        f"cache.h5 {LABELS} --out {{out}}",
        "cache.h5 --labels reviewed --out {out}",
        "cache.h5 --labels negatives.csv --out {out}",
    ],
    ("labels", "out"): [
        "cache.h5 positives.txt --negatives negatives.csv --groups groups.csv --out {out}.csv",
        "cache.h5 concepts --groups groups.csv:site --out {out}.csv",
        "shards cache.h5.review --out {out}.csv",
        "cache.h5 photos.parquet --label-column kind --out {out}.csv",
    ],
    ("sweep-priors", "out"): [f"cache.h5 {LABELS} --out {{out}}.csv"],
    ("retrieve-positives", "out"): [
        f"cache.h5 {LABELS} --model model.safetensors --out {{out}}",
        "cache.h5 --labels labels.csv --model models --like photos --out {out}",
    ],
    ("retrieve-positives", "page"): [f"cache.h5 {LABELS} --images photos.csv --page {{out}}"],
    ("score", "out"): [
        "model.safetensors cache.h5 --neighbours pile.h5 --out {out}.csv",
        "models shards --out {out}.parquet",
        "model.safetensors photos --out {out}.csv",
        "model.safetensors 'packed/{{0..9}}.tar' --out {out}.csv",
    ],
    ("score", "cache"): ["model.safetensors photos --neighbours pile.h5 --cache {out}"],
    ("export", "out"): [
        "cache.h5 {out}.parquet --session cache.h5.review --thumbnails --images photos",
        "model.safetensors {out}.onnx",
    ],
    ("report", "out"): [
        f"cache.h5 {LABELS} --model model.safetensors --truth truth.csv --new-images pile.h5 --out {{out}}",
        "shards --labels cache.h5.review --beside reviewed --out {out}",
        "cache.h5 --labels labels.csv --model models --out {out}",
    ],
    ("embed", "cache"): ["photos.csv {out}", "photos.parquet {out}", "photos {out} --weights w.safetensors"],
    ("pack", "out"): ["cache.h5 pile.h5 --out {out}", "shards --out {out}"],
    ("import-embeddings", "cache"): ["X.npy {out} --keys keys.txt", "X.npy {out} --metadata photos.parquet"],
    ("pretrain", "preview"): ["photos new --weights run --positives positives.txt --preview {out}"],
}
LOG = ("decisions.sqlite", "decisions.sqlite-wal", "reviewed.csv", "pile.npz")
SESSION = [f"cache.h5.review/{name}" for name in LOG]
READ = {  # files that are read where a word of a command line names more than itself
    "cache.h5": ["cache.h5", "cache.h5.neighbours", "photos/a.png", *SESSION],
    "pile.h5": ["pile.h5", "photos.parquet"],
    "shards": ["shards/1.h5", "shards/2.h5", "photos.csv"],
    "photos": ["photos/a.png", "photos/b.jpg"],
    "photos.csv": ["photos.csv", "photos/b.jpg"],
    "photos.parquet#key=key": ["photos.parquet"],
    "packed/{0..9}.tar": ["packed/3.tar"],
    "concepts": ["concepts/deer.txt"],
    "cache.h5.review": SESSION,
    "reviewed": ["reviewed/decisions.sqlite"],
    "groups.csv:site": ["groups.csv"],
    "models": ["models/deer.safetensors"],
    "run": ["run/encoder.safetensors", "run/run.json", "run/log.csv"],
}
CASES = [(verb, line) for (verb, _), lines in OUTPUTS.items() for line in lines]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """One of everything that a command reads."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("photos", "shards", "concepts", "cache.h5.review", "models", "run", "packed"):
        (folder / name).mkdir()
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (8, 8)).save(folder / "photos" / name)
    pyarrow.parquet.write_table(pyarrow.table({"image": [b"x"], "kind": ["a"]}), folder / "photos.parquet")
    (folder / "photos.csv").write_text('path,kind\n"photos/b.jpg",b\n')
    cache = write(folder / "cache.h5", ["a.png", "b.jpg"], source=str(folder / "photos"))
    with open_session(cache, np.array([1, 0], np.int8), folder=folder / "reviewed"):
        pass
    write(folder / "pile.h5", ["b.png"], source=str(folder / "photos.parquet"))
    write(folder / "shards/1.h5", ["c.png"], source=str(folder / "photos.csv"))
    write(folder / "shards/2.h5", ["d.png"])
    X, s, _ = planted(60, d=4, labelled=20)
    np.save(folder / "X.npy", X)
    model = PULinearClassifier(prior=0.3, penalty=0.01, method="linear", device="cpu").fit(X, s)
    for name in ("model", "models/deer", "w", "run/encoder"):
        model.save(folder / f"{name}.safetensors")
    (folder / "cache.h5.neighbours").write_bytes(b'12345678{"__metadata__":{"pucache-neighbours":')
    (folder / "cache.h5.review/decisions.sqlite").write_bytes(b"SQLite format 3\0")
    for name in ("positives.txt", "keys.txt", "concepts/deer.txt"):
        (folder / name).write_text("a.png\n")
    for name in ("negatives.csv", "truth.csv", "run/log.csv", "cache.h5.review/reviewed.csv"):
        (folder / name).write_text("key,label\na.png,1\n")
    (folder / "labels.csv").write_text("key,concept\na.png,deer\n")
    (folder / "groups.csv").write_text("key,site\na.png,x\n")
    for name in ("cache.h5.review/decisions.sqlite-wal", "cache.h5.review/pile.npz", "packed/3.tar"):
        (folder / name).write_bytes(b"\x00\x01 binary")
    (folder / "run/run.json").write_text("{}\n")
    return folder


def options_of(verb):
    return [one for one in main.commands[verb].params if isinstance(one.type, click.types.StringParamType)]


def test_every_parameter_that_names_a_file_is_known_to_be_read_or_written():
    written = {(verb, one.name) for verb in main.commands for one in options_of(verb)} & (OUTPUTS.keys() | FOLDERS)
    assert written == OUTPUTS.keys() | FOLDERS
    for verb in main.commands:
        metavars = {one.name: one.metavar or "" for one in options_of(verb) if isinstance(one, click.Option)}
        looks_written = {name for name in ("out", "page", "preview") if name in metavars}
        assert {(verb, name) for name in looks_written} <= OUTPUTS.keys()
        assert not any("FILE" in metavars.get(name, "") for name in WORDS)


def forced(verb):
    return " --force" if "force" in {one.name for one in main.commands[verb].params} else ""


@pytest.mark.parametrize(("verb", "line"), CASES)
def test_nothing_that_is_read_is_replaced_even_where_it_is_forced(inputs, monkeypatch, tmp_path, verb, line):
    monkeypatch.chdir(inputs)
    before = snapshot(inputs)
    named = [word for word in shlex.split(line.format(out="")) if not word.startswith("--")]
    files = {file for word in named for file in READ.get(word, [word]) if Path(file).is_file()}
    assert files
    out, ending = tmp_path / "link", line.partition("{out}")[2].split(" ")[0]
    for file in sorted(files):
        link = Path(f"{out}{ending}")
        link.unlink(missing_ok=True)
        link.symlink_to(inputs / file)
        said = "where a pucache cache is to be written" if verb == "embed" else "is also an input"
        assert said in refused(f"{verb} {line}{forced(verb)}", out=out), file
    assert before.items() <= snapshot(inputs).items()


@pytest.mark.parametrize(("verb", "line"), CASES)
def test_a_file_of_another_kind_is_refused_and_stays_as_it_is(inputs, monkeypatch, tmp_path, verb, line):
    monkeypatch.chdir(inputs)
    out = tmp_path / f"precious{line.partition('{out}')[2].split(' ')[0]}"
    out.write_bytes(b"\x00 precious")
    told = refused(f"{verb} {line}", out=tmp_path / "precious")
    assert "precious" in told and "is a file of another kind, where a" in told
    assert out.read_bytes() == b"\x00 precious" and list(tmp_path.iterdir()) == [out]


def test_a_folder_of_models_keeps_what_is_of_another_kind(inputs, monkeypatch, tmp_path):
    monkeypatch.chdir(inputs)
    (tmp_path / "deer.safetensors").write_bytes(b"\x00 precious")
    told = refused("train-pu cache.h5 --labels labels.csv --out {out}", out=tmp_path)
    assert "deer.safetensors is a file of another kind, where a" in told
    assert (tmp_path / "deer.safetensors").read_bytes() == b"\x00 precious" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "line",
    [
        "retrieve-positives cache.h5 --positives positives.txt --out {out} --page {same}",
        "score model.safetensors photos --out {out} --cache {same}",
    ],
)
def test_two_outputs_of_one_command_are_two_files(inputs, monkeypatch, tmp_path, line):
    monkeypatch.chdir(inputs)
    told = refused(line, 2, out=tmp_path / "new.csv", same=f"{tmp_path}/../{tmp_path.name}/new.csv")
    assert "are one file" in told and told.endswith("; name two\n")
    assert not list(tmp_path.iterdir())
