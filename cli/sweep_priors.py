"""`pucache sweep-priors`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pucache.storage.file_kinds import TABLE
from pucache.training.sklearn_classifier import PULinearClassifier

from . import options, output
from .destinations import check_outputs, may_write_derived
from .progress import terminal_progress


@click.command("sweep-priors")
@options.caches
@options.labels()
@options.option("--priors", metavar="P,P,...", help="Priors to train at.  [default: 12 from 0.01 to 0.5]")
@options.option("--seeds", default=3, type=click.IntRange(min=1), help="Number of trainings per prior.")
@options.training
@options.twins
@options.truth
@options.option("--out", default="sweep.csv", metavar="FILE", help="Table to write, one row per prior and seed.")
@options.option("--no-plot", is_flag=True, help="Write no plot beside the table, as .png.")
@options.all_rows
@options.device
@options.seed
@options.force
@options.as_json
def sweep_priors(
    cache: tuple[str, ...],
    positives: Any,
    priors: str | None,
    seeds: int,
    seed: int,
    out: str,
    no_plot: bool,
    force: bool,
    **parameters: Any,
) -> None:
    """Train at many priors and seeds, all at once, and report what the prior changes.

    All metrics are of held-out margins: PU risk, PAUC, estimated F1, share predicted positive, and how
    often the non-negativity clamp was active. --truth adds the true metrics. PAUC and F1 take ten
    labelled positives, and thirty for single figures.

    \b
    pucache sweep-priors cache.h5 --positives found.txt --loss imbnnpu
    """
    from pucache.training.prior_sweep import PRIORS, plot_sweep, write_sweep_table
    from pucache.training.prior_sweep import sweep_priors as run

    plot_path = None if no_plot else Path(out).with_suffix(".png")
    if plot_path == Path(out):
        raise ValueError(f"--out is the table, got the name of a picture, {out}; name a .csv file")
    check_outputs(("out", out, TABLE), force=force)
    plot = plot_path is not None and may_write_derived(plot_path, "out")
    rows = {name: parameters.pop(name) for name in ("negatives", "twins", "all_rows", "truth")}
    result = run(
        cache,
        positives,
        PULinearClassifier(**parameters),
        **rows,
        priors=PRIORS if priors is None else _parse_numbers(priors),
        seeds=range(seed, seed + seeds),
        progress=terminal_progress(),
    )
    write_sweep_table(result, out, force=force)
    plotted = plot and plot_path is not None and plot_sweep(result, plot_path)
    written = f"wrote {out}" + (f" and {plot_path}" if plotted else "")
    if plot_path is not None and not plotted:
        written += f"; {plot_path} is not pucache's, and is left as it is: rename it, or --out another table"
    lines = [*options.sample_lines(result.sample, None), *_table(result.rows), result.verdict]
    fields = {name: getattr(result, name) for name in ("verdict", "penalty", "rows", "note")}
    fields["unlabelled_sample"] = None if result.sample is None else result.sample.to_json()
    output.print_result(fields, [*lines, *filter(None, [result.note]), written])


def _parse_numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--priors must be numbers with commas between, got {text!r}") from error


_COLUMNS = {
    "held_out_risk": "risk",
    "pauc": "PAUC",
    "f1": "F1",
    "share_predicted_positive": "positive",
    "clamped": "clamp",
    "true_f1": "true F1",
    "true_average_precision": "true AP",
}


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Means over the seeds, one line per prior."""
    columns = {name: title for name, title in _COLUMNS.items() if name in rows[0] or f"{name}_low" in rows[0]}
    widths = {name: 10 if name in rows[0] else 16 for name in columns}
    lines = ["   prior " + "".join(f"{title:>{widths[name]}}" for name, title in columns.items())]
    for prior in dict.fromkeys(row["prior"] for row in rows):
        rows_of_prior = [row for row in rows if row["prior"] == prior]
        lines.append(f"{prior:8.4g} " + "".join(f"{_cell(name, rows_of_prior):>{widths[name]}}" for name in columns))
    return lines


def _cell(name: str, rows: list[dict[str, Any]]) -> str:
    """Mean of a figure over the rows; where it is not stated, means of the ends of its interval."""
    if name in rows[0]:
        return f"{_mean(name, rows):.4f}"
    return f"{_mean(f'{name}_low', rows):.2f} to {_mean(f'{name}_high', rows):.2f}"


def _mean(name: str, rows: list[dict[str, Any]]) -> float:
    return float(sum(row[name] for row in rows) / len(rows))
