"""Staleness: which transitions come too late, and which of those are taken all the same.

Dropping whatever is stale would erase whoever is slow: by the time that his episode is over, faster
actors have moved the policy on. So stale transitions have an allowance, dealt out equally.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import TRAIN, Columns
from jormungandr.ledger import Draft
from jormungandr.rows import ACCEPTED, STALE_DROPPED
from jormungandr.spec import Staleness

__all__ = ["UNIT", "Allowance", "in_stream", "verdict"]

#: One transition, in an allowance: integers, so that every machine decides alike.
UNIT = 1 << 20


def in_stream(columns: Columns) -> NDArray[np.bool_]:
    """Return (B,) which transitions have a lag: training ones of a policy of this model."""
    found: NDArray[np.bool_] = (columns.policy_version >= 0) & (columns.split == TRAIN)
    return found


def verdict(
    columns: Columns, stream: NDArray[np.bool_], rule: Staleness, served: int
) -> NDArray[np.uint8]:
    """Return (B,) what becomes of each transition if it is new and nothing is let pass."""
    outcome = np.full(len(columns), ACCEPTED, dtype=np.uint8)
    allowed = rule.max_policy_lag
    if allowed is not None and rule.mode != "accept":
        outcome[stream & (served - columns.policy_version > allowed)] = STALE_DROPPED
    return outcome


class Allowance:
    """How much stale data each actor may still send: a bucket of tokens each.

    For every training transition that comes in from anybody, `stale_share` of a token is dealt out
    in equal parts to the actors that are active: those of the last `replay.capacity` of these
    transitions. A stale transition costs a token. A stretch of them
    is taken whole or dropped whole: pieces of it would tear n-step windows and episodes. It
    is taken when there are tokens for all of it, or the bucket is full; then it goes into debt.

    Args:
        share: `staleness.stale_share`.
        capacity: `replay.capacity`; a bucket holds an equal part of what is dealt out over so many
            transitions, and at least one token. That of an actor who was never late before holds
            what it would have been dealt, had it been there from the start.
        draft: of the ledger; read.
    """

    def __init__(self, share: float, capacity: int, draft: Draft) -> None:
        self._share = int(Fraction(repr(float(share))) * UNIT)
        self._capacity, self._draft = capacity, draft
        self._offered = draft.roll.offered
        self._since = max(1, self._offered - capacity)
        self._active = draft.roll.active(self._since)
        self._joined: set[str] = set()
        #: By actor: place in the stream up to which it is counted, and tokens left.
        self.buckets: dict[str, tuple[int, int]] = {}

    def came(self, actor: str, count: int) -> None:
        """Note that so many new transitions of the stream came in."""
        self._offered += count
        if count and actor not in self._joined:
            tally = self._draft.roll.get(actor)
            if tally is None or tally.place < self._since:
                self._active += 1
            self._joined.add(actor)

    def covers(self, actor: str, stale: int) -> bool:
        """Take the tokens for a stretch of stale transitions, if there are enough."""
        start = self._share * min(self._capacity, self._offered) // self._active
        full = max(UNIT, self._share * self._capacity // self._active)
        filled, tokens = self.buckets.get(actor) or self._known(actor)
        if filled < 0:
            tokens = start
        else:
            dealt = self._share * (self._offered - filled) // self._active
            tokens = min(full, tokens + dealt)
        taken = tokens >= min(stale * UNIT, full)
        self.buckets[actor] = (self._offered, tokens - stale * UNIT if taken else tokens)
        return taken

    def _known(self, actor: str) -> tuple[int, int]:
        tally = self._draft.roll.get(actor)
        return (-1, 0) if tally is None else (tally.filled, tally.allowance)
