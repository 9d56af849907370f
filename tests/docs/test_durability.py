"""The tests that docs/durability.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/durability.md").read_text()))


def test_every_file_that_the_page_names_exists():
    places = [ROOT / file if file.startswith("docker/") else ROOT / "tests" / file for file in NAMED]
    assert len(NAMED) > 25 and [str(place) for place in places if not place.is_file()] == []
