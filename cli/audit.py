"""`pucache audit`."""

from __future__ import annotations

from typing import Any

import click

from pucache.estimates.limit_sentences import sentences
from pucache.estimates.limits import Limits
from pucache.reviewing.audit import audit as run
from pucache.reviewing.audit import audit_concepts
from pucache.reviewing.session_folder import concept_folders

from . import options, output


@options.command("audit")
@click.argument("session")
@options.option("--level", default=0.95, help="Probability that the limits are right, in (0, 1).")
@options.beside
@options.as_json
def audit(session: str, level: float, beside: str | None) -> None:
    """Say how many positives a review has left hidden.

    The answer rests on the images that it drew at random.

    SESSION is the folder of a review, such as cache.h5.review, or of the reviews of concepts. The limits
    hold at every moment of the review at once, however often they are looked at, and whatever the model has
    learned.

    \b
    pucache audit cache.h5.review
    """
    if concept_folders(session):
        audits, failures = audit_concepts(session, level=level, beside=beside)
        results = {name: _result(one) for name, one in audits.items()}
        rows = {
            name: {
                "found": f"{one.found:,}",
                "hidden at most": f"{one.hidden_high:,}" if one.draws else "not known",
                "random images": f"{one.draws:,}",
            }
            for name, one in audits.items()
        }
        output.print_concepts({"concepts": results}, failures, rows)
        return
    audited = run(session, level=level, beside=beside)
    result = _result(audited)
    output.print_result(result, [*result["statements"], *_lines(audited)])


def _result(audited: Limits) -> dict[str, Any]:
    return audited.as_dict() | {"statements": sentences(audited)}


def _lines(audited: Limits) -> list[str]:
    if not audited.draws:
        return []
    outcomes = {"positive": audited.positives, "skipped": audited.skipped, "without a decision": audited.pending}
    named = ", ".join(f"{count:,} {name}" for name, count in outcomes.items() if count or name == "positive")
    lines = [f"{audited.draws:,} drawn at random: {named}; {audited.unknown:,} images not looked at"]
    if audited.rechecks:
        lines.append(f"{audited.rechecks:,} known positives shown again: {audited.missed:,} rejected")
    return lines
