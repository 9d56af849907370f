import numpy as np
import pytest
from helpers.reviews import SilentTrainer, served
from helpers.sessions import decide, labels_of, pile_of

from pucache import audit, read_labels, review, session_labels, train_pu
from pucache.errors import EncoderError, SessionError
from pucache.estimates.label_requirements import LabelCount
from pucache.retrieval.query import Query
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.query_start import ENOUGH, begin_with, rank_by_query
from pucache.reviewing.session import open_session, read_session


@pytest.fixture
def pile(tmp_path):
    return pile_of(tmp_path)


@pytest.fixture
def ranking(pile, tmp_path):
    """A ranking by vectors, those of three rows of the pile."""
    np.save(tmp_path / "query.npy", pile.take(np.array([4, 20, 41])))
    return rank_by_query(pile, Query.of(like=tmp_path / "query.npy"), "cpu")


def test_images_come_in_the_order_of_the_query_and_are_no_random_draws(pile, ranking, tmp_path):
    with served(pile, tmp_path / "s", begin=False, audit_share=0.0) as (review, _):
        begin_with(review.session, ranking, "id")
        review.service.begin(None, 0, ranking)
        rows = review.queue.next("tab", 8)
        assert rows == np.argsort(-ranking.scores, kind="stable")[:8].tolist()
        for row in rows:
            decide(review.session, row)
        assert {entry.stream for entry in review.session.entries()} == {Stream.RANKED}
        assert audit(review.session).draws == 0


def test_the_classifier_is_trained_from_ten_positives_on(pile, ranking, tmp_path):
    trainer = SilentTrainer()
    with served(pile, tmp_path / "s", begin=False) as (review, _):
        service, session = review.service, review.session
        begin_with(session, ranking, "id")
        service.begin(trainer, 0, ranking)
        assert f"until {ENOUGH} positives are found (0 by now)" in ranking.sentence(0)
        for row in range(ENOUGH - 1):
            decide(session, row)
            decide(session, 30 + row, Choice.NEGATIVE)
            service._train()
        assert not trainer.submitted
        last = decide(session, 50)
        service._train()
        assert len(trainer.submitted) == 1 and trainer.submitted[0][0] == last.serial
        _, s, reviewed = trainer.submitted[0]
        assert ((s == 1) | (reviewed == 1)).sum() == ENOUGH


@pytest.mark.parametrize("kept", [True, False])
def test_a_review_goes_on_by_the_query_of_its_log(pile, ranking, tmp_path, kept):
    with served(pile, tmp_path / "s", begin=False) as (review, _):
        identifier = review.service.identifier
        begin_with(review.session, ranking, identifier)
        review.service.begin(None, 0, ranking)
        decide(review.session, 3)
    if kept:
        (tmp_path / "query.npy").unlink()
    else:
        (tmp_path / "s" / "ranking.npz").unlink()
    with open_session(pile, folder=tmp_path / "s") as session:
        again, lost = begin_with(session, None, identifier)
        np.testing.assert_allclose(again.scores, ranking.scores, atol=1e-6)
        assert again.query == ranking.query and not lost


def test_a_query_that_cannot_be_asked_again_is_said_and_stops_nothing(pile, ranking, tmp_path):
    with open_session(pile, folder=tmp_path / "s") as session:
        assert session.asked == ""
        for _ in range(2):
            begin_with(session, ranking, "id")
        (asked,) = session._log._select("SELECT * FROM queries")
        assert asked["after"] == 0, "it is recorded once"
    (tmp_path / "query.npy").unlink()
    with open_session(pile, folder=tmp_path / "s") as session:
        again, lost = begin_with(session, None, "id")
        assert again is None and lost.startswith("this review began with likeness to ") and "query.npy" in lost
    with read_session(pile, tmp_path / "s") as session:
        assert Query.from_json(session.asked) == ranking.query
        with pytest.raises(SessionError, match="opened for reading"):
            session.ask("{}")


def test_with_enough_positives_a_query_is_refused_and_that_of_the_log_is_over(pile, ranking, tmp_path):
    with open_session(pile, folder=tmp_path / "s") as session:
        begin_with(session, ranking, "id")
        for row in range(ENOUGH):
            decide(session, row)
        assert begin_with(session, None, "id") == (None, "")
        with pytest.raises(ValueError, match="10 positives are known, by which a classifier ranks"):
            begin_with(session, ranking, "id")
    twins = pile_of(tmp_path, twins=[(0, 1), (2, 3)], name="twins.h5")
    with open_session(twins, labels_of(60, range(ENOUGH))) as session:
        assert begin_with(session, ranking, "id")[0] is ranking, "eight pictures"


def test_wrong_questions_begin_no_session(pile, tmp_path):
    for error, asked in {
        ValueError: {"words": "a", "positives": read_labels(pile, {"one": ["000.png"], "two": ["001.png"]})},
        EncoderError: {"words": "a dress"},
    }.items():
        with pytest.raises(error):
            review(pile, session=tmp_path / "s", open_browser=False, **asked)
        assert not (tmp_path / "s").exists()


def test_no_estimate_rests_on_what_a_query_found(pile, ranking, tmp_path):
    with open_session(pile, folder=tmp_path / "s") as session:
        begin_with(session, ranking, "id")
        for row in range(40):
            decide(session, row, Choice.POSITIVE if row % 4 else Choice.NEGATIVE)
        s, reviewed = session.state.labels()
        assert s.sum() == 9 and (reviewed == 1).sum() == 21 and (reviewed == -1).sum() == 10
        assert not LabelCount.of(s).has_estimates
    with open_session(pile, folder=tmp_path / "s") as session:
        np.testing.assert_array_equal(session.state.labels(), (s, reviewed))
    assert not train_pu(pile, session_labels(pile, tmp_path / "s"), device="cpu").figures_.labels.has_estimates


def test_a_review_that_asks_later_stands_as_it_does_when_it_is_opened_again(pile, ranking, tmp_path):
    with open_session(pile, folder=tmp_path / "s") as session:
        for row in range(12):
            if row == 8:
                begin_with(session, ranking, "id")
            decide(session, row)
        labels = session.state.labels()
    with open_session(pile, folder=tmp_path / "s") as session:
        np.testing.assert_array_equal(session.state.labels(), labels)
