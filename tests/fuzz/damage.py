"""Damaged bytes, drawn by hypothesis, and what must hold while they are read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63]
TOKENS = [
    '"', '""', ",", ",,", "\t", ";", "\r", "\n", "\r\n", "\0", "\ufeff", "\u2028", "\x85", "\x1b[31m", "\u202e", "é",
    "=cmd()", "-", "..", "../", "/", "\\", "://", "*", "**/", "?", "[", "[z-a]", "nan", "inf", "1e400", "-1", "0x10",
    "1_000", "true", "key", "path", "label", " ", "#", "%00", "x" * 300, "a" * 70_000,
]  # fmt: skip


@st.composite
def damaged(draw, samples, *, text=False):
    """A name of the samples, and its bytes after one to four damages, half of them near the front."""
    name, other = draw(st.sampled_from(sorted(samples))), samples[draw(st.sampled_from(sorted(samples)))]
    data = samples[name]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, draw(st.sampled_from([min(len(data), 256), len(data)]))))
        width = draw(st.sampled_from([1, 2, 4, 8, 64, 512]))
        kind = draw(st.sampled_from(["token", "token", "line", "flip", "cut"] if text else list(_KINDS)))
        data = _KINDS[kind](draw, data, at, width, other)[: 1 << 20]
    return name, data


def _line(draw, data, at, width, other):
    lines = data.split(b"\n")
    taken = lines.pop(at % len(lines))
    place = draw(st.integers(0, len(lines)))
    lines[place:place] = [taken] * draw(st.integers(0, 2))
    return b"\n".join(lines)


def _flip(draw, data, at, width, other):
    return data[:at] + bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[at : at + 1]) + data[at + 1 :]


def _number(draw, data, at, width, other):
    width = min(width, 8)
    number = draw(st.sampled_from([*NUMBERS, len(data), len(data) + 1])) % (1 << 8 * width)
    return data[:at] + number.to_bytes(width, draw(st.sampled_from(["little", "big"]))) + data[at + width :]


_KINDS = {
    "flip": _flip,
    "number": _number,
    "line": _line,
    "digit": lambda draw, data, at, width, other: data.replace(
        draw(st.sampled_from([b"0", b"1", b"2"])), draw(st.sampled_from([b"9", b"-", b"99999999999", b"1e999"])), 1
    ),
    "token": lambda draw, data, at, width, other: (
        data[:at] + draw(st.sampled_from(TOKENS)).encode() + data[at + draw(st.integers(0, 1)) :]
    ),
    "insert": lambda draw, data, at, width, other: data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:],
    "delete": lambda draw, data, at, width, other: data[:at] + data[at + width :],
    "repeat": lambda draw, data, at, width, other: data[:at] + data[at : at + width] * 3 + data[at + width :],
    "splice": lambda draw, data, at, width, other: data[:at] + other[at:],
    "cut": lambda draw, data, at, width, other: data[:at],
}


def fuzzed(examples):
    """Decorate a test that draws: so many examples, the same in every run; its `tmp_path` serves all of them."""
    allowed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    chosen = settings(max_examples=examples, derandomize=True, database=None, suppress_health_check=allowed)
    return lambda test: chosen(given(drawn=st.data())(test))


def accepted(refusals, read, *arguments, **options):
    """What a reader makes of its input; None where it refuses it by one of these errors, in one line."""
    try:
        return read(*arguments, **options)
    except refusals as error:
        assert str(error).strip() and not {"\n", "\r"} & set(str(error)), repr(error)
        return None


@contextlib.contextmanager
def untouched(folder):
    """Whatever happens within writes nothing below a folder."""
    before = _snapshot(folder)
    yield
    assert _snapshot(folder) == before


def _snapshot(folder):
    paths = [Path(root, name) for root, folders, files in os.walk(folder) for name in (*folders, *files)]
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths}


@contextlib.contextmanager
def bounded(most):
    """At most so many bytes of memory more than before are resident within, where the kernel tells it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the greatest size starts anew
    before = resident("VmRSS")
    yield
    grown = resident("VmHWM") - before
    assert not before or grown <= most, f"{grown / 1e6:,.0f} MB more, at most {most / 1e6:,.0f} MB are needed"


def resident(name):
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
    return 0


class RunsCode:
    """Unpickling this makes a folder: the trace of code that came out of a file."""

    def __init__(self, marker):
        self._marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self._marker,)


@pytest.fixture
def marker(tmp_path):
    """The folder that `RunsCode` would make; it must not be there at the end."""
    yield tmp_path / "code-was-run"
    assert not (tmp_path / "code-was-run").exists()
