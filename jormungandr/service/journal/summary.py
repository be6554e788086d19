"""The summary columns of a data row: what plain SQL can ask a journal."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np

from jormungandr.columns import TRAIN
from jormungandr.rows import ACCEPTED, Row, TransitionsRow

__all__ = ["Summary", "summary"]

#: accepted_train, accepted_validation, stale_dropped, labels, actors (JSON), min_version and
#: max_version, as the table has them.
Summary: TypeAlias = tuple[int, int, int, int, str, int | None, int | None]


def summary(row: Row) -> Summary:
    """Return the summary columns of a row."""
    if not isinstance(row, TransitionsRow):
        actors = sorted({identity[0] for identity in row.identities})
        return 0, 0, 0, len(row.label), _json(actors), None, None
    c = row.columns
    if len(c) == 1:  # without the ten calls of NumPy
        taken, train, version = row.outcome[0] == ACCEPTED, c.split[0] == TRAIN, c.policy_version
        return (
            int(taken and train),
            int(taken and not train),
            int(not taken),
            int(c.label[0] >= 0),
            _json([c.actors[c.actor[0]]]),
            int(version[0]),
            int(version[0]),
        )
    accepted = row.outcome == ACCEPTED
    train = int(np.count_nonzero(accepted & (c.split == TRAIN)))
    return (
        train,
        int(np.count_nonzero(accepted)) - train,
        int(np.count_nonzero(~accepted)),
        int(np.count_nonzero(c.label >= 0)),
        _json(sorted({c.actors[k] for k in np.unique(c.actor)})),
        int(c.policy_version.min()),
        int(c.policy_version.max()),
    )


def _json(actors: list[str]) -> str:
    return msgspec.json.encode(actors).decode()
