"""Journal rows: what admission decided about one request, and their bytes.

A row holds the outcome of every transition or label, so that the learner, and an audit years later,
re-decide nothing. Duplicates are counted in the receipt and not stored again.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import ARRAYS, Columns
from jormungandr.errors import DataDirError
from jormungandr.tags import as_pairs

__all__ = [
    "ACCEPTED",
    "ATTACHED",
    "PENDING",
    "STALE_DROPPED",
    "JournalRow",
    "LabelsRow",
    "Row",
    "SkippedRow",
    "TransitionsRow",
    "decode_row",
    "encode_row",
    "row_digest",
]

#: Outcome of a stored transition. 0 means unknown, in the ledger.
ACCEPTED, STALE_DROPPED = 1, 2
#: Outcome of a stored label.
PENDING, ATTACHED = 1, 2

FORMAT = 2
#: Of a row with tags, which a program that knows none of them must not read as one without.
TAGGED = 3


@dataclass(frozen=True, slots=True, eq=False)
class TransitionsRow:
    """The transitions of one request that were new; `outcome` is (B,) uint8."""

    lsn: int
    columns: Columns
    outcome: NDArray[np.uint8]

    kind = "transitions"


@dataclass(frozen=True, slots=True, eq=False)
class LabelsRow:
    """The labels of one request that were new, (B,) each.

    Args:
        identities: (actor_id, episode_id, timestep) of each.
        label: (B,) int32 class index.
        outcome: (B,) uint8, `PENDING` or `ATTACHED`.
        split: (B,) uint8 of the transition, when attached.
        ordinal: (B,) int64, how many transitions of that split had been accepted before it.
    """

    lsn: int
    identities: tuple[tuple[str, str, int], ...]
    label: NDArray[np.int32]
    outcome: NDArray[np.uint8]
    split: NDArray[np.uint8]
    ordinal: NDArray[np.int64]

    kind = "labels"


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A data row that was set aside because it ends whoever applies it; it is never decoded.

    Args:
        lsn: of the row.
        train, validation: transitions of each split that were accepted with it.
        published: highest version that there was a policy of before it was set aside, else -1.
    """

    lsn: int
    train: int = 0
    validation: int = 0
    published: int = -1

    kind = "skipped"


#: What is written.
Row: TypeAlias = TransitionsRow | LabelsRow
#: What is read.
JournalRow: TypeAlias = Row | SkippedRow

_LABEL_ARRAYS: dict[str, np.dtype[Any]] = {
    "label": np.dtype("<i4"),
    "outcome": np.dtype("u1"),
    "split": np.dtype("u1"),
    "ordinal": np.dtype("<i8"),
}


def encode_row(row: Row) -> bytes:
    """Return the row's payload; `lsn` and `kind` are columns of the journal beside it."""
    body: dict[str, Any]
    if isinstance(row, TransitionsRow):
        c = row.columns
        dtypes = _observation_dtypes(c.observation.dtype)
        body = {
            "format": FORMAT,
            "shape": list(c.observation.shape),
            "dtype": c.observation.dtype.str,
            "actors": c.actors,
            "episodes": c.episodes,
            "outcome": row.outcome.tobytes(),
            **{
                name: np.ascontiguousarray(getattr(c, name), dtype=dtypes.get(name, d)).tobytes()
                for name, d in ARRAYS.items()
            },
        }
        if c.tag is not None and c.tagged.size:
            body |= {"format": TAGGED, "tags": c.tags, "tag": c.tag.astype("<i4").tobytes()}
    else:
        body = {
            "format": FORMAT,
            "identities": row.identities,
            **{
                name: np.ascontiguousarray(getattr(row, name), dtype=dtype).tobytes()
                for name, dtype in _LABEL_ARRAYS.items()
            },
        }
    return msgspec.msgpack.encode(body)


def decode_row(lsn: int, kind: str, payload: bytes) -> Row:
    """Rebuild a row from its payload.

    Raises:
        DataDirError: a payload of another format, or a kind that is no data row.
    """
    body = msgspec.msgpack.decode(payload)
    tagged = body.get("format") == TAGGED and kind == TransitionsRow.kind
    if body.get("format") != FORMAT and not tagged:
        expected = f"format {FORMAT}, or {TAGGED} of transitions with tags"
        raise DataDirError(f"journal row {lsn}", expected, body.get("format"))
    if kind == TransitionsRow.kind:
        shape = tuple(body["shape"])
        dtypes = {**ARRAYS, **_observation_dtypes(np.dtype(body["dtype"]))}
        arrays: dict[str, Any] = {}
        for name, dtype in dtypes.items():
            array = np.frombuffer(body[name], dtype=dtype)
            if name.endswith("observation"):
                array = array.reshape(shape)
            elif name == "next_action_mask":
                array = array.reshape(shape[0], -1 if shape[0] else 0)
            arrays[name] = array
        columns = Columns(
            actors=tuple(body["actors"]),
            episodes=tuple(body["episodes"]),
            **arrays,
            tags=tuple(map(as_pairs, body["tags"])) if tagged else (),
            tag=np.frombuffer(body["tag"], dtype="<i4") if tagged else None,
        )
        return TransitionsRow(lsn, columns, np.frombuffer(body["outcome"], dtype=np.uint8))
    if kind == LabelsRow.kind:
        identities = tuple((a, e, t) for a, e, t in body["identities"])
        arrays = {n: np.frombuffer(body[n], dtype=d) for n, d in _LABEL_ARRAYS.items()}
        return LabelsRow(lsn, identities, **arrays)
    raise DataDirError(f"journal row {lsn}", "a data row", kind)


def _observation_dtypes(dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return the dtype of both observations: float32, or uint8 for images."""
    return {"observation": dtype, "next_observation": dtype}


def row_digest(lsn: int, kind: str, payload: bytes) -> bytes:
    """Return the 32 bytes that a row is checked with when it is read."""
    return sha256(b"%d %s " % (lsn, kind.encode()) + payload).digest()
