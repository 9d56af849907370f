"""Sessions that say little, or contradict each other: a clear line or a sound statement from every command."""

from pathlib import Path

import numpy as np
import pytest
from helpers import command_line
from helpers.planted import planted, write_cache
from helpers.sessions import decide

from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.session import open_session

pytestmark = pytest.mark.usefixtures("one_thread")
POSITIVE, NEGATIVE, SKIP = Choice.POSITIVE, Choice.NEGATIVE, Choice.SKIP
AUDIT, TRAIN = "audit cache.h5.review", "train-pu cache.h5 --labels cache.h5.review --method linear --penalty 0.01"
REPORT = "report cache.h5"


def skips(session, rows, y):
    for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, 20):
        decide(session, draw.row, SKIP)
    for row in rows[:30]:
        decide(session, row, SKIP)


def ranked_alone(session, rows, y):
    for row in rows[:60]:
        decide(session, row, POSITIVE if y[row] else NEGATIVE)


def every_image(session, rows, y):
    for row in rows:
        decide(session, row, POSITIVE if y[row] else NEGATIVE)


def contradictions(session, rows, y):
    for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, 60):
        decide(session, draw.row, POSITIVE if y[draw.row] else NEGATIVE)
    for row in rows[:60]:
        decide(session, row, POSITIVE if y[row] else NEGATIVE)
    for row in rows[:20]:  # another reviewer
        decide(session, row, NEGATIVE if y[row] else POSITIVE)


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(kind):
        X, s, y = planted(n=400, d=8, labelled=40, prior=0.12, seed=5, apart=1.5)
        with open_session(write_cache(Path("cache.h5"), X), s) as session:
            kind(session, [int(row) for row in np.argsort(-X[:, 0]) if session.state.untaken[row]], y)

    return make


ALL_DECIDED = "Error: all 400 rows are labelled; some must be unlabelled, or there is nothing to find"
SAID = [
    (ranked_alone, AUDIT, 0, "41 found. How many more is not known before the first random image."),
    (ranked_alone, TRAIN, 0, "after a review without random images the prior is too low"),
    (ranked_alone, REPORT, 0, "that of the number of hidden positives is too low"),
    (skips, AUDIT, 0, "0 found. Perhaps 5 more are hidden; at most 360, with 95 % confidence"),
    (
        skips,
        AUDIT,
        0,
        "(20 random images; 20 of them skipped or left out, which count as positive until they are decided)",
    ),
    (skips, TRAIN, 0, "estimated among the unlabelled, from held-out margins"),
    (every_image, AUDIT, 0, "43 found. Every image is decided."),
    (every_image, TRAIN, 1, ALL_DECIDED),
    (every_image, REPORT, 1, ALL_DECIDED),
    (contradictions, AUDIT, 0, "22 found. Perhaps 4 more are hidden; at most 60, with 95 % confidence"),
    (
        contradictions,
        TRAIN,
        0,
        "estimated among the unlabelled, from 60 images that the review drew at random",
    ),
    (contradictions, REPORT, 0, "look again at 17 labels that the model doubts"),
]


@pytest.mark.parametrize(("kind", "command", "code", "said"), SAID)
def test_every_command_says_what_such_a_session_is_worth(made, kind, command, code, said):
    made(kind)
    ended = command_line.run(command, code)
    assert said in (ended.stderr if code else ended.stdout)
    if code:
        assert ended.stderr.count("\n") == 1 and not ended.stdout
