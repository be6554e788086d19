"""A trial: what counts, when it is decided and on what; against a slow one, and by simulation."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import numpy as np
import pytest

from jormungandr.heldout import HeldOutEpisode, kept_episodes
from jormungandr.numerics.bounds import paired_lower_bound, welch_lower_bound
from jormungandr.settings import Promotion
from jormungandr.trial import Evidence, Trial

CHAMPION, CANDIDATE = 4, 9


def rule(n: int = 3, **changes: Any) -> Promotion:
    """Return settings with so many episodes."""
    return Promotion(serve="champion", min_episodes=n, **changes)


def run(trial: Trial, episodes: list[tuple[Any, ...]]) -> Evidence | None:
    """Give a trial (version, total, pair) in rows of their own, after its beginning."""
    numbers = count(1)
    for version, total, *pair in episodes:
        n = next(numbers)
        at = trial.after + n
        trial.take(HeldOutEpisode(n, version, at, at, total, pair[0] if pair else None))
    return trial.verdict


def begun(n: int = 3, after: int = 10) -> Trial:
    """Return a trial of so many episodes."""
    return Trial(CANDIDATE, CHAMPION, after, rule(n))


def test_decided_at_the_last_pair() -> None:
    """Neither before there are enough pairs, nor again after that."""
    episodes = [(v, float(v + k), f"p{k}") for k in range(3) for v in (CHAMPION, CANDIDATE)]
    trial = begun()

    assert run(trial, episodes[:-1]) is None
    found = run(begun(), [*episodes, (CANDIDATE, -1e9, "p9"), (CHAMPION, 1e9, "p9")])
    assert found is not None
    assert (found.method, found.pairs, found.seen, found.lsn) == ("paired", 3, 6, 16)
    assert (found.estimate, found.low, found.better) == (5.0, 5.0, True)
    assert (found.mean_candidate, found.mean_champion) == (10.0, 5.0)


def test_pairs_are_of_one_condition() -> None:
    """Differences are within pairs, in whatever order their episodes came."""
    ours, theirs = [1.0, 5.0, 2.0], [0.5, 5.5, 1.0]
    episodes = [(CANDIDATE, total, f"p{k}") for k, total in enumerate(ours)]
    episodes += [(CHAMPION, theirs[k], f"p{k}") for k in (2, 0, 1)]
    found = run(begun(), episodes)

    assert found is not None
    assert found.low == paired_lower_bound([0.5, -0.5, 1.0]).low
    assert not found.better


def test_without_tags_it_is_unpaired() -> None:
    """The first so many of either, once both have them."""
    ours, theirs = [1.0, 2.0, 3.0], [0.0, 1.0, 0.5]
    episodes = [(CANDIDATE, x) for x in (*ours, 1e6)] + [(CHAMPION, x) for x in theirs]
    found = run(begun(), episodes)

    assert found is not None
    assert (found.method, found.candidate, found.champion, found.seen) == ("unpaired", 3, 3, 7)
    assert found.low == welch_lower_bound(ours, theirs).low


def test_what_does_not_count() -> None:
    """Episodes of other versions, of before, and second ones of a pair change no verdict."""
    trial = begun(2)
    early = HeldOutEpisode(1, CANDIDATE, 10, 11, 1e6, "p0")  # it ended within, and began before
    before = HeldOutEpisode(2, CANDIDATE, 9, 10, 1e6, "p0")
    other = HeldOutEpisode(3, 5, 11, 11, 1e6, "p0")
    for episode in (early, before, other):
        assert trial.take(episode) is None
    found = run(
        trial,
        [
            (CANDIDATE, 1.0, "p0"),
            (CANDIDATE, 1e6, "p0"),
            (CHAMPION, 0.0, "p0"),
            (CHAMPION, 1e6, "p0"),
            (CHAMPION, 1.0, "p1"),
            (CANDIDATE, 2.0, "p1"),
        ],
    )

    assert found is not None
    assert (found.estimate, found.pairs, found.seen) == (1.0, 2, 8)


def test_pairs_and_single_ones_are_not_mixed() -> None:
    """An episode with a tag waits for its pair; one without counts for the other method."""
    found = run(begun(2), [(CANDIDATE, 1.0, "p"), (CANDIDATE, 2.0), (CHAMPION, 3.0)])
    trial = begun(2)
    run(trial, [(CANDIDATE, 1.0, "p"), (CANDIDATE, 2.0), (CHAMPION, 3.0)])
    so_far = trial.evidence()

    assert found is None
    assert (so_far.pairs, so_far.unmatched, so_far.candidate, so_far.champion) == (0, 1, 1, 1)
    assert (so_far.method, so_far.low, so_far.estimate) == (None, None, -1.0)


def test_it_lapses() -> None:
    """Where the remembered episodes are all of others, it ends without a bound."""
    trial, keep = begun(2), kept_episodes(2)
    run(trial, [(CANDIDATE, 1.0)] + [(5, 0.0)] * (keep - 2))
    assert trial.verdict is None
    lapsed = trial.take(HeldOutEpisode(keep, 5, 10_000, 10_000, 0.0))

    assert lapsed is not None
    assert (lapsed.low, lapsed.better, lapsed.seen) == (None, False, keep)
    assert lapsed.reason.startswith(f"lapsed: {keep} held-out episodes")


def test_no_bound_before_the_end() -> None:
    """Who looks at the evidence sees means and counts, and no bound to decide on too early."""
    trial = begun(3)
    run(trial, [(CANDIDATE, 5.0, "p"), (CHAMPION, 1.0, "p")])

    assert (trial.evidence().estimate, trial.evidence().low) == (4.0, None)


@pytest.mark.parametrize("pair", [True, False])
def test_equal_ones_that_do_not_vary_are_refused(pair: bool) -> None:
    """A candidate that does exactly what the champion does is not better."""
    tag = [("p0",), ("p1",)] if pair else [(), ()]
    found = run(begun(2), [(v, 2.5, *tag[k]) for k in range(2) for v in (CHAMPION, CANDIDATE)])

    assert found is not None
    assert (found.low, found.better, found.degrees) == (0.0, False, None)
    assert Evidence.from_dict(found.to_dict()) == found


def slow(episodes: list[HeldOutEpisode], n: int, after: int) -> tuple[int, str] | None:
    """Return the number of the episode that decides, and how: everything anew after each one."""
    for upto in range(1, len(episodes) + 1):
        fair = [e for e in episodes[:upto] if e.first > after]
        first: dict[tuple[int, str], float] = {}
        for e in fair:
            if e.pair is not None:
                first.setdefault((e.version, e.pair), e.total)
        pairs = {p for v, p in first if v == CANDIDATE} & {p for v, p in first if v == CHAMPION}
        if len(pairs) >= n:
            return upto, "paired"
        alone = [sum(e.version == v and e.pair is None for e in fair) for v in (4, 9)]
        if min(alone) >= n:
            return upto, "unpaired"
    return None


@pytest.mark.parametrize("seed", range(25))
def test_agrees_with_a_slow_one(seed: int) -> None:
    """At which episode it is decided, and by which method, for any order of episodes."""
    rng = np.random.default_rng(seed)
    episodes = [
        HeldOutEpisode(
            k,
            int(rng.choice([4, 9, 9, 5])),
            max(1, 8 + k - int(rng.integers(6))),
            8 + k,
            float(rng.normal()),
            None if rng.random() < 0.5 else f"p{rng.integers(8)}",
        )
        for k in range(1, 60)
    ]
    trial, decided = begun(4), None
    for k, episode in enumerate((e for e in episodes if e.last > 10), 1):
        if trial.take(episode) is not None:
            assert trial.verdict is not None
            decided = k, trial.verdict.method
            break

    assert decided == slow([e for e in episodes if e.last > 10], 4, 10)


@pytest.mark.parametrize("paired", [True, False])
def test_false_promotions(paired: bool) -> None:
    """Of 400 candidates that are no better, about one in twenty at most is promoted."""
    rng, wrong, tries, n = np.random.default_rng(11), 0, 400, 30
    for _ in range(tries):
        path = rng.exponential(5, n)
        episodes = [
            (v, float(path[k] + rng.exponential(3)), *([f"p{k}"] if paired else []))
            for k in range(n)
            for v in (CHAMPION, CANDIDATE)
        ]
        found = run(begun(n), episodes)
        assert found is not None
        wrong += found.better

    assert wrong / tries < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries)


def test_a_better_one_is_promoted() -> None:
    """Half a standard deviation better, in a hundred pairs, is seen nearly always."""
    rng, right = np.random.default_rng(12), 0
    for _ in range(100):
        episodes = [
            (v, float(rng.normal(0.5 * (v == CANDIDATE), 1)), f"p{k}")
            for k in range(100)
            for v in (CHAMPION, CANDIDATE)
        ]
        found = run(begun(100), episodes)
        assert found is not None
        right += found.better

    assert right > 90
