"""Which encoding names of files are in that do not tell it: the one in which their letters make words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_WESTERN = "äöüßÄÖÜéèêëàâçîïôùûáíóúñÑåÅæÆÇÉ"
_CENTRAL = "äöüßÄÖÜąćęłńóśźżĄĆĘŁŃÓŚŹŻáčďéěíňřšťúůýžÁČĎÉĚÍŇŘŠŤÚŮÝŽőűŐŰăâîşţ"
_LATIN = {"cp437": _WESTERN, "cp850": _WESTERN + "øØãõÃÕÁÍÓÚÀÂÊËÈÎÏÔÛÙÌÒ", "cp852": _CENTRAL}  # letters that are usual
# frequent characters in the names of pictures and folders
_USUAL = {
    "gb2312": "的图片照相人大中国上年月日新文件夹车汽花猫狗山水风景家生活旅行北京海天小学",
    "big5": "的圖片照相人大中國上年月日新文件夾車汽花貓狗山水風景家生活旅行台灣海天小學",
    "euc_kr": "이가사진그림지다고의에는한로도인스트기리동물강아자차비행마바하나라파일새폴더국서울양",
}
_JAPANESE = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uff01-\uff5e]")
_RIGHT, _WRONG = 3.0, -4.0  # for a character of two bytes, and one that no name has


def guess_encoding(names: Sequence[bytes]) -> str:
    """The most plausible encoding of names; of equally plausible ones the first of cp437, cp850, cp852, cp866, ...."""
    ways: dict[str, Callable[[str], float]] = {encoding: _latin(usual) for encoding, usual in _LATIN.items()}
    ways |= {"cp866": _russian, "cp932": _of_pairs(_japanese)}
    ways |= {encoding: _of_pairs(_of_levels(encoding)) for encoding in _USUAL}
    points: dict[str, float] = {}
    for encoding, way in ways.items():
        try:
            points[encoding] = sum(way(name.decode(encoding)) for name in names)
        except UnicodeDecodeError:
            continue
    best = max(points, key=points.__getitem__, default="cp437")
    return "gbk" if best == "gb2312" else best  # which has more characters


def _latin(usual: str) -> Callable[[str], float]:
    def points(text: str) -> float:
        total = 0.0
        for before, letter in zip(" " + text, text, strict=False):
            if letter > "\x7f":
                total += 2 if letter in usual else -1 if letter.isalpha() else -3
                total -= before > "\x7f"  # two accents in a row are rare
            total -= 2 * (before.islower() and letter.isupper() and max(before, letter) > "\x7f")
        return total

    return points


def _russian(text: str) -> float:
    total = sum(2.0 if "А" <= letter <= "ё" else -3 for letter in text if letter > "\x7f")
    return total - 3 * len(re.findall("[А-ё](?=[A-Za-z])|[A-Za-z](?=[А-ё])", text))


def _of_pairs(points_of: Callable[[str], float]) -> Callable[[str], float]:
    """Characters of two bytes: of a word in Latin letters one alone is an accent and the letter after it."""

    def points(text: str) -> float:
        lone = re.findall(r"[A-Za-z][^\x00-\x7f](?![^\x00-\x7f])|(?<![^\x00-\x7f])[^\x00-\x7f](?=[A-Za-z])", text)
        return sum(points_of(letter) for letter in text if letter > "\x7f") + _WRONG * len(lone)

    return points


def _japanese(letter: str) -> float:
    return _RIGHT if _JAPANESE.match(letter) else _WRONG


def _of_levels(encoding: str) -> Callable[[str], float]:
    """Characters by how frequent those are among which the encoding has them."""
    frequent = {"gb2312": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "euc_kr": (0xB0, 0xC8)}[encoding]

    def points(letter: str) -> float:
        if not letter.isalpha() or "\u3040" <= letter <= "\u30ff":
            return _WRONG
        first = letter.encode(encoding)[0]
        return (_RIGHT if frequent[0] <= first <= frequent[1] else 1.0) + 2 * (letter in _USUAL[encoding])

    return points
