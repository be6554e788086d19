"""The pass before the parsers: depth, names, lengths; and no way around it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr.errors import BodyTooLarge, JormungandrError, Malformed, TooDeep
from jormungandr.nesting import DEEPEST, check_names, scan_json, scan_msgpack

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(['"', "\\", '\\"', "[", "]}", '":', "[" * 40, "\\\\", "{:"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.just('":[')), inner, max_size=3),
    ),
    max_leaves=30,
)


def depth(value: Any) -> int:
    """Return how many levels of lists and maps a value has."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + max(map(depth, inner), default=0)


def nested(levels: int, value: Any) -> Any:
    """Return a value in so many lists and maps."""
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@given(value=VALUES, levels=st.integers(0, 20))
def test_depth(value: Any, levels: int) -> None:
    """What is 16 levels deep is let through and nothing deeper, whatever is in strings."""
    value = nested(levels, value)
    for scan, body in (
        (scan_json, msgspec.json.encode(value)),
        (scan_json, json.dumps(value, indent=1).encode()),
        (scan_msgpack, msgspec.msgpack.encode(value)),
    ):
        if depth(value) <= DEEPEST:
            scan(body)
        else:
            with pytest.raises(TooDeep):
                scan(body)


@given(value=VALUES)
def test_names(value: Any) -> None:
    """Values with every name once are let through."""
    body = msgspec.json.encode({"a": value})

    check_names(body, msgspec.json.decode(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'[1,{"a":1,"a":2}]',
        b'{"a":[[1,[{"b":0,"c":0,"b":0}]]]}',
        b'{"a":1,"\\u0061":2}',
    ],
)
def test_a_name_twice(body: bytes) -> None:
    """A name twice in one object is refused wherever it is, and however it is spelled."""
    with pytest.raises(Malformed):
        check_names(body, msgspec.json.decode(body))


def packed(value: bytes, names: int) -> bytes:
    """Return a map in which a name is so many times."""
    return bytes([0x80 + names]) + (value + b"\xc0") * names


@pytest.mark.parametrize("name", [b"\xa1a", b"\xd9\x01a", b"\xda\x00\x01a", b"\x05"])
def test_a_name_twice_in_messagepack(name: bytes) -> None:
    """The same there, also when one is spelled longer than it need be."""
    scan_msgpack(packed(name, 1))
    with pytest.raises(Malformed):
        scan_msgpack(packed(name, 2))
    with pytest.raises(Malformed):
        scan_msgpack(b"\x91\x82\xa1a\xc0\xd9\x01a\xc0")


@pytest.mark.parametrize("levels", [17, 1_000_000])
@pytest.mark.parametrize("one", [b"[", b'{"a":', b"\x91", b"\x81\xa0", b"\xdd\x00\x00\x00\x01"])
def test_deep(one: bytes, levels: int) -> None:
    """A body that only goes down is refused at the seventeenth level."""
    scan = scan_json if one[:1] in (b"[", b"{") else scan_msgpack
    with pytest.raises(TooDeep):
        scan(one * levels + b"\xc0")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa1a",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xdc\x00",
        b"\x92\x01",
        b"\x82\xa1a\x01",
        b"\xa5abcd",
        b"\xcb\x00",
    ],
    ids=repr,
)
def test_lengths_that_are_not_there(body: bytes) -> None:
    """What declares more than it has is refused where it declares it."""
    with pytest.raises(Malformed, match="its beginning alone"):
        scan_msgpack(body)


@pytest.mark.parametrize(
    ("body", "got"),
    [(b"\xc1", "0xc1"), (b"\x01\x01", "1 bytes after it"), (b"\x80\x91\xc0", "2 bytes after it")],
    ids=repr,
)
def test_no_messagepack(body: bytes, got: str) -> None:
    """The one byte that begins nothing is named, and so is what comes after the end."""
    with pytest.raises(Malformed, match=got):
        scan_msgpack(body)


def test_many_values() -> None:
    """A pass of Python code has an end: no real body has so many values."""
    with pytest.raises(BodyTooLarge):
        scan_msgpack(b"\xdd\x00\x10\x00\x00" + b"\x01" * (1 << 20))


@given(body=st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    """No bytes end a pass in any other way; what MessagePack it lets through, a parser reads."""
    scan_json(body)
    try:
        scan_msgpack(body)
    except JormungandrError:
        return
    said = ""
    try:
        msgspec.msgpack.decode(body)
    except Exception as error:  # no UTF-8, a list as a name, a time of no calendar
        said = str(error)
    assert "truncated" not in said
    assert "trailing" not in said


@pytest.mark.parametrize(
    "value",
    [-1, -33, 200, 70_000, 2**40, -200, -70_000, -(2**40), 1.5, "b" * 40, "c" * 300, "d" * 70_000]
    + [b"x", b"y" * 300, b"z" * 70_000, [1] * 15, [1] * 16, [1] * 70_000]
    + [{str(i): i for i in range(n)} for n in (15, 16, 70_000)]
    + [msgspec.msgpack.Ext(5, b"1" * n) for n in (1, 2, 3, 4, 8, 16, 17, 300, 70_000)],
    ids=lambda value: f"{type(value).__name__}{str(value)[:5]}",
)
def test_every_form(value: Any) -> None:
    """Every form of MessagePack is measured right: a byte less, or more, is refused."""
    body = msgspec.msgpack.encode(value)
    scan_msgpack(body)
    for wrong in (body[:-1], body + b"\0"):
        with pytest.raises(Malformed):
            scan_msgpack(wrong)
