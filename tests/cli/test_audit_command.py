import json
import shlex

import numpy as np
import pytest
from helpers.command_line import printed
from helpers.sessions import decide, labels_of, pile_of

import pucache
from pucache.estimates.limit_sentences import sentences
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.session import open_session


def run(*arguments, code=0):
    return printed(shlex.join(["audit", *map(str, arguments)]), code)


@pytest.fixture
def session(tmp_path):
    with open_session(pile_of(tmp_path, 80), labels_of(80)) as session:
        yield session


def reviewed(session, draws=20):
    for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, draws):
        decide(session, draw.row, Choice.POSITIVE if draw.row % 10 == 5 else Choice.NEGATIVE)


def test_the_audit_is_read_while_the_review_goes_on(session):
    reviewed(session)
    audited = pucache.audit(session)
    assert audited.as_dict() == pucache.audit(session.folder).as_dict() == session.limits().as_dict()
    sentence, assumed, *_, draws = run(session.folder).splitlines()
    assert sentence == audited.sentence and assumed.startswith("If no positive was overlooked: ")
    assert draws == f"20 drawn at random: {audited.positives} positive; 57 images not looked at"
    session.draw(np.random.default_rng(1), Stream.AUDIT, 2)
    decide(session, session.state.waiting()[0].row, Choice.SKIP)
    assert "21 drawn at random: " in run(session.folder) and "1 skipped; 56 images not" in run(session.folder)
    assert "1 of them skipped or left out, which count as positive until they are decided" in run(session.folder)


def test_json_holds_every_number(session):
    reviewed(session)
    result = json.loads(run(session.folder, "--json"))
    audited = pucache.audit(session)
    assert result == audited.as_dict() | {"statements": sentences(audited)}
    looser = json.loads(run(session.folder, "--json", "--level", "0.8"))
    assert looser["hidden_high"] <= result["hidden_high"] and looser["level"] == 0.8


def test_a_bad_argument_gives_one_line(session):
    assert "level must be between 0 and 1; got 1.5" in run(session.folder, "--level", "1.5", code=2)
