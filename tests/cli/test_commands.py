import json
import re
import shlex
import shutil
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers.code_blocks import parse
from helpers.command_line import ANY_RUNTIME, BROKEN, ENCODER, HIDDEN, LABELLED, REST, SMALL, run, run_json, table
from PIL import Image

from pucache import EmbeddingCache, PULinearClassifier
from pucache.cli.main import SENTENCES, main
from pucache.cli.removed import REMOVED
from pucache.storage.file_kinds import MARK

pytestmark = pytest.mark.usefixtures("one_thread")


COMMAND_TABLE = Path(__file__).parents[2] / "docs/reference/commands.md"
N = LABELLED + HIDDEN + REST


def test_embed_tells_what_it_did_and_did_not(world, embedded):
    assert (embedded["rows"], embedded["computed"], embedded["written"]) == (N, N, True)
    assert list(embedded["failures"]) == [BROKEN] and embedded["ignored"] == {".docx": 1}
    assert embedded["encoder"].startswith(f"timm:{ENCODER} (64-d, weights ")
    again = run("embed {w}/images {w}/cache.h5 --strict" + SMALL, 3, w=world).stdout
    for words in (f"{N} rows", "nothing had changed", f"unchanged {N}", "failed 1", repr(BROKEN), "1 .docx"):
        assert words in again


def test_info_and_verify_tell_of_the_cache(world, embedded):
    told = run_json("info {w}/cache.h5", w=world)
    assert told["rows"] == N and told["failures"] == 1 and told["encoder"]["dim"] == 64
    assert [file["rows"] for file in told["files"]] == [N]
    assert BROKEN in run_json("info {w}/cache.h5 --failures", w=world)["failures"]
    assert "not an image" in run("info {w}/cache.h5 --failures", w=world).stdout
    verified = {"whole": True, "rows": N, "files": [f"{world}/cache.h5"], "damage": []}
    assert run_json("verify {w}/cache.h5", w=world) == verified
    assert "whole" in run("verify {w}/cache.h5", w=world).stdout


def test_one_row_is_told_in_the_singular(here):
    np.save("x.npy", np.ones((1, 4), "f4"))
    for verb in (
        "import-embeddings x.npy c.h5",
        "info c.h5",
        "verify c.h5",
        "pack c.h5 --out d.h5",
        "export c.h5 e.parquet",
    ):
        assert ": 1 row" in (said := run(verb).stdout) and "1 rows" not in said


def test_train_needs_no_prior_and_names_twins(world, embedded, here):
    shutil.copy(world / "cache.h5", "c.h5")
    keys = EmbeddingCache("c.h5").keys
    Path("few.txt").write_text("".join(f"{key}\n" for key in keys if key.startswith("red/"))[: 8 * 12])
    ended = run("train-pu c.h5 --positives few.txt --twins 0.99 --threshold recall=0.9 --json")
    told = json.loads(ended.stdout)
    assert told["prior"] is None and told["prior_estimate"] is None and "at least 10" in told["note"]
    assert told["threshold_rule"] == "recall=0.9" and told["loss"] == "imbupu"
    shown = run("train-pu c.h5 --positives few.txt --twins 0.99")
    assert "intervals take at least 10" in shown.stdout
    twins = told["found_by_twins"]
    assert twins and f"{len(twins)} unlabelled, the same picture as a labelled one: {twins[0]!r}" in shown.stderr


def test_sweep_priors_writes_a_table_and_a_picture_and_says_what_it_means(world, embedded, here):
    command = "sweep-priors {w}/cache.h5 --positives {w}/positives.txt --priors 0.1,0.2 --seeds 2"
    verdict, *_, written = run(command, w=world).stdout.splitlines()
    assert verdict.startswith("flat: imbupu gives the same model") and written == "wrote sweep.csv and sweep.png"
    rows = table(here / "sweep.csv")
    assert [(row["prior"], row["seed"]) for row in rows] == [("0.1", "0"), ("0.1", "1"), ("0.2", "0"), ("0.2", "1")]
    with Image.open("sweep.png") as picture:
        assert picture.format == "PNG" and picture.width > 1000


