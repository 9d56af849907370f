"""Labels of a review in the commands, estimates that rest on its random images, the audit, and reviews of concepts."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import printed as run
from helpers.command_line import table
from helpers.planted import planted, write_cache
from helpers.sessions import decide, labels_of, pile_of

import pucache
from pucache import Labels, PULabels
from pucache.estimates.limit_sentences import sentences
from pucache.estimates.metrics import with_labels
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.serve import open_concept_sessions
from pucache.reviewing.session import open_session, read_session
from pucache.reviewing.session_labels import write_reviewed

pytestmark = pytest.mark.usefixtures("one_thread", "small_maps")
SESSION = "cache.h5.review"
LINEAR = "--method linear --penalty 0.01"
BIASED = "after a review without random images the prior is too low"
NO_FIGURES = "recall, precision and f1 after a review take at least 30 images"
RESTS = "images that the review drew at random and the labels, with 90% intervals:"
NEW_IMAGES = "of new images, if they are like those of the cache and as large a share is positive: recall 0."


@pytest.fixture
def review(tmp_path, monkeypatch):
    """Make cache.h5 and its session in an empty working directory, with decisions by rank and at random."""
    monkeypatch.chdir(tmp_path)

    def make(*, labelled=40, ranked=80, drawn=0):
        X, s, y = planted(n=1200, d=8, labelled=labelled, prior=0.12, seed=5, apart=0.7)
        cache = write_cache(Path("cache.h5"), X)
        with open_session(cache, s) as session:
            by_rank = np.argsort(-(X @ (X[y == 1].mean(0) - X.mean(0))))
            for row in [row for row in by_rank if session.state.untaken[row]][:ranked]:
                decide(session, int(row), Choice.POSITIVE if y[row] else Choice.NEGATIVE)
            for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, drawn):
                decide(session, draw.row, Choice.POSITIVE if y[draw.row] else Choice.NEGATIVE)
        return y, s

    return make


def test_labels_come_from_the_session_and_without_random_images_the_pile_has_no_figures(review):
    review()
    with read_session("cache.h5") as session:
        write_reviewed(session, "reviewed.csv")
    by_session = run(f"train-pu cache.h5 --labels {SESSION} {LINEAR}")
    assert by_session == run(f"train-pu cache.h5 {LINEAR}"), "the review beside the cache"
    run(f"labels cache.h5 {SESSION} --out labels.csv")
    for given in ("reviewed.csv", "labels.csv"):
        assert run(f"train-pu cache.h5 --labels {given} {LINEAR}") == by_session, given
    assert BIASED in by_session and NO_FIGURES in by_session.lower() and "recall 0" not in by_session


def test_with_random_images_the_figures_rest_on_them(review):
    y, s = review(drawn=150)
    lines = run(f"train-pu cache.h5 --labels {SESSION} --method linear")
    assert f"from 150 {RESTS}" in lines and BIASED not in lines and "AUC" not in lines.splitlines()[2]
    result = json.loads(Path("model.metrics.json").read_text())
    audited = pucache.audit(SESSION)
    assert repr(audited) == f"Limits({audited.sentence})"
    confirmed = result["confirmed_positives"]
    assert audited.positives >= 3 and result["prior_estimate"]["method"] == "audit"
    assert result["prior_estimate"]["low"] >= (confirmed + audited.hidden_low) / (s == 0).sum() - 1e-9
    assert result["prior_estimate"]["high"] <= (confirmed + audited.hidden_high) / (s == 0).sum() + 1e-9
    assert result["estimates"]["sources"] == "random images and labels"
    assert result["prior_estimate"]["low"] <= y[s == 0].mean() <= result["prior_estimate"]["high"]
    for name in ("recall", "precision", "f1"):
        for of in ("", "_of_new_images"):
            low, point, high = (result["estimates"][f"{name}{of}{end}"] for end in ("_low", "", "_high"))
            assert low <= point <= high


def test_what_the_review_says_of_new_images_holds_there_and_is_the_same_everywhere(review):
    review(drawn=150)
    lines = run(f"train-pu cache.h5 --labels {SESSION}")
    X, _, new = planted(n=20_000, d=8, labelled=0, prior=0.12, seed=6, apart=0.7)
    cache, model = write_cache(Path("new.h5"), X), pucache.PULinearClassifier.load("model.safetensors")
    margins = model.margins(cache.take(np.arange(len(X))))
    true = with_labels(new, margins, margins > model.threshold_)
    for name in ("recall", "precision", "f1"):
        low, high = model.figures_.of_new_images[name].interval
        assert low <= true[name] <= high
    stated = json.loads(run("score model.safetensors new.h5 --deploy-prior model --json"))["new_images"]["figures"]
    assert stated.startswith(NEW_IMAGES) and stated in lines
    assert NEW_IMAGES not in run("score model.safetensors new.h5 --deploy-prior .3"), "of another share"


@pytest.mark.slow
def test_the_report_rests_on_them_too(review):
    review(drawn=150)
    output = run("report cache.h5")
    said = "estimated among the unlabelled, from 150 images that the review drew at random and the labels, recall"
    assert said in output and "lean" not in output and NEW_IMAGES in output
    assert "A review has confirmed" not in output and "AUC" not in output
    numbers = json.loads(run("report cache.h5 --json"))
    audited = pucache.audit(SESSION)
    assert numbers["audit_draws"] == 150 and numbers["figures_of_new_images"] in output
    hidden = numbers["hidden_positives"]
    assert 0 <= hidden["low"] <= audited.hidden_low <= hidden["expected"], "it allows for wrong acceptances"
    assert (hidden["expected"], hidden["high"]) == (audited.perhaps, audited.hidden_high)
    page = " ".join(Path("report.html").read_text().split())
    of_new_images = numbers["figures_of_new_images"].replace("   ", ", ")
    assert audited.sentence in page
    assert f" These are figures of the unlabelled images; {of_new_images}." in page


def test_few_random_images_make_no_statement_worse_and_state_nothing_of_the_pile(review):
    review(drawn=4)
    assert pucache.audit(SESSION).positives < 3
    result = json.loads(run(f"train-pu cache.h5 --labels {SESSION} {LINEAR} --json"))
    with_images, figures = result["prior_estimate"], result["estimates"]
    with read_session("cache.h5") as session:
        write_reviewed(session, "reviewed.csv")
    by_labels = json.loads(run(f"train-pu cache.h5 --labels reviewed.csv {LINEAR} --json"))
    labels = by_labels["prior_estimate"]
    assert with_images["high"] - with_images["low"] <= 1.02 * (labels["high"] - labels["low"])
    assert result["prior"] is not None and NO_FIGURES in result["note"].lower()
    for name in ("recall", "precision", "f1"):
        assert figures[name] is figures[f"{name}_low"] is figures[f"{name}_high"] is None
        low, point, high = (figures[f"{name}_of_new_images{end}"] for end in ("_low", "", "_high"))
        assert low <= point <= high < low + 0.55, "by the images alone it would be anything"


def test_a_session_of_a_changed_cache_still_labels_and_has_no_audit(review):
    review(drawn=60)
    X, _, _ = planted(n=1200, d=8, labelled=40, prior=0.12, seed=5, apart=0.7)
    write_cache(Path("cache.h5"), X[:1100])
    lines = run(f"train-pu cache.h5 --labels {SESSION} {LINEAR}")
    assert BIASED in lines and "of new images" not in lines


def test_labels_come_from_one_place(review):
    review(ranked=0)
    write_cache(Path("other.h5"), np.ones((9, 4), np.float32), [f"x{row}" for row in range(9)])
    for verb in ("train-pu", "report", "estimate-prior", "sweep-priors", "retrieve-positives"):
        assert "there is no review at other.h5.review" in run(f"{verb} other.h5", code=2)
        assert "give one of them" in run(f"{verb} cache.h5 --labels {SESSION} --positives p.txt", code=2)
        assert "no such file: nowhere" in run(f"{verb} cache.h5 --labels nowhere", code=1)
        assert "holds none of its images" in run(f"{verb} other.h5 --labels {SESSION}", code=1)


def test_the_report_lists_doubted_decisions_and_without_random_images_no_number_of_hidden(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, s, y = planted(n=600, d=8, labelled=40, prior=0.12, seed=5, apart=2.0)
    cache = write_cache(Path("cache.h5"), X)
    score = X @ (X[y == 1].mean(0) - X.mean(0))
    by_rank = [int(row) for row in np.argsort(-score) if s[row] == 0]
    wrong = {by_rank[3], by_rank[-2]}  # a positive that is rejected, a negative that is accepted
    with open_session(cache, s) as session:
        for row in [*by_rank[:60], by_rank[-2]]:
            decide(session, row, Choice.POSITIVE if bool(y[row]) != (row in wrong) else Choice.NEGATIVE)
    (said,) = (line for line in run("report cache.h5").splitlines() if line.startswith("look again at "))
    assert "that this training doubts" in said and "; the review offers what its own rankings doubted" in said
    numbers = json.loads(run("report cache.h5 --json"))
    look_again = numbers["look_again"]
    assert {cache.keys[row] for row in wrong} <= set(look_again) and len(look_again) <= 20
    page = Path("report.html").read_text()
    part = page[page.index("Look again at these") : page.index("Labelled against found")]
    assert part.count("<bdi>accepted</bdi>") >= 1 and part.count("<bdi>rejected</bdi>") >= 1
    assert numbers["reviewed"]["confirmed"] and set(numbers["hidden_positives"].values()) == {None}
    page = " ".join(page.split())
    assert "worst first, by this training; the review offers what its own rankings doubted" in page
    assert "more positives are expected" not in page and "hidden positives is still very uncertain" not in page


def test_what_a_review_has_decided_is_left_out_of_an_evaluation_as_its_table_is(review):
    y, _ = review(drawn=30)
    run(f"labels cache.h5 {SESSION} --out decided.csv")
    keys = pucache.EmbeddingCache("cache.h5").keys
    pairs = list(zip(keys, y, strict=True))
    Path("truth.csv").write_text("key,label\n" + "".join(f"{key},{of}\n" for key, of in pairs))
    rows = (f"{key},{of - row % 3},,{of}\n" for row, (key, of) in enumerate(pairs))
    Path("scores.csv").write_text("key,margin,posterior,label\n" + "".join(rows))
    of_table = run("evaluate scores.csv --truth truth.csv --labels decided.csv")
    assert run(f"evaluate scores.csv --truth truth.csv --labels {SESSION}") == of_table
    assert of_table != run("evaluate scores.csv --truth truth.csv")


# --- the audit -------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path):
    with open_session(pile_of(tmp_path, 80), labels_of(80)) as session:
        for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, 20):
            decide(session, draw.row, Choice.POSITIVE if draw.row % 10 == 5 else Choice.NEGATIVE)
        yield session


def test_the_audit_is_read_while_the_review_goes_on_and_its_json_holds_every_number(session):
    audited = pucache.audit(session)
    assert audited.as_dict() == pucache.audit(session.folder).as_dict() == session.limits().as_dict()
    result = json.loads(run(f"audit {session.folder} --json"))
    assert result == audited.as_dict() | {"statements": sentences(audited)}
    looser = json.loads(run(f"audit {session.folder} --json --level 0.8"))
    assert looser["hidden_high"] <= result["hidden_high"] and looser["level"] == 0.8
    sentence, assumed, *_, draws = run(f"audit {session.folder}").splitlines()
    assert sentence == audited.sentence and assumed.startswith("If no positive was overlooked: ")
    assert draws == f"20 drawn at random: {audited.positives} positive; 57 images not looked at"
    session.draw(np.random.default_rng(1), Stream.AUDIT, 2)
    decide(session, session.state.waiting()[0].row, Choice.SKIP)
    said = run(f"audit {session.folder}")
    assert "21 drawn at random: " in said and "1 skipped; 56 images not" in said
    assert "1 of them skipped or left out, which count as positive until they are decided" in said
    assert "level must be between 0 and 1; got 1.5" in run(f"audit {session.folder} --level 1.5", 2)


# --- the folder of a review of concepts, wherever that of a review is taken ------------------------


@pytest.fixture
def reviews(tmp_path, monkeypatch):
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


def test_audit_has_a_row_for_each_concept(reviews):
    audits, failures = pucache.audit_concepts(reviews)
    assert list(audits) == ["red", "round"] and not failures
    assert audits["red"].as_dict() == pucache.audit(f"{reviews}/red").as_dict() and audits["red"].draws == 60
    lines = run(f"audit {reviews}").splitlines()
    assert "hidden at most" in lines[0] and f"{audits['red'].hidden_high:,}" in lines[1] and "not known" in lines[2]
    result = json.loads(run(f"audit {reviews} --json"))["concepts"]["red"]
    assert result["hidden_high"] == audits["red"].hidden_high and result["sentence"] == audits["red"].sentence


def test_train_pu_and_report_take_it_as_the_labels_of_concepts(reviews):
    assert "wrote 2 models to models" in run(f"train-pu cache.h5 --labels {reviews} {LINEAR} --out models")
    red, _ = json.loads(Path("models/metrics.json").read_text())["concepts"]
    assert red["prior_estimate"]["method"] == "audit", "each rests on its own random images"
    labels = pucache.session_labels("cache.h5", f"{reviews}/red")
    alone = pucache.train_pu("cache.h5", labels, method="linear", penalty=0.01)
    assert (red["concept"], red["prior"]) == ("red", alone.prior_)
    run("score models cache.h5 --out wide.csv")
    both = sum(row["red_label"] == row["round_label"] == "1" for row in table(Path("wide.csv")))
    said = json.loads(run(f"report cache.h5 --labels {reviews} --model models --json"))
    assert said["shared"] == [{"concepts": ["red", "round"], "images": both}] and both
    overview = Path("report.html").read_text()
    assert all(Path(page).is_file() and page in overview for page in ("report/red.html", "report/round.html"))


def test_a_folder_without_sessions_and_sessions_of_other_caches_give_one_line(reviews):
    Path("empty").mkdir()
    assert "no review session at empty: decisions.sqlite is missing; expected the folder" in run("audit empty", 1)
    X, s, _ = planted(n=100, d=6, labelled=10, prior=0.2, seed=6)
    other = write_cache(Path("other.h5"), X)
    with ExitStack() as stack:
        open_concept_sessions(other, Labels({"wide": PULabels.of(s)}), Path(reviews), None, stack)
    for command in (f"audit {reviews}", f"train-pu cache.h5 --labels {reviews}"):
        assert "different caches: red of cache.h5, round of cache.h5, wide of other.h5; name" in run(command, 1)


def test_a_session_that_is_lost_stops_no_other(reviews):
    Path(reviews, "round", "decisions.sqlite").write_bytes(b"x" * 5000)
    for command in (f"audit {reviews}", f"train-pu cache.h5 --labels {reviews} --method linear"):
        output = run(command, 3)
        assert "red" in output and "failed because" in output and "decisions.sqlite" in output
