"""Figures of README.md, trust, encoders and classify are those of docs/results, as docs/claims.toml names them."""

from pathlib import Path

from tools import claims

ROOT = Path(__file__).parents[2]


def test_every_figure_of_the_texts_is_that_of_its_results_page():
    figures, faults = claims.check()
    moved = [
        f"{figure.page}: {figure.written} is now {figure.measured}   {figure.source}"
        for figure in figures
        if figure.written != figure.measured
    ]
    assert not faults + moved, "python tools/claims.py --write\n" + "\n".join(faults + moved)
    assert len(figures) > 50


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