def test_train_writes_a_model_and_its_metrics(world, trained):
    assert (trained["labelled_positives"], trained["unlabelled"], trained["prior"]) == (LABELLED, N - LABELLED, 0.15)
    assert json.loads((world / "model.metrics.json").read_text()) == {"written_by": MARK} | trained
    assert trained["estimates"]["auc"] is None and trained["estimates"]["labels"] <= LABELLED
    assert trained["scar"]["verdict"] in ("alike", "too few") and trained["scar"]["labelled"] <= LABELLED
    model = PULinearClassifier.load(world / "model.safetensors")
    assert model.encoder_ == EmbeddingCache(world / "cache.h5").encoder
    neighbours = {name: value for name, value in model.neighbours_.to_json().items() if name != "tilt"}
    assert (trained["method"], trained["neighbours"]) == (model.method_, neighbours)


def test_train_says_what_threshold_and_posterior_are_and_whether_neighbours_count(world, trained, here):
    command = "train-pu {w}/cache.h5 --positives {w}/positives.txt --prior 0.15 --penalty 0.01 "
    said = run(command, w=world).stdout
    assert trained["neighbours"]["reason"] in said.splitlines()
    found = run(FOUND + "--model model.safetensors", w=world).stdout
    assert trained["neighbours"]["reason"] in found
    said = run(command + "--method linear --threshold 0.95 --deploy-prior 0.01", w=world).stdout
    assert "threshold 0.95 is a margin, as in the column of scores, and no probability" in said
    assert "the posterior is for a share of positives of 0.01 (--deploy-prior)" in said.splitlines()
    assert "neighbours" not in said and "labelled against found" not in said
    assert json.loads(Path("model.metrics.json").read_text())["neighbours"] is None


FOUND = "retrieve-positives {w}/cache.h5 --positives {w}/positives.txt "
FUSED = "classifier and neighbours, fused"
WAYS = {
    "": ("similarity (whitened)", "numpy on the CPU"),
    "--model {w}/with_neighbours.safetensors": (FUSED, "faiss on the CPU"),
    "--model {w}/model.safetensors --by classifier": ("classifier", None),
    "--by topk": ("similarity (topk)", "faiss on the CPU"),
}


def hidden_without_twins(cache):
    """Keys of the hidden positives that are not the same picture as a labelled one."""
    X = np.asarray(cache.X, np.float64)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    is_twin = (X @ X[:LABELLED].T).max(axis=1) >= 0.999  # the labelled are the first of the sorted keys
    return [cache.keys[row] for row in range(LABELLED, LABELLED + HIDDEN) if not is_twin[row]]


@pytest.mark.parametrize("how", WAYS)
def test_retrieve_finds_the_hidden_positives_first(indexed, here, how):
    told = run_json(FOUND + "-k 20 " + how, w=indexed)
    (by, search_by), is_fused = WAYS[how], WAYS[how][0] == FUSED
    assert (told.pop("note") is not None) == is_fused
    assert told.pop("search") == ("exact search" if is_fused else None)
    expected = {"out": "ranked.csv", "by": by, "search_by": search_by, "retrieved": 20, "unlabelled": N - LABELLED}
    assert told == expected
    rows = table(here / "ranked.csv")
    assert list(rows[0]) == ["rank", "key", "score"] and [row["rank"] for row in rows] == [str(n) for n in range(1, 21)]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    hidden = set(hidden_without_twins(EmbeddingCache(indexed / "cache.h5")))
    assert len(hidden) > HIDDEN / 2 and {row["key"] for row in rows[: len(hidden)]} == hidden
    kept = sorted(path.name for path in indexed.glob("cache.h5.*"))
    assert kept == ["cache.h5.neighbours"] * is_fused + ["cache.h5.whitening"] * (search_by is not None)


