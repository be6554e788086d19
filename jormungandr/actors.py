"""Actors: what each one sends, how far behind it acts, and which of them need somebody to look.

What was accepted and dropped is counted in the ledger, from the beginning. What is measured here is
of this process: lags, duplicates and refusals, from `since` on. Nothing here decides anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jormungandr.columns import Columns
from jormungandr.lag import Histogram, Window, quantiles
from jormungandr.ledger import Counters
from jormungandr.tally import RECENT, Arrival, Roll, Tally

__all__ = ["Actors"]

#: Newest lags that a model's figures are of.
MODEL_WINDOW = 4_096
#: Actors named in a summary or a warning.
NAMED = 3
#: What the ledger counts.
_KEPT = ("train", "validation", "stale_dropped")


class Actors:
    """Watches what the actors of one model send.

    Args:
        capacity: of the replay. An actor that sent nothing within so many training transitions is
            not warned about: it has gone, and so has most of what it sent.
        lsn: position from which on is measured.
    """

    def __init__(self, capacity: int, lsn: int = 0) -> None:
        self._capacity, self._since = capacity, lsn
        self._windows: dict[str, Window] = {}  # the most recently active last
        self._lags, self._histogram = Window(MODEL_WINDOW), Histogram()
        self._stream = 0

    def refused(self, columns: Columns) -> None:
        """Count the transitions of a request, by actor, that was refused as stale."""
        sent = np.bincount(columns.actor, minlength=len(columns.actors))
        for k in np.flatnonzero(sent).tolist():
            self._window(columns.actors[k]).rejected += int(sent[k])

    def note(self, came: Arrival | None) -> None:
        """Take in what an admitted request brought."""
        if came is None:
            return
        self._stream += len(came.lag)
        self._histogram.add(came.lag)
        self._lags.add(came.lag, came.dropped)
        lag, dropped, steps = came.lag, came.dropped, [len(came.lag)] * len(came.actors)
        if len(came.actors) > 1:
            order = np.argsort(came.actor, kind="stable")
            lag, dropped = lag[order], dropped[order]
            steps = np.bincount(came.actor, minlength=len(came.actors)).tolist()
        sent = (came.counts.tolist(), came.version.tolist(), came.ends.tolist(), steps)
        start = 0
        for actor, counts, version, ends, count in zip(came.actors, *sent, strict=True):
            if not any(counts):
                continue
            window = self._window(actor)
            window.duplicate += counts[3]
            window.lsn, window.place = came.lsn, self._stream
            if count:
                window.add(lag[start : start + count], dropped[start : start + count])
                window.follow(version, came.served, count, ends)
                start += count

    def _window(self, actor: str) -> Window:
        window = self._windows.pop(actor, None) or Window()
        self._windows[actor] = window
        if len(self._windows) > RECENT:
            del self._windows[next(iter(self._windows))]
        return window

    # -- what is to be seen ---------------------------------------------------------------------

    def figures(self, roll: Roll, totals: Counters) -> dict[str, Any]:
        """Return the figures of the most recently active actors, those furthest behind first.

        Args:
            roll: tallies of the ledger.
            totals: of the ledger; what the actors shown do not account for is of `others`.
        """
        tallies = dict(roll.recent())
        shown = {**self._windows, **{a: self._windows.get(a, _UNSEEN) for a in tallies}}
        each = [_actor(a, tallies.get(a) or roll.get(a) or Tally(), w) for a, w in shown.items()]
        each.sort(key=lambda figures: -(figures["lag"]["last"] or 0))
        each = each[:RECENT]
        return {
            "since": self._since,
            "lag": self._histogram.figures(),
            "each": each,
            "others": {name: getattr(totals, name) - sum(a[name] for a in each) for name in _KEPT},
        }

    def summary(self) -> dict[str, Any]:
        """Return the model's newest lags, and the actors that are furthest behind."""
        behind = sorted(self._active(), key=lambda item: -item[1].last)[:NAMED]
        return {
            **quantiles(self._lags),
            "worst": [{"actor_id": a, "last": w.last, "version": w.version} for a, w in behind],
        }

    def warnings(self) -> list[str]:
        """Return what the operator should know, each with its remedy."""
        active = self._active()
        growing = sorted(((w.grown, a, w) for a, w in active if w.stuck), reverse=True)
        starved = sorted(((w.dropped_share, a) for a, w in active if w.starved), reverse=True)
        found = []
        if growing:
            text = _named([f"{a!r} (version {w.version}, {w.last} behind)" for _, a, w in growing])
            found.append(
                f"lag_growing: the policy of {text} is never replaced; let the actor ask for the"
                " newest one at every episode, or look whether it can still reach it"
            )
        if starved:
            text = _named([f"{a!r} ({share:.0%})" for share, a in starved])
            found.append(
                f"actor_starved: most of what {text} sends is dropped as stale; let it ask for a"
                " newer policy, send shorter stretches, or raise staleness.max_policy_lag or"
                " staleness.stale_share"
            )
        return found

    def _active(self) -> list[tuple[str, Window]]:
        since = self._stream - self._capacity
        return [(a, w) for a, w in self._windows.items() if w.measured and w.place >= since]


def _actor(actor: str, tally: Tally, window: Window) -> dict[str, Any]:
    return {
        "actor_id": actor,
        "train": tally.train,
        "validation": tally.validation,
        "stale_dropped": tally.stale_dropped,
        "rejected": window.rejected,
        "duplicate": window.duplicate,
        "last_lsn": max(tally.last, window.lsn),
        "newest_version": tally.version,
        "lag": quantiles(window),
    }


def _named(texts: list[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


_UNSEEN = Window()
