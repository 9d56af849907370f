"""The page of the suite: each figure beside its target and the limit of the device, measured in the same run."""

from collections.abc import Sequence
from statistics import median

from benchmarks.common.cells import table

TITLES = {
    "tests": "Tests",
    "heads": "Heads",
    "retrieval": "Retrieval",
    "embedding": "Embedding",
    "pretraining": "Pretraining",
    "counts": "Waits and launches of the emulated device",
}
HEAD = ["", "median (least to greatest, n)", "target", "limit", "of the limit", ""]
RATES = ("images/s", "GB/s", "Tflop/s")


def page(rows: Sequence[dict], *, command: str, problems: Sequence[str] = ()) -> str:
    """Markdown.

    Parameters
    ----------
    rows : sequence of dict
        Lines of the results, all of one commit, device and size.
    command : str
        That measured them.
    problems : sequence of str
        Slices that failed or were left out, and why.
    """
    parts = ["# CUDA", f"`{command}`. {_explanation(rows)}"]
    for group, title in TITLES.items():
        measured = [row for row in rows if row["group"] == group]
        if measured:
            parts += [f"## {title}", _table(measured)]
    if problems:
        parts += ["## Not measured", "\n".join(f"- {problem}" for problem in problems)]
    return "\n\n".join([*parts, *_where(rows)]) + "\n"


def _explanation(rows: Sequence[dict]) -> str:
    if not rows:
        return "Nothing is measured yet."
    size = rows[-1]["size"]
    text = (
        f"Heads: {size['rows']:,} x {size['dim']:,} planted rows in float16, {size['labelled']} labelled. First calls "
        "are stated apart; the other values are of the calls after them. *Limit*: what the device allows at best, by "
        "rates measured in the same run."
    )
    if not _is_full(rows[-1]):
        text += " These sizes are not those of the targets, or there is no GPU: targets are not met or missed here."
    return text


def _is_full(row: dict) -> bool:
    return row["device"].startswith("cuda") and (row["size"]["rows"], row["size"]["dim"]) == (33_000, 2048)


def _table(rows: Sequence[dict]) -> str:
    lines = []
    for row in rows:
        lines += [_line(figure, judged=_is_full(row)) for figure in row["figures"]]
    return table(HEAD, lines)


def _line(figure: dict, *, judged: bool) -> list[str]:
    values, unit = figure["values"], figure["unit"]
    middle = median(values)
    text = _with_unit(middle, unit)
    if len(values) > 1:
        text += f" ({_number(min(values))} to {_number(max(values))}, {len(values)})"
    return [figure["name"], text, _target(figure, middle, judged), *_limit(figure, middle), figure["note"]]


def _target(figure: dict, middle: float, judged: bool) -> str:
    target = figure["target"]
    if target is None:
        return ""
    text = f"{'at least' if figure['at_least'] else 'at most'} {_with_unit(target, figure['unit'])}"
    if judged or figure["unit"].startswith(("waits", "launches")):
        met = middle >= target if figure["at_least"] else middle <= target
        text += ": met" if met else ": **missed**"
    return text


def _limit(figure: dict, middle: float) -> list[str]:
    limit = figure["limit"]
    if limit is None or not middle:
        return ["", ""]
    share = middle / limit if figure["unit"] in RATES else limit / middle
    return [_with_unit(limit, figure["unit"]), f"{share:.0%}"]


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".strip()


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _where(rows: Sequence[dict]) -> list[str]:
    lines = []
    for row in rows:
        driver = row["hardware"].get("driver")
        text = row["where"] + (f" Driver {driver}." if driver else "")
        if text not in lines:
            lines.append(text)
    return lines