def test_a_review_sheet_is_written_beside_the_ranking(world, embedded, here):
    told = run_json(FOUND + "-k 5 --page review.html --images {w}/images", w=world)
    assert told["page"] == "review.html" and told["shown"] == 5 and told["without_picture"] == 0
    page = Path("review.html").read_text()
    assert all(row["key"] in page for row in table(here / "ranked.csv"))
    said = run(FOUND + "--k 5 --page again.html", w=world).stdout.splitlines()
    assert said[-1].startswith("wrote again.html: open it in a browser")


REVIEW = "key,label,reviewed\n" + "".join(f"red/{n:03}.png,1,0\n" for n in range(LABELLED))
REVIEW += "".join(f"red/{n:03}.png,1,1\n" for n in (8, 9, 10)) + "".join(f"rest/{n:03}.png,0,1\n" for n in range(12))


def test_known_negatives_change_training_and_are_told(world, embedded, here):
    Path("review.csv").write_text(REVIEW)
    asked = "train-pu {w}/cache.h5 --prior 0.15 --penalty 0.01 --method linear "
    without, told = (run(asked + given, w=world).stdout for given in ("--positives review.csv", "--labels review.csv"))
    assert "8 labelled positives, 52 unlabelled (of them known: 3 positive, 12 negative)" in told
    assert "(of them known: 3 positive, 0 negative)" in without
    assert PULinearClassifier.load("model.safetensors").n_negatives_ == 12


def test_scores_of_a_cache_and_of_its_images_are_the_same(world, trained, here):
    told = run_json("score {w}/model.safetensors {w}/cache.h5", w=world)
    assert (told["out"], told["rows"], told["failures"]) == ("cache.scores.csv", N, 1)
    rows = table(here / "cache.scores.csv")
    assert list(rows[0]) == ["key", "margin", "posterior", "label"]
    assert [row["key"] for row in rows] == list(EmbeddingCache(world / "cache.h5").keys)
    threshold = PULinearClassifier.load(world / "model.safetensors").threshold_
    for row in rows:
        assert row["posterior"] == "" and int(row["label"]) == (float(row["margin"]) > threshold)  # few labels
    assert told["positives"] == sum(int(row["label"]) for row in rows) > 0

    images = "score {w}/model.safetensors {w}/images --out new.csv"
    assert "1 image could not be read and got no score" in run(images, w=world).stdout
    assert (here / "new.csv").read_bytes() == (here / "cache.scores.csv").read_bytes()
    written = (here / "new.h5").stat()
    assert run_json(images, w=world)["cache"] == "new.h5"
    assert (here / "new.h5").stat() == written, "what is embedded is not embedded again"


def test_evaluate_holds_scores_against_the_truth(world, trained, here):
    run("score {w}/model.safetensors {w}/cache.h5 --out scores.csv", w=world)
    told = run_json("evaluate scores.csv --truth {w}/truth.csv", w=world)
    assert (told["n"], told["n_positive"], told["without_truth"]) == (N, LABELLED + HIDDEN, 0)
    assert told["auc"] > 0.95 and "precision@1000" not in told
    hidden = "evaluate scores.csv --truth {w}/truth.csv --positives {w}/positives.txt"
    assert run_json(hidden, w=world)["n_positive"] == HIDDEN
    Path("reviewed.csv").write_text("key,label\nred/000.png,1\nrest/000.png,0\n")
    for labels, left in {"--positives": N - 1, "--labels": N - 2}.items():  # a list of positives; what is decided
        assert run_json(f"evaluate scores.csv --truth {{w}}/truth.csv {labels} reviewed.csv", w=world)["n"] == left
    assert re.search(rf"^n_positive +{HIDDEN}$", run(hidden, w=world).stdout, re.MULTILINE)
    Path("all.csv").write_text("key,label\n" + "".join(f"{row['key']},1\n" for row in table(here / "scores.csv")))
    assert run_json("evaluate scores.csv --truth all.csv")["auc"] is None  # in JSON null, and no NaN


