"""Tags: what an actor says of an episode as a whole, such as its regime, its date or its map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from jormungandr.errors import InvalidType, InvalidValue, shown
from jormungandr.ids import check_id
from jormungandr.protocol import LIMITS

__all__ = ["Tags", "as_pairs", "check_tags"]

#: The tags of one episode as (key, value) pairs, sorted by key; () is none.
Tags: TypeAlias = tuple[tuple[str, str], ...]

_KEY = re.compile(f"[a-z][a-z0-9_]{{0,{LIMITS['tag_key_bytes'] - 1}}}")


def check_tags(value: Any, where: str) -> Tags:
    """Return tags in their one form; an empty mapping and None are none.

    Args:
        value: a mapping of at most 8 keys to strings.
        where: the name of their place in an error.

    Raises:
        InvalidType: no mapping, or a value that is no string.
        InvalidValue: too many, a key that does not match ``[a-z][a-z0-9_]{0,31}``, or a value that
            is not 1-64 bytes of UTF-8 without control characters.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise InvalidType(where, "an object of strings", shown(value))
    if len(value) > LIMITS["tags_per_episode"]:
        raise InvalidValue(where, f"at most {LIMITS['tags_per_episode']} tags", len(value))
    for key, text in value.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidValue(where, f"keys that match {_KEY.pattern}", shown(key))
        check_id(text, f"{where}.{key}")
        size, most = len(text.encode()), LIMITS["tag_value_bytes"]
        if size > most:
            raise InvalidValue(f"{where}.{key}", f"1..{most} bytes of UTF-8", f"{size} bytes")
    return tuple(sorted((str(key), str(text)) for key, text in value.items()))


def as_pairs(tags: Iterable[Any]) -> Tags:
    """Return tags that were written as lists of pairs."""
    return tuple((key, value) for key, value in tags)
