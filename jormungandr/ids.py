"""`check_id`: what an actor's or an episode's id may be."""

from __future__ import annotations

import re
from typing import Any

from jormungandr.errors import InvalidType, InvalidValue, shown
from jormungandr.protocol import LIMITS

__all__ = ["check_id"]

_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")


def check_id(value: Any, where: str) -> None:
    """Refuse an id that is not 1-128 bytes of UTF-8 without control characters.

    Raises:
        InvalidInput: (one of its classes) naming the place.
    """
    if not isinstance(value, str):
        raise InvalidType(where, "a string", shown(value))
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidValue(where, "valid UTF-8", repr(value)) from None
    if not 1 <= size <= LIMITS["id_bytes"]:
        raise InvalidValue(where, f"1..{LIMITS['id_bytes']} bytes of UTF-8", f"{size} bytes")
    if _CONTROL.search(value):
        raise InvalidValue(where, "no control characters", repr(value))
