"""Identities: which transitions of a request are known, and whether new ones fit their episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jormungandr.admission.continuation import Continuation
from jormungandr.columns import Columns
from jormungandr.errors import EpisodeClosed, IdentityConflict, SplitConflict
from jormungandr.ledger import BLOCK, Block, Draft, Episode, Key, new_slots
from jormungandr.protocol import SPLITS
from jormungandr.spec import ModelSpec

__all__ = [
    "Group",
    "extended",
    "groups",
    "known_states",
    "repeated",
    "write",
]

_RERUN = "episode ids must differ between runs; the wrappers make {run}-{env}-{n} for that"


@dataclass(frozen=True)
class Group:
    """The transitions of one episode in a batch: their positions and timesteps, (G,) each."""

    key: Key
    index: NDArray[np.int64]
    timestep: NDArray[np.int64]


def groups(columns: Columns, index: NDArray[np.int64] | None = None) -> Iterator[Group]:
    """Yield the transitions of each episode; episodes and transitions in the order they came."""
    if index is None:
        index = np.arange(len(columns))
    if not len(index):
        return
    code = columns.actor[index].astype(np.int64) * len(columns.episodes) + columns.episode[index]
    order = np.argsort(code, kind="stable")
    ordered = index[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(code[order])) + 1))
    bounds = [*starts.tolist(), len(ordered)]
    first = ordered[starts]
    ids = list(zip(columns.actor[first].tolist(), columns.episode[first].tolist(), strict=True))
    timestep = columns.timestep[ordered]
    # By first place rather than by code: how a batch was encoded decides nothing.
    for i in np.argsort(first).tolist():
        part = slice(bounds[i], bounds[i + 1])
        key = (columns.actors[ids[i][0]], columns.episodes[ids[i][1]])
        yield Group(key, ordered[part], timestep[part])


def known_states(
    group: Group, columns: Columns, digests: NDArray[np.uint64], draft: Draft
) -> NDArray[np.uint8]:
    """Return (G,) what became of transitions that are known, 0 for others.

    Raises:
        IdentityConflict, SplitConflict: one is known as another.
    """
    t, index = group.timestep, group.index
    digest, split = digests[index], columns.split[index]
    episode = draft.episode(group.key)
    known = np.zeros(len(t), dtype=np.uint8)
    if episode is None or not len(t) or t.min() > episode.last:
        return known
    for number in np.unique(t // BLOCK):
        block = draft.block(group.key, int(number))
        if block is None:
            continue
        here = np.flatnonzero((t // BLOCK == number) & (t % BLOCK < len(block)))
        slot = block[t[here] % BLOCK]
        seen = slot["state"] != 0
        known[here] = slot["state"]
        same = ~seen | (slot["digest"] == digest[here])
        _conflict(same, index[here], columns, IdentityConflict, "the content first sent")
        same = ~seen | (slot["split"] == split[here])
        _conflict(same, index[here], columns, SplitConflict, "the split first sent")
    return known


def repeated(
    group: Group, columns: Columns, digests: NDArray[np.uint64]
) -> NDArray[np.int64] | None:
    """Return (G,) where in the group each transition comes first; None when none comes twice.

    Raises:
        IdentityConflict, SplitConflict: one comes twice, and differs.
    """
    t, index = group.timestep, group.index
    if (t[1:] > t[:-1]).all():  # as they mostly come
        return None
    times, first, inverse = np.unique(t, return_index=True, return_inverse=True)
    if len(times) == len(t):
        return None
    digest, split = digests[index], columns.split[index]
    same = digest[first[inverse]] == digest
    _conflict(same, index, columns, IdentityConflict, "one content per identity")
    same = split[first[inverse]] == split
    _conflict(same, index, columns, SplitConflict, "one split per identity")
    origin: NDArray[np.int64] = first[inverse]
    return origin


def extended(
    group: Group, new: NDArray[np.bool_], columns: Columns, draft: Draft, spec: ModelSpec
) -> Episode:
    """Return the episode with new transitions in it, if they fit.

    Args:
        group: of the episode.
        new: (G,) which of its transitions are.
        columns: of the request.
        draft: read; episodes that come to mix splits are counted in it.
        spec: of the model.

    Raises:
        SplitConflict, EpisodeClosed: one does not fit.
    """
    key, index, t = group.key, group.index[new], group.timestep[new]
    splits, episode = columns.split[index], draft.episode(key)
    if episode is None:
        episode = Episode(split=int(splits[0]), splits=0, end=-1, last=-1)
    if spec.split_scope == "episode":
        expected = f"{SPLITS[episode.split]}, the episode's first split"
        _conflict(splits == episode.split, index, columns, SplitConflict, expected)
    mask = episode.splits | int(np.bitwise_or.reduce(1 << splits.astype(np.int64)))
    if mask == 3 and episode.splits != 3:
        draft.count(mixed_episodes=1)
    ends = t[(columns.terminated | columns.truncated)[index]]
    end = episode.end if not len(ends) else int(ends.min())
    if episode.end >= 0:
        end = min(end, episode.end)
    last = max(episode.last, int(t.max()))
    if 0 <= end < last:
        # Either a step after the end, or an end before a step that is known: name the newcomer.
        late = t > end
        if not late.any():
            late = t == end
        i = int(index[np.argmax(late)])
        raise EpisodeClosed(
            f"transitions[{i}]",
            f"no step of episode {key[1]!r}, actor {key[0]!r}, after its end at timestep {end}",
            f"timestep {last}" if last != columns.timestep[i] else columns.timestep[i],
            _RERUN,
        )
    return Episode(episode.split, mask, end, last)


def write(
    columns: Columns,
    new: NDArray[np.bool_],
    digests: NDArray[np.uint64],
    outcome: NDArray[np.uint8],
    label: NDArray[np.int32],
    ordinal: NDArray[np.int64],
    draft: Draft,
    continuation: Continuation | None = None,
) -> None:
    """Record new transitions in the blocks of their episodes; all arrays are (B,).

    With a `continuation` all of them are new.
    """
    records = new_slots(len(columns))
    records["digest"] = digests
    records["ordinal"] = ordinal
    records["label"] = label
    records["state"] = outcome
    records["split"] = columns.split
    if continuation is not None:
        order, stretches, _ = continuation
        ordered, slots = records[order], columns.timestep[order] % BLOCK
        for key, begin, end, first, last, known in stretches:
            if first // BLOCK == last // BLOCK:
                block = draft.writable(key, first // BLOCK, last % BLOCK + 1, known)
                block[slots[begin:end]] = ordered[begin:end]
            else:
                timestep = columns.timestep[order[begin:end]]
                _write(key, timestep, ordered[begin:end], draft)
        return
    for group in groups(columns, np.flatnonzero(new)):
        _write(group.key, group.timestep, records[group.index], draft)


def _write(key: Key, timestep: NDArray[np.int64], records: Block, draft: Draft) -> None:
    """Record transitions of one episode, whatever blocks they lie in; (G,) each."""
    number, slot = np.divmod(timestep, BLOCK)
    for each in np.unique(number).tolist():
        here = number == each
        block = draft.writable(key, each, int(slot[here].max()) + 1)
        block[slot[here]] = records[here]


def _conflict(
    fine: NDArray[np.bool_],
    index: NDArray[np.int64],
    columns: Columns,
    error: type[IdentityConflict | SplitConflict],
    expected: str,
) -> None:
    if not fine.all():
        i = int(index[np.argmin(fine)])
        actor, episode, t = columns.identity(i)
        got = f"another for actor {actor!r}, episode {episode!r}, timestep {t}"
        raise error(f"transitions[{i}]", expected, got, _RERUN)
