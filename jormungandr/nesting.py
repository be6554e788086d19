"""How deep a body is nested, found by one linear pass before any parser sees it.

A parser that calls itself once a level can be led to the end of its stack; one that takes a
declared length at its word, to the end of the memory. What these functions let through can do
neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import BodyTooLarge, Malformed, TooDeep

__all__ = ["DEEPEST", "check_names", "colons", "scan_json", "scan_msgpack"]

#: Levels of lists and objects in a body; what is real has at most a dozen.
DEEPEST = 16
#: Values in a MessagePack body: 4,096 rows of objects have some 100,000, columns a few thousand.
MOST_VALUES = 1 << 18

_MARKS = b'"[]{}:'
_OTHERS = bytes(set(range(256)) - set(_MARKS))
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1


def scan_json(body: bytes) -> None:
    """Refuse JSON that is nested too deeply; whether it is JSON at all is the parser's to say.

    Brackets in strings do not count. Before the first character at which a parser stops, this pass
    and the parser see the same strings.

    Raises:
        TooDeep: more than `DEEPEST` levels.
    """
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    marks = _marks(body)
    if len(marks) > DEEPEST:
        _check(int(np.cumsum(_STEP[marks], dtype=np.int32).max()))


def _marks(body: bytes) -> NDArray[np.uint8]:
    """Return brackets, colons and quotes, those in strings as zeros."""
    # Escaped backslashes go first, from the left, as a parser reads them; then escaped quotes.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    marks = np.frombuffer(plain.translate(None, _OTHERS), np.uint8)
    quoted = np.bitwise_xor.accumulate(marks == ord('"')) if len(marks) else np.zeros(0, np.bool_)
    return np.where(quoted, np.uint8(0), marks)


def check_names(body: bytes, found: dict[str, Any] | list[Any]) -> None:
    """Refuse JSON in which an object has a name twice: a parser keeps one of them, without a word.

    Args:
        body: the JSON.
        found: what a parser made of it.

    Raises:
        Malformed: an object has a name twice.
    """
    names = colons(body)
    # Lists of numbers are not looked through, unless something is amiss.
    if names != _names(found, False) and names != _names(found, True):
        raise Malformed("body", "objects with different names", "a name twice in one")


def colons(body: bytes) -> int:
    """Return how many colons there are in JSON, those in strings left out: one for each name."""
    return int((_marks(body) == ord(":")).sum())


def _names(found: dict[str, Any] | list[Any], all_of_it: bool) -> int:
    """Return how many names the objects in a value have."""
    if isinstance(found, dict):
        inner = found.values()
        return len(found) + sum(_names(v, all_of_it) for v in inner if isinstance(v, dict | list))
    if all_of_it or (found and isinstance(found[0], dict | list)):
        return sum(_names(v, all_of_it) for v in found if isinstance(v, dict | list))
    return 0


def _check(depth: int) -> None:
    if depth > DEEPEST:
        raise TooDeep("body", f"at most {DEEPEST} levels of lists and objects", "more")


#: Of each first byte from 0xc0 on: bytes that hold a length, bytes that follow besides, values that
#: follow for each counted one (0: the length is one of bytes).
_FORMS: dict[int, tuple[int, int, int]] = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), (0, 0, 0)),  # nil, false, true
    **{0xC4 + i: (1 << i, 0, 0) for i in range(3)},  # bin
    **{0xC7 + i: (1 << i, 1, 0) for i in range(3)},  # ext: a byte of type
    **{0xCA + i: (0, 4 << i, 0) for i in range(2)},  # float
    **{0xCC + i: (0, 1 << i, 0) for i in range(4)},  # unsigned
    **{0xD0 + i: (0, 1 << i, 0) for i in range(4)},  # signed
    **{0xD4 + i: (0, 1 + (1 << i), 0) for i in range(5)},  # fixed ext
    **{0xD9 + i: (1 << i, 0, 0) for i in range(3)},  # str
    **{0xDC + i: (2 << i, 0, 1) for i in range(2)},  # array
    **{0xDE + i: (2 << i, 0, 2) for i in range(2)},  # map
}


def scan_msgpack(body: bytes) -> None:
    """Refuse MessagePack that is nested too deeply, or that ends before what it declares does.

    Raises:
        TooDeep: more than `DEEPEST` levels.
        BodyTooLarge: more than `MOST_VALUES` values.
        Malformed: it is no MessagePack, more or less than one value, or a map has a name twice.
    """
    size, at, seen = len(body), 0, 0
    left = [1]  # values still to come, at each open level
    names: list[set[bytes] | None] = [None]  # of each open level that is a map
    while left:
        if left[-1] == 0:
            left.pop()
            names.pop()
            continue
        left[-1] -= 1
        seen += 1
        if seen > MOST_VALUES:
            raise BodyTooLarge("body", f"at most {MOST_VALUES} values", "more", "send fewer rows")
        if at >= size:
            raise Malformed("body", "a whole MessagePack value", "its beginning alone")
        head = body[at]
        begin, at, inside = _value(body, at)
        if at + max(inside, 0) > size:  # each value takes a byte or more
            raise Malformed("body", "a whole MessagePack value", "its beginning alone")
        known = names[-1]
        if known is not None and left[-1] % 2 == 1:
            if body[begin:at] in known:
                raise Malformed("body", "maps with different names", "a name twice in one")
            known.add(body[begin:at])
        if inside >= 0:
            left.append(inside)
            names.append(set() if head in _MAPS else None)
            _check(len(left) - 1)
    if at != size:
        raise Malformed("body", "one MessagePack value", f"{size - at} bytes after it")


#: First bytes of maps.
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))


def _value(body: bytes, at: int) -> tuple[int, int, int]:
    """Return where a value's own bytes begin and end, and how many values are in it.

    -1 values are in what is no list and no map.
    """
    head = body[at]
    at += 1
    if head < 0x80 or head >= 0xE0:  # a small integer
        return at - 1, at, -1
    if head < 0x90:
        return at, at, 2 * (head & 0x0F)
    if head < 0xA0:
        return at, at, head & 0x0F
    if head < 0xC0:
        return at, at + (head & 0x1F), -1
    form = _FORMS.get(head)
    if form is None:
        raise Malformed("body", "MessagePack", f"the byte 0x{head:02x}")
    wide, more, values = form
    length = int.from_bytes(body[at : at + wide], "big")
    at += wide
    if values:
        return at, at, length * values
    return at, at + length + more, -1
