"""Errors that say in one line why something is refused."""

import pytest


def one_line(kind, action, *arguments, **options):
    """The text of the error of this kind that an action ends with."""
    with pytest.raises(kind) as caught:
        action(*arguments, **options)
    text = str(caught.value)
    assert text and "\n" not in text
    return text
