import errno

import pytest

from pucache.errors import CacheError
from pucache.storage import retries
from pucache.storage.retries import RetriesExhausted, error_text, is_permanent, with_retries


class HttpError(Exception):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class NoCredentialsError(Exception):
    """Named as botocore's."""


def test_a_store_that_hangs_is_not_asked_for_longer_than_a_minute(monkeypatch):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    clock = [0.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
    asked = []

    def hang():
        asked.append(clock[0])
        clock[0] += 40
        raise TimeoutError

    with pytest.raises(RetriesExhausted, match=r"TimeoutError \(tried 2 times\)"):
        with_retries(hang)
    assert asked == [0, 40]


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (CacheError("no"), True),
        (NoCredentialsError(), True),
        (OSError(errno.ELOOP, "loop"), True),
        (HttpError(501), True),
        (HttpError(429), False),
        (HttpError(503), False),
        (ConnectionResetError(), False),
    ],
)
def test_what_another_attempt_may_overcome_is_told_from_what_it_cannot(error, permanent):
    assert is_permanent(error) == permanent


def test_texts_of_errors_hold_no_secret_and_say_that_a_file_is_missing():
    told = error_text(OSError("GET https://u:hunter2@h/x?sig=hunter2: 500, memory://u:hunter2@h/x?token=hunter2"))
    assert told == "GET https://h/x 500, memory://h/x"
    assert error_text(FileNotFoundError("bucket/a.png")) == "no such file: bucket/a.png"
