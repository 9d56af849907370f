"""Table and picture of a sweep over priors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..storage.atomic import replacing
from ..storage.tables import table_writer
from .prior_sweep import Sweep


def write_sweep_table(result: Sweep, path: str | Path) -> None:
    """Write the rows of a sweep as CSV.

    Parameters
    ----------
    result : Sweep
    path : path or str
    """
    rows = [row.to_dict() for row in result.rows]
    with replacing(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        write = table_writer(stream)
        write(list(rows[0]))
        for row in rows:
            write([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()])


def plot_sweep(result: Sweep, path: str | Path) -> None:
    """Plot ranking, operating point and training over the prior: lines are means over seeds, dots are seeds.

    Where only intervals are stated, bands stand for the lines.

    Parameters
    ----------
    result : Sweep
    path : path or str
        PNG file to write.
    """
    from matplotlib.figure import Figure  # takes a third of a second to import

    sheet = Figure(figsize=(11, 4.8), layout="constrained")
    ranking = {"pauc": "PAUC", "auc": "AUC, estimated", "true_auc": "AUC, true", "true_average_precision": "AP, true"}
    point = {
        "f1": "F1, estimated",
        "true_f1": "F1, true",
        "share_predicted_positive": "called positive",
        "prior": "training prior",
    }
    training = {"held_out_risk": "nnPU risk, held out", "clamped": "clamp's activity"}
    panels = (("Ranking", ranking), ("Operating point (greatest expected F1)", point), ("Training", training))
    rows = [row.to_dict() for row in result.rows]
    for axes, (title, lines) in zip(sheet.subplots(1, 3), panels, strict=True):
        for name, label in lines.items():
            if name in rows[0]:
                _plot_line(axes, rows, name, label)
            elif f"{name}_low" in rows[0]:
                _plot_band(axes, rows, name, label)
        axes.set(title=title, xscale="log", xlabel="training prior")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        else:
            axes.text(0.5, 0.5, "too few labels", transform=axes.transAxes, ha="center")
        axes.grid(alpha=0.3)
    with replacing(Path(path)) as temporary:
        sheet.savefig(temporary, format="png", dpi=130)


def _plot_band(axes: Any, rows: list[dict[str, Any]], name: str, label: str) -> None:
    priors = sorted({row["prior"] for row in rows})
    ends = [[_mean(rows, f"{name}_{end}", prior) for prior in priors] for end in ("low", "high")]
    axes.fill_between(priors, *ends, alpha=0.3, label=f"{label}, interval")


def _mean(rows: list[dict[str, Any]], name: str, prior: float) -> float:
    return float(np.mean([row[name] for row in rows if row["prior"] == prior]))


def _plot_line(axes: Any, rows: list[dict[str, Any]], name: str, label: str) -> None:
    priors = sorted({row["prior"] for row in rows})
    means = [_mean(rows, name, prior) for prior in priors]
    (line,) = axes.plot(priors, means, label=label, linestyle=":" if name == "prior" else "-")
    if name != "prior":
        axes.plot([row["prior"] for row in rows], [row[name] for row in rows], ".", ms=3, color=line.get_color())
