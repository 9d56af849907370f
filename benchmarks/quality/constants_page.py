"""The page of `constants.py`: a table for each kind of constant."""

from collections.abc import Sequence

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.environment import environment
from benchmarks.quality.constant_table import FIT, INTERVAL, LINEAR, RULE, SITTING, Constant

AS_IT_IS, NO_NEIGHBOURS = "as it is", "neighbours off"
HEAD = ["constant", "of", "chosen on", "value", "tried"]
Row = list[str]


def change(values: Sequence[float], plain: Sequence[float], digits: int = 4) -> str:
    """Mean difference with its standard error."""
    difference = np.asarray(values, float) - np.asarray(plain, float)
    if len(difference) < 2:
        return f"{difference.mean():+.{digits}f}"
    return f"{difference.mean():+.{digits}f} ± {difference.std(ddof=1) / np.sqrt(len(difference)):.{digits}f}"


def described(constant: Constant, value: float) -> Row:
    name = f"`{constant.module}.{constant.name}`"
    return [name, constant.meaning, constant.chosen_on, f"{constant.value:g}", f"{value:g}"]


def rows_of(constants: Sequence[Constant], kind: str, figures) -> list[Row]:
    """A row for each value that is tried; `figures(label, constant)` are its last columns."""
    return [
        [*described(constant, value), *figures(constant.label(value), constant)]
        for constant in constants
        if constant.kind == kind
        for value in constant.values
    ]


def of_fits(cells: list[dict], label: str, plain: str) -> Row:
    return [
        change([cell["fits"][label][name] for cell in cells], [cell["fits"][plain][name] for cell in cells])
        for name in ("ap", "f1")
    ]


def of_rule(cells: list[dict], label: str) -> Row:
    """Tasks in which neighbours begin or cease to count, and those with another weight; change of the AP."""
    before, now = ([cell["weights"][name] for cell in cells] for name in (AS_IT_IS, label))
    turned = sum(bool(a) != bool(b) for a, b in zip(before, now, strict=True))
    other = sum(a != b for a, b in zip(before, now, strict=True))
    heads = [
        cell["fits"][AS_IT_IS if (weight > 0) == (shipped > 0) else NO_NEIGHBOURS]["ap"]
        for cell, weight, shipped in zip(cells, now, before, strict=True)
    ]
    gain = change(heads, [cell["fits"][AS_IT_IS]["ap"] for cell in cells])
    return [f"{turned} of {len(cells)}", f"{other} of {len(cells)}", gain]


def of_intervals(cells: list[dict], label: str) -> Row:
    varied = [cell["intervals"][label] for cell in cells]
    each = {name: np.array([one[name] for one in varied], float) for name in varied[0]}
    return [
        f"{each['prior'].mean():.0%}",
        f"{np.median(each['width']):.2f}",
        f"{each['recall'].mean():.0%}",
        f"{np.median(each['recall_width']):.2f}",
    ]


def of_sittings(cells: list[dict], label: str) -> Row:
    varied, plain = ([cell["found"][name] for cell in cells] for name in (label, AS_IT_IS))
    return [f"{np.mean(varied):.0f}", change(varied, plain, 1)]


def page(cells: dict[str, list[dict]], constants: Sequence[Constant]) -> str:
    """The whole page in markdown; parts without cells say so."""
    parts = [
        "# Constants",
        "`python -m benchmarks.quality.constants DIR --fashion SOURCE`: constants that were chosen by measurement on "
        "CIFAR-10 with the true labels, and what another value would change on Fashion-MNIST, all others as they "
        "are. Differences are to the shipped values, in the same tasks: mean ± standard error.",
    ]
    for title, key, section in (
        ("## The linear head and the distilled one", "fits", fits_section),
        ("## Whether neighbours count", "fits", rule_section),
        ("## Intervals", "intervals", intervals_section),
        ("## Sittings", "sittings", sittings_section),
    ):
        parts += [title, *(section(cells[key], constants) if cells[key] else ["Not measured."])]
    return "\n\n".join([*parts, environment()]) + "\n"


def tasks_of(cells: list[dict]) -> str:
    return ", ".join(dict.fromkeys(cell["task"] for cell in cells))


def fits_section(cells: list[dict], constants: Sequence[Constant]) -> list[str]:
    plain = {name: [cell["fits"][name] for cell in cells] for name in (AS_IT_IS, NO_NEIGHBOURS)}
    mean = {name: tuple(np.mean([one[figure] for one in of]) for figure in ("ap", "f1")) for name, of in plain.items()}
    settings = dict.fromkeys(f"{cell['labelled']} labelled at {cell['share']:.0%}" for cell in cells)
    return [
        f"{len(cells)} tasks, seed 0: {tasks_of(cells)} against the other classes, {' and '.join(settings)}, one in "
        "four of the unlabelled rows. AP is among the unlabelled, F1 on the test set at the model's own threshold, "
        f"set for the true share of positives there. As shipped: AP {mean[AS_IT_IS][0]:.4f}, F1 "
        f"{mean[AS_IT_IS][1]:.4f}; without neighbours (`--method linear`) {mean[NO_NEIGHBOURS][0]:.4f} and "
        f"{mean[NO_NEIGHBOURS][1]:.4f}. Constants of the penalty are varied in the linear head, and measured against "
        "it.",
        table(
            [*HEAD, "AP", "F1"],
            rows_of(constants, LINEAR, lambda label, _: of_fits(cells, label, NO_NEIGHBOURS))
            + rows_of(constants, FIT, lambda label, _: of_fits(cells, label, AS_IT_IS)),
        ),
    ]


def rule_section(cells: list[dict], constants: Sequence[Constant]) -> list[str]:
    return [
        "The same tasks. The classes of Fashion-MNIST are clusters, so neighbours should count; the "
        "[suite](suite.md) has tasks that cut across clusters. *Turned*: tasks in which the value changes "
        "whether neighbours count. *Other weight*: tasks in which it changes their weight in rankings.",
        table(
            [*HEAD, "turned", "other weight", "AP"], rows_of(constants, RULE, lambda label, _: of_rule(cells, label))
        ),
    ]


def intervals_section(cells: list[dict], constants: Sequence[Constant]) -> list[str]:
    counts = ", ".join(map(str, dict.fromkeys(cell["labelled"] for cell in cells)))
    shipped = of_intervals(cells, AS_IT_IS)
    head = [*HEAD, "prior: coverage", "width / truth", "recall: coverage", "width"]
    return [
        f"90 % intervals on {len(cells)} piles of Fashion-MNIST of 1,000 to 3,000 rows with {counts} labels, those "
        "of [prior](prior.md); margins of the linear head. Coverage of the prior and of recall among the unlabelled "
        "(at the threshold for F1), and median widths. "
        f"As shipped: prior covered in {shipped[0]}, width {shipped[1]} times the truth; recall covered in "
        f"{shipped[2]}, width {shipped[3]}.",
        table(head, rows_of(constants, INTERVAL, lambda label, _: of_intervals(cells, label))),
    ]


def sittings_section(cells: list[dict], constants: Sequence[Constant]) -> list[str]:
    shipped = of_sittings(cells, AS_IT_IS)[0]
    return [
        f"{len(cells)} sittings, one each of {tasks_of(cells)}: 20 labelled, 1 % of the unlabelled positive, one in "
        f"four of the rows, 150 looks, a fit every 10. Positives found as shipped: {shipped}, the mean.",
        table([*HEAD, "found", "change"], rows_of(constants, SITTING, lambda label, _: of_sittings(cells, label))),
    ]
