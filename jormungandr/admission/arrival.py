"""What a request brought, by actor: counted once, for the ledger and for whoever watches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jormungandr.admission.staleness import Allowance
from jormungandr.columns import TRAIN, VALIDATION, Columns
from jormungandr.ledger import Draft
from jormungandr.rows import ACCEPTED, STALE_DROPPED
from jormungandr.tally import Arrival, Tally

__all__ = ["arrival", "count", "entered", "note"]


def arrival(
    columns: Columns,
    new: NDArray[np.bool_],
    stream: NDArray[np.bool_],
    outcome: NDArray[np.uint8],
    served: int,
    lsn: int,
) -> Arrival:
    """Return what a request brought.

    Args:
        columns: of the request.
        new: (B,) which transitions were not known before.
        stream: (B,) which have a lag.
        outcome: (B,) what became of those that are new.
        served: the newest version served.
        lsn: position by which all of it is durable.
    """
    k, kind = len(columns.actors), columns.split.astype(np.int64)
    kind[outcome == STALE_DROPPED] = 2
    actor, versions, ended = columns.actor, columns.policy_version, columns.terminated.copy()
    ended |= columns.truncated
    if not new.all():
        kind[~new] = 3
        ended &= new
        stream = stream & new
    counts = np.bincount(4 * actor + kind, minlength=4 * k).reshape(k, 4)
    version = np.full(k, -1, dtype=np.int64)
    np.maximum.at(version, actor, np.where(new, versions, -1))
    lag = served - versions
    np.maximum(lag, 0, out=lag)  # a version may be made, and act, before it is served
    dropped = kind == 2
    if not stream.all():
        actor, lag, dropped = actor[stream], lag[stream], dropped[stream]
    return Arrival(
        actors=columns.actors,
        counts=counts,
        ends=np.bincount(columns.actor[ended], minlength=k),
        version=version,
        actor=actor,
        lag=lag,
        dropped=dropped,
        served=served,
        lsn=lsn,
    )


def entered(
    came: Arrival, buckets: dict[str, tuple[int, int]], draft: Draft, place: int
) -> dict[str, Tally]:
    """Return the tallies of the actors that brought something new.

    Args:
        came: what the request brought.
        buckets: allowances that changed: place in the stream, and what is left.
        draft: of the ledger; read.
        place: in the stream, after the request.
    """
    tallies, steps = {}, np.bincount(came.actor, minlength=len(came.actors)).tolist()
    counted = zip(came.actors, came.counts.tolist(), came.version.tolist(), steps, strict=True)
    for actor, (train, validation, dropped, _), version, in_stream in counted:
        if not train and not validation and not dropped:
            continue
        old = draft.roll.get(actor) or Tally(first=came.lsn)
        filled, tokens = buckets.get(actor, (old.filled, old.allowance))
        tallies[actor] = Tally(
            old.train + train,
            old.validation + validation,
            old.stale_dropped + dropped,
            old.first,
            came.lsn,
            max(old.version, version),
            place if in_stream else old.place,
            filled,
            tokens,
        )
    return tallies


def note(
    columns: Columns,
    new: NDArray[np.bool_],
    stream: NDArray[np.bool_],
    outcome: NDArray[np.uint8],
    served: int,
    allowance: Allowance | None,
    draft: Draft,
) -> None:
    """Enter what a request brought, by actor."""
    draft.arrival = arrival(columns, new, stream, outcome, served, draft.counters.data_lsn)
    place = draft.roll.offered + len(draft.arrival.lag)
    buckets = {} if allowance is None else allowance.buckets
    draft.roll.take(entered(draft.arrival, buckets, draft, place))


def count(stored: Columns, outcome: NDArray[np.uint8], draft: Draft) -> None:
    """Add new transitions to the totals."""
    accepted = outcome == ACCEPTED
    draft.count(
        train=int(np.count_nonzero(accepted & (stored.split == TRAIN))),
        validation=int(np.count_nonzero(accepted & (stored.split == VALIDATION))),
        stale_dropped=int(np.count_nonzero(~accepted)),
        unversioned=int(np.count_nonzero(accepted & (stored.policy_version < 0))),
    )
