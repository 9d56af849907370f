"""Numbers as text of six significant digits, a whole array at once: the bytes that ``f"{value:.6g}"`` gives."""

from __future__ import annotations

import numpy as np

DIGITS = 6
WORDS = 3  # words of eight bytes per number
_SMALLEST, _LARGEST = 1e-300, 1e300  # magnitudes that are scaled by powers of ten; Python formats the others
_MAX_EXPONENT = 302  # two more than those of the magnitudes above, as an estimated exponent may be off by one
# Scaling to 100,000 .. 1,000,000 rounds twice, which moves a value by less than 3e-10. A value nearer than this to a
# tie of two texts is formatted by Python, which rounds the exact value.
_TIE = 1e-6


def number_words(values: np.ndarray) -> np.ndarray:
    r"""Format numbers as ``%.6g``, each into 24 bytes of which the unused ones are NUL.

    The first word begins with an unused byte and holds the sign and the zeros before the first digit. The second
    holds the digits and the point, the third the exponent in its first five bytes. The text is what remains
    without the NULs.

    Parameters
    ----------
    values : ndarray of float32 or float64, (n,)

    Returns
    -------
    ndarray of uint64, (n, 3)
        Little-endian words: the first character of each is in its lowest byte.
    """
    values = np.asarray(values, np.float64)
    magnitude = np.abs(values)
    zero = magnitude == 0
    ordinary = (magnitude >= _SMALLEST) & (magnitude < _LARGEST)
    exponent, digits, tied = _significant_digits(np.where(ordinary, magnitude, 1.0))
    layout = exponent + _MAX_EXPONENT
    words = np.empty((len(values), WORDS), np.uint64)
    words[:, 0] = _BEFORE[layout] | np.where(np.signbit(values), _MINUS, np.uint64(0))
    words[:, 1] = np.where(zero, np.uint64(ord("0")), _with_point(_digit_text(digits), layout))
    words[:, 2] = _AFTER[layout]
    for row in np.flatnonzero(tied | ~(ordinary | zero)).tolist():
        words[row] = np.frombuffer(f"\0{values[row]:.6g}".encode().ljust(8 * WORDS, b"\0"), "<u8")
    return words


def _significant_digits(magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decimal exponents and leading digits (100,000 to 999,999), rounded, and which values are too near to a tie."""
    exponent = np.floor(np.log10(magnitude)).astype(np.int64)
    scaled = magnitude * _POWERS[_MAX_EXPONENT - exponent]
    digits = np.rint(scaled)
    tied = np.abs(np.abs(scaled - digits) - 0.5) < _TIE
    carried = digits >= 10**DIGITS  # 999,999.7, or an exponent that was estimated one too low
    return exponent + carried, np.where(carried, 10 ** (DIGITS - 1), digits).astype(np.uint32), tied


def _digit_text(digits: np.ndarray) -> np.ndarray:
    """Text of numbers of six digits without zeros at the end, uint64."""
    high = digits // np.uint32(1000)
    low = digits - high * np.uint32(1000)
    return np.where(low == 0, _STRIPPED[high], _THREE_DIGITS[high]) | _STRIPPED[low] << np.uint64(24)


def _with_point(text: np.ndarray, layout: np.ndarray) -> np.ndarray:
    """Put the point among the digits, and zeros up to it."""
    bits = _POINT_BITS[layout]
    fraction = text >> bits
    point = np.where(fraction != 0, _POINT[layout], np.uint64(0))
    return (text & _WHOLE[layout]) | _WHOLE_ZEROS[layout] | point | fraction << (bits + np.uint64(8))


# --- tables ------------------------------------------------------------------------------------


def _word(text: str) -> int:
    return int.from_bytes(text.encode(), "little")


def _table(entries: list[int]) -> np.ndarray:
    return np.array(entries, np.uint64)


def _before_digits(exponent: int) -> str:
    """What precedes the digits, behind the unused byte and the byte of the sign."""
    return "\0\0" + ("0." + "0" * (-exponent - 1) if -4 <= exponent < 0 else "")


def _after_digits(exponent: int) -> str:
    return "" if -4 <= exponent < DIGITS else f"e{exponent:+03}"


def _whole_digits(exponent: int) -> int:
    """Digits before a point that stands among the digits; 0 where the point stands before them."""
    if -4 <= exponent < 0:
        return 0
    return exponent + 1 if 0 <= exponent < DIGITS else 1


_EXPONENTS = range(-_MAX_EXPONENT, _MAX_EXPONENT + 2)
_WHOLES = [_whole_digits(exponent) for exponent in _EXPONENTS]
_MINUS = np.uint64(_word("\0-"))
_POWERS = np.array([float(f"1e{power - _MAX_EXPONENT + DIGITS - 1}") for power in range(2 * _MAX_EXPONENT + 1)])
_THREE_DIGITS = _table([_word(f"{number:03}") for number in range(1000)])
_STRIPPED = _table([_word(f"{number:03}".rstrip("0")) for number in range(1000)])
_BEFORE = _table([_word(_before_digits(exponent)) for exponent in _EXPONENTS])
_AFTER = _table([_word(_after_digits(exponent)) for exponent in _EXPONENTS])
_POINT_BITS = _table([8 * whole for whole in _WHOLES])
_WHOLE = _table([(1 << 8 * whole) - 1 for whole in _WHOLES])
_WHOLE_ZEROS = _table([_word("0" * whole) for whole in _WHOLES])
_POINT = _table([_word("\0" * whole + ".") if whole else 0 for whole in _WHOLES])