def test_progress_goes_to_stderr_and_leaves_json_alone(embedding, embedded):
    line = rf"^embedding {N + 1}/{N + 1}  ([\d,]+/s|[\d.]+ s each)  0 s left  encoder waited \d+%, 1 failed$"
    assert re.search(line, embedding.stderr, re.MULTILINE) and embedded["rows"] == N


def test_a_second_run_without_options_runs_the_encoder_as_the_first_did(world, here):
    first = run_json("embed {w}/images/red c.h5 --precision bf16" + SMALL, w=world)
    second = run_json("embed {w}/images/red c.h5" + ANY_RUNTIME, w=world)
    assert (first["computed"], second["computed"], second["written"]) == (LABELLED + HIDDEN, 0, False)
    told = run_json("info c.h5")["encoder"]
    assert (told["runtime"], told["precision"]) == ("torch", "bf16") and told["decoder"].startswith("pillow")


@pytest.mark.parametrize("verb", sorted(main.commands))
def test_a_command_and_each_option_has_help_with_examples_that_parse(verb):
    command = main.commands[verb]
    assert command.get_short_help_str(limit=200) == SENTENCES[verb]
    assert all(len(option.help or "") > 5 for option in command.params if isinstance(option, click.Option))
    _, *arguments = command.collect_usage_pieces(click.Context(command))
    words = re.findall(r"[A-Z]{3,}", " ".join(arguments))
    assert not [word for word in words if word not in command.help], "arguments that the help does not name"
    examples = re.findall(r"^ *pucache (.+?)(?: {2,}.*| *#.*)?$", command.help, re.MULTILINE)
    assert examples and all(example.startswith(verb) for example in examples)
    for example in examples:
        parse(shlex.split(example))
    assert re.search(rf"^\| `pucache {verb}\b", COMMAND_TABLE.read_text(), re.MULTILINE)


def test_help_fits_a_terminal_of_80_columns():
    for command in ([], *([verb] for verb in main.commands)):
        assert max(map(len, run(shlex.join([*command, "--help"])).stdout.splitlines())) <= 80


# --- what went, what is unknown, and what fails deep within -----------------------------------------

GONE = [(command, option, instead) for command, options in REMOVED.items() for option, instead in options.items()]


def options_of(commands):
    return {option for name in commands for one in main.commands[name].params for option in one.opts}


@pytest.mark.parametrize(("command", "option", "instead"), GONE, ids=str)
def test_what_went_is_one_line_that_names_what_works(command, option, instead):
    ended = run(f"{command} {option} 1", 2)
    assert ended.stderr == f"Error: {command} has no {option} any more: {instead}\n"
    named = {name for name in SENTENCES if re.search(rf"(?<![-\w]){name}(?![-\w])", instead)}
    assert set(re.findall(r"--[a-z-]+", instead)) <= options_of({command, *named})
    for name, value in re.findall(r"(--[a-z-]+) ([a-z]+)", instead):
        for one in main.commands[command].params:
            if name in one.opts and isinstance(one.type, click.Choice):
                assert value in one.type.choices


def test_another_unknown_option_or_value_is_told_with_the_usage():
    for wrong in ("embed --no-such-option", "retrieve-positives --by colour", "train-pu c.h5 --seed -1"):
        assert f"Usage: pucache {wrong.split()[0]}" in run(wrong, 2).stderr


@pytest.mark.parametrize("error", [np.linalg.LinAlgError("SVD did not converge"), torch._C._LinAlgError("eigh")])
def test_a_decomposition_that_fails_names_the_cache_as_the_cause(monkeypatch, error):
    def fails(path):
        raise error

    monkeypatch.setattr("pucache.cli.info.run", fails)
    ended = CliRunner().invoke(main, ["info", "c.h5"])
    assert ended.exit_code == 1 and "overwritten while it was read; pucache verify FILE tells" in ended.output
