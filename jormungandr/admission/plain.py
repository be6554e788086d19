"""The admission of what nothing speaks against: `plain_step` of one, `plain_steps` of many.

That is what actors mostly send: the next steps of open episodes, of a policy that is not stale,
while no label waits. They come to the same receipt, row and ledger as by way of `Admission`, which
decides anything else, right or wrong; a single one needs no arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.admission.arrival import count, note
from jormungandr.admission.continuation import Continuation
from jormungandr.admission.identities import write
from jormungandr.columns import TRAIN, Columns
from jormungandr.ledger import BLOCK, Counters, Draft, Episode
from jormungandr.protocol import Receipt
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.spec import Staleness
from jormungandr.tally import Arrival, Tally

__all__ = ["plain_step", "plain_steps"]


def _constant(value: Any, dtype: Any) -> NDArray[Any]:
    """Return an array that nobody can write to: rows share it."""
    array = np.array(value, dtype=dtype)
    array.setflags(write=False)
    return array


_ACCEPTED = _constant([ACCEPTED], np.uint8)
#: By split: how many of each kind came, as of `Arrival`.
_COUNTS = (_constant([[1, 0, 0, 0]], np.int64), _constant([[0, 1, 0, 0]], np.int64))
_ENDS = (_constant([0], np.int64), _constant([1], np.int64))
_KEPT = _constant([False], np.bool_)
_NO_ACTOR, _NO_LAG = _constant([], np.int32), _constant([], np.int64)
_NONE_KEPT = _constant([], np.bool_)


def plain_step(
    columns: Columns,
    draft: Draft,
    rule: Staleness,
    *,
    served: int,
    published: int,
    generation: int,
) -> tuple[Receipt, TransitionsRow] | None:
    """Admit one transition, or return None and leave `draft` as it is.

    Args:
        columns: a single checked transition.
        draft: read and written, as by `Admission.transitions`.
        rule: of the model.
        served: newest policy version served.
        published: highest policy version there is.
        generation: of the model.
    """
    version, split = int(columns.policy_version[0]), int(columns.split[0])
    now = draft.counters
    in_stream = version >= 0 and split == TRAIN
    lag = max(0, served - version)
    allowed = rule.max_policy_lag
    stale = in_stream and allowed is not None and rule.mode != "accept" and lag > allowed
    if stale or version > published or now.pending:
        return None
    if len(columns.actors) > 1 or len(columns.episodes) > 1:  # it names others too
        return None
    actor = columns.actors[0]
    key, t = (actor, columns.episodes[0]), int(columns.timestep[0])
    ended = bool(columns.terminated[0] or columns.truncated[0])
    episode, mask = draft.episode(key), 1 << split
    if episode is None:
        first, known = split, -1
    elif episode.end >= 0 or t <= episode.last or episode.splits != mask:
        return None
    else:
        first, known = episode.split, episode.last
    draft.episodes[key] = Episode(first, mask, t if ended else -1, t)
    place = t % BLOCK
    block = draft.writable(key, t // BLOCK, place + 1, known)
    ordinal = now.train if split == TRAIN else now.validation
    block[place] = (columns.digests()[0], ordinal, columns.label[0], ACCEPTED, split)
    lsn = now.lsn + 1
    draft.changed = Counters(
        lsn=lsn,
        data_lsn=lsn,
        train=now.train + (split == TRAIN),
        validation=now.validation + (split != TRAIN),
        stale_dropped=now.stale_dropped,
        unversioned=now.unversioned + (version < 0),
        mixed_episodes=now.mixed_episodes,
        pending=now.pending,
        pending_expired=now.pending_expired,
    )
    draft.arrival = Arrival(
        actors=columns.actors,
        counts=_COUNTS[split],
        ends=_ENDS[ended],
        version=columns.policy_version,
        actor=columns.actor if in_stream else _NO_ACTOR,
        lag=np.array([lag]) if in_stream else _NO_LAG,
        dropped=_KEPT if in_stream else _NONE_KEPT,
        served=served,
        lsn=lsn,
    )
    old = draft.roll.get(actor) or Tally(first=lsn)
    tally = Tally(
        old.train + (split == TRAIN),
        old.validation + (split != TRAIN),
        old.stale_dropped,
        old.first,
        lsn,
        max(old.version, version),
        draft.roll.offered + 1 if in_stream else old.place,
        old.filled,
        old.allowance,
    )
    draft.roll.take({actor: tally})
    receipt = Receipt(
        accepted=1,
        duplicate=0,
        stale_dropped=0,
        lsn=lsn,
        policy_version=served,
        generation=generation,
    )
    return receipt, TransitionsRow(lsn, columns, _ACCEPTED)


def plain_steps(
    columns: Columns,
    digests: NDArray[np.uint64],
    stream: NDArray[np.bool_],
    outcome: NDArray[np.uint8],
    continuation: Continuation,
    served: int,
    draft: Draft,
) -> TransitionsRow:
    """Record a batch of which all is new and accepted, while no label waits; return its row."""
    now, train = draft.counters, columns.split == TRAIN
    before = np.cumsum(train) - train  # (B,) training transitions before each
    others = np.arange(len(columns)) - before
    ordinal = np.where(train, now.train + before, now.validation + others)
    new = np.ones(len(columns), dtype=np.bool_)
    write(columns, new, digests, outcome, columns.label, ordinal, draft, continuation)
    row = TransitionsRow(draft.next_lsn(), columns, outcome)
    count(columns, outcome, draft)
    note(columns, new, stream, outcome, served, None, draft)
    return row
