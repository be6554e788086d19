"""Several requests as one: what waited for a service need not ask it thousands of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jormungandr.columns import ARRAYS, Columns, columns
from jormungandr.columns.tags import joined_tags
from jormungandr.packed import pack, unpack
from jormungandr.spec import ModelSpec
from jormungandr.wire import MSGPACK, decode_object

__all__ = ["merged"]


def merged(requests: Iterable[tuple[str, bytes]], spec: ModelSpec, generation: int) -> bytes:
    """Return the transitions of several requests, in order, as the columns of one.

    Args:
        requests: content type and body of each.
        spec: of their model.
        generation: of it.

    Raises:
        JormungandrError: they cannot be one, for what the service would refuse in one of them.
    """
    return pack(_joined([_read(media, body, spec) for media, body in requests]), generation)


def _read(media: str, body: bytes, spec: ModelSpec) -> Columns:
    if media == MSGPACK:
        return unpack(body, spec)
    return columns(decode_object(body)["transitions"], spec)


def _joined(parts: Sequence[Columns]) -> Columns:
    """Return batches of transitions one after another; each id is in its list once."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS
    }
    ids: dict[str, tuple[str, ...]] = {}
    for name, code in (("actors", "actor"), ("episodes", "episode")):
        codes: dict[str, int] = {}
        moved = []
        for part in parts:
            known = [codes.setdefault(i, len(codes)) for i in getattr(part, name)]
            moved.append(np.array(known, dtype=np.int32)[getattr(part, code)])
        ids[name], arrays[code] = tuple(codes), np.concatenate(moved)
    tags, tag = joined_tags(parts)
    return Columns(actors=ids["actors"], episodes=ids["episodes"], **arrays, tags=tags, tag=tag)
