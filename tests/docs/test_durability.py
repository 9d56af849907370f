"""The tests that docs/durability.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/durability.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py|…)(?:::(\w+))?`", PAGE)


def test_every_file_and_test_that_the_page_names_exists():
    defined = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    everywhere = "".join(defined.values())
    missing = []
    for file, test in NAMED:
        path = ROOT / file if file.startswith("docker/") else ROOT / "tests" / file
        if file != "…" and not path.is_file():
            missing.append(file)
        elif test and f"def {test}(" not in (everywhere if file == "…" else path.read_text()):
            missing.append(f"{file}::{test}")
    assert len(NAMED) > 50 and not missing
