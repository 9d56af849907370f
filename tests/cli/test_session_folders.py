"""The folder of a concepts review, wherever the folder of a review is taken."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import printed as run
from helpers.planted import planted, write_cache
from helpers.sessions import decide

import pucache
from pucache import Labels, PULabels
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.serve import open_concept_sessions

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """cache.h5, and reviews of two concepts in the folder reviews; one of them has random images."""
    monkeypatch.chdir(tmp_path)
    X, s, y = planted(n=400, d=6, labelled=24, prior=0.2, seed=5, apart=0.8)
    cache = write_cache(Path("cache.h5"), X)
    labelled = np.flatnonzero(s)
    of = {name: PULabels.of(np.isin(np.arange(len(s)), labelled[at::2])) for at, name in enumerate(("red", "round"))}
    with ExitStack() as stack:
        sessions, _ = open_concept_sessions(cache, Labels(of), Path("reviews"), None, stack)
        for draw in sessions["red"].draw(np.random.default_rng(0), Stream.AUDIT, 60):
            decide(sessions["red"], draw.row, Choice.POSITIVE if y[draw.row] else Choice.NEGATIVE)
    return "reviews"


def test_audit_has_a_row_for_each_concept(folder):
    audits, failures = pucache.audit_concepts(folder)
    assert list(audits) == ["red", "round"] and not failures
    assert audits["red"].as_dict() == pucache.audit(f"{folder}/red").as_dict() and audits["red"].draws == 60
    lines = run(f"audit {folder}").splitlines()
    assert "hidden at most" in lines[0] and f"{audits['red'].hidden_high:,}" in lines[1] and "not known" in lines[2]
    result = json.loads(run(f"audit {folder} --json"))["concepts"]["red"]
    assert result["hidden_high"] == audits["red"].hidden_high and result["sentence"] == audits["red"].sentence


def test_train_pu_and_report_take_it_as_the_labels_of_concepts(folder):
    assert "wrote 2 models to models" in run(f"train-pu cache.h5 --labels {folder} --method linear --out models")
    estimates = {
        one["concept"]: one["prior_estimate"] for one in json.loads(Path("models/metrics.json").read_text())["concepts"]
    }
    assert estimates["red"]["method"] == "audit", "each rests on its own random images"
    models, alone = (
        pucache.train_pu("cache.h5", pucache.session_labels("cache.h5", of), method="linear")
        for of in (folder, f"{folder}/red")
    )
    assert models["red"].prior_ == alone.prior_
    assert "page for each of 2 concepts" in run(f"report cache.h5 --labels {folder} --model models")


def test_a_folder_without_sessions_and_sessions_of_other_caches_give_one_line(folder):
    Path("empty").mkdir()
    assert "no review session at empty: decisions.sqlite is missing" in run("audit empty", 1)
    for verb in ("train-pu", "report"):
        assert "empty is not the folder of a review" in run(f"{verb} cache.h5 --labels empty", 2)
    X, s, _ = planted(n=100, d=6, labelled=10, prior=0.2, seed=6)
    other = write_cache(Path("other.h5"), X)
    with ExitStack() as stack:
        open_concept_sessions(other, Labels({"wide": PULabels.of(s)}), Path(folder), None, stack)
    for command in (f"audit {folder}", f"train-pu cache.h5 --labels {folder}"):
        assert "different caches: red of cache.h5, round of cache.h5, wide of other.h5; name" in run(command, 1)


def test_a_session_that_is_lost_stops_no_other(folder):
    Path(folder, "round", "decisions.sqlite").write_bytes(b"x" * 5000)
    for command in (f"audit {folder}", f"train-pu cache.h5 --labels {folder} --method linear"):
        output = run(command, 3)
        assert "red" in output and "failed because" in output and "decisions.sqlite" in output
