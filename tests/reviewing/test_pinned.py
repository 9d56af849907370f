"""What is said of logs of earlier versions and of generated ones: `pinned.json` has it, so that each change is seen."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.hangs import eventually
from helpers.reviews import Log, served
from helpers.sessions import pile_of, session_of

from pucache import audit
from pucache.estimates.limit_sentences import sentences
from pucache.reviewing.log import LABELS, Choice, Stream

PINNED = Path(__file__).with_name("pinned.json")
OF_THIS_RUN = ("session", "ranking_version", "training")


def generated(seed, groups=400):
    """A log of random steps: looks, random images, rechecks, corrections, skips and undos."""
    rng, log = np.random.default_rng(seed), Log([1 + (group % 7 == 0) for group in range(groups)])
    truth, found = rng.random(groups) < 0.15, []
    for _ in range(80 * seed):
        kind, group = rng.random(), int(rng.choice(log.left))
        choice = Choice.SKIP if rng.random() < 0.04 else LABELS[int(not truth[group])]
        if kind < 0.3:
            log.draw(group, choice if rng.random() < 0.97 else None)
        elif kind < 0.4 and found:
            again = int(rng.choice(found))
            log.draw(
                again, Choice.NEGATIVE if seed == 2 and rng.random() < 0.1 else Choice.POSITIVE, stream=Stream.RECHECK
            )
        else:
            log.decide(group, choice)
            found += [group] * (choice is Choice.POSITIVE)
    return log


def said_of(version, folder):
    cache = pile_of(folder, 30, twins=[(10, 11)])
    session = session_of(version, cache)
    audited = audit(session)
    with served(cache, session) as (opened, _):
        eventually(lambda: opened.service.state()["statements"])
        state = {name: value for name, value in opened.service.state().items() if name not in OF_THIS_RUN}
    return {"audit": audited.as_dict() | {"statements": sentences(audited)}, "state": state}


@pytest.mark.parametrize("version", ["0.2", "0.3"])
def test_a_session_of_an_earlier_version_says_what_it_said(tmp_path, version):
    assert json.loads(json.dumps(said_of(version, tmp_path))) == json.loads(PINNED.read_text())[version]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_generated_log_says_what_it_said(seed):
    audited = generated(seed).limits()
    said = audited.as_dict() | {"statements": sentences(audited)}
    assert json.loads(json.dumps(said)) == json.loads(PINNED.read_text())[f"log {seed}"]
