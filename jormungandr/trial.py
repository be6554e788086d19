"""`Trial`: a candidate against the champion, over held-out episodes, tested once.

A pure state machine: what comes out is a function of the episodes that go in, in their order. It is
the gate's decision, and what `verify` decides again.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import msgspec

from jormungandr.heldout import HeldOutEpisode, kept_episodes
from jormungandr.numerics.bounds import LowerBound, paired_lower_bound, welch_lower_bound
from jormungandr.settings import Promotion

__all__ = ["Evidence", "Trial"]


class Evidence(msgspec.Struct, frozen=True):
    """What a trial has come to.

    Args:
        method: ``paired``, over differences of episodes with the same tag ``pair``; ``unpaired``,
            over episodes without one; None while neither has enough of them.
        after: position from which on episodes that begin count.
        lsn: position of the row that ended the last of them; 0 before there is one.
        seen: held-out episodes, of whatever version, that have ended since.
        candidate, champion: their episodes without a tag ``pair``.
        pairs: that are complete.
        unmatched: episodes with a tag whose counterpart has not come.
        mean_candidate, mean_champion: mean returns: of the method's episodes; before there is a
            method, of all that count.
        estimate: mean difference.
        low: its one-sided lower bound with `confidence`; None before the end, since a bound that is
            looked at again and again is none.
        standard_error, degrees: of the bound.
        confidence: of the model's specification.
        min_episodes: likewise.
    """

    method: Literal["paired", "unpaired"] | None
    after: int
    lsn: int
    seen: int
    candidate: int
    champion: int
    pairs: int
    unmatched: int
    confidence: float
    min_episodes: int
    mean_candidate: float | None = None
    mean_champion: float | None = None
    estimate: float | None = None
    low: float | None = None
    standard_error: float | None = None
    degrees: float | None = None

    @property
    def better(self) -> bool:
        """Whether the candidate is shown to be better than the champion."""
        return self.low is not None and self.low > 0

    @property
    def reason(self) -> str:
        """Why it ended as it did, in words."""
        if self.low is None:
            return (
                f"lapsed: {self.seen} held-out episodes ended without {self.min_episodes} of each"
            )
        against = "is above 0" if self.better else "is not above 0"
        return (
            f"the {self.confidence:.4g} lower bound of {self.estimate:.6g}, {self.low:.6g}, "
            f"{against} ({self.method}, n = {self.min_episodes})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able builtins; `from_dict` restores it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        """Rebuild what `to_dict` gave."""
        return msgspec.convert(d, cls)


class Trial:
    """The episodes of one candidate and of the champion, until there are enough.

    Episodes count that began after the trial did. It is decided at the first episode with which
    there are `min_episodes` pairs, or as many episodes without a tag on either side; which comes
    first depends on tags alone, never on returns. It lapses when the episodes that are remembered
    have all ended within it and there are not enough.

    Args:
        candidate, champion: versions.
        after: position from which on episodes that begin count.
        rule: of the model's specification.
    """

    def __init__(self, candidate: int, champion: int, after: int, rule: Promotion) -> None:
        self.candidate, self.champion, self.after = candidate, champion, after
        self._rule = rule
        self._alone: dict[int, list[float]] = {candidate: [], champion: []}
        self._waiting: dict[str, tuple[int, float]] = {}  # pair to version and return
        self._pairs: dict[str, tuple[float, float]] = {}  # pair to candidate's and champion's
        self._seen = self._lsn = 0
        #: What it was decided on; None while it goes on.
        self.verdict: Evidence | None = None

    def take(self, episode: HeldOutEpisode) -> Evidence | None:
        """Take the next episode that ended; return what the trial was decided on, once it is."""
        if self.verdict is None and episode.last > self.after:
            self._seen += 1
            if episode.first > self.after and episode.version in self._alone:
                self._count(episode)
            self.verdict = self._decided()
        return self.verdict

    def _count(self, episode: HeldOutEpisode) -> None:
        self._lsn = episode.last
        if episode.pair is None:
            alone = self._alone[episode.version]
            if len(alone) < self._rule.min_episodes:
                alone.append(episode.total)
            return
        if episode.pair in self._pairs:
            return
        other = self._waiting.get(episode.pair)
        if other is None:
            self._waiting[episode.pair] = (episode.version, episode.total)
        elif other[0] != episode.version:  # a second one of the same version adds nothing
            del self._waiting[episode.pair]
            ours = episode.version == self.candidate
            self._pairs[episode.pair] = (
                (episode.total, other[1]) if ours else (other[1], episode.total)
            )

    def _decided(self) -> Evidence | None:
        n, confidence = self._rule.min_episodes, self._rule.confidence
        if len(self._pairs) >= n:
            ours, theirs = (list(side) for side in zip(*self._pairs.values(), strict=True))
            differences = [a - b for a, b in zip(ours, theirs, strict=True)]
            bound = paired_lower_bound(differences, confidence)
            return self._evidence("paired", ours, theirs, bound)
        ours, theirs = self._alone[self.candidate], self._alone[self.champion]
        if min(len(ours), len(theirs)) >= n:
            bound = welch_lower_bound(ours, theirs, confidence)
            return self._evidence("unpaired", ours, theirs, bound)
        return self.evidence() if self._seen >= kept_episodes(n) else None

    def evidence(self) -> Evidence:
        """Return what it was decided on or, while it goes on, what there is so far."""
        if self.verdict is not None:
            return self.verdict
        paired = list(self._pairs.values())
        ours = [*self._alone[self.candidate], *(a for a, _ in paired)]
        theirs = [*self._alone[self.champion], *(b for _, b in paired)]
        return self._evidence(None, ours, theirs, None)

    def _evidence(
        self,
        method: Literal["paired", "unpaired"] | None,
        ours: list[float],
        theirs: list[float],
        bound: LowerBound | None,
    ) -> Evidence:
        both = _mean(ours), _mean(theirs)
        degrees = None if bound is None or math.isinf(bound.degrees) else bound.degrees
        estimate = None if None in both else both[0] - both[1]  # type: ignore[operator]
        return Evidence(
            method=method,
            after=self.after,
            lsn=self._lsn,
            seen=self._seen,
            candidate=len(self._alone[self.candidate]),
            champion=len(self._alone[self.champion]),
            pairs=len(self._pairs),
            unmatched=len(self._waiting),
            confidence=self._rule.confidence,
            min_episodes=self._rule.min_episodes,
            mean_candidate=both[0],
            mean_champion=both[1],
            estimate=estimate if bound is None else bound.estimate,
            low=None if bound is None else bound.low,
            standard_error=None if bound is None else bound.standard_error,
            degrees=degrees,
        )


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
