"""The ledger: which identities are known, with what content and what outcome.

Storage-neutral: a `Store` answers for one episode or one block of 256 timesteps; a `Draft` is an
overlay that a request or a commit group writes into, so that a refusal or a failed commit leaves
nothing behind. `MemoryStore` serves the learner in process; the service has a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.tally import Arrival, Overlay, Roll, Tallies, Tally

__all__ = [
    "BLOCK",
    "Block",
    "Counters",
    "Draft",
    "Episode",
    "Key",
    "MemoryStore",
    "Pending",
    "Store",
    "new_block",
    "new_slots",
]

#: Timesteps per block.
BLOCK = 256
_SLOT = np.dtype(
    [("digest", "<u8"), ("ordinal", "<i8"), ("label", "<i4"), ("state", "u1"), ("split", "u1")]
)

#: A whole block of which nothing is known.
_UNKNOWN = np.zeros(BLOCK, dtype=_SLOT)
_UNKNOWN["label"] = -1

Key: TypeAlias = tuple[str, str]  # actor_id, episode_id
Identity: TypeAlias = tuple[str, str, int]
#: A structured array of up to 256 slots: digest, ordinal within the split, label (-1 none), state
#: (0 unknown, else the row's outcome), split. Slots beyond its length are unknown.
Block: TypeAlias = NDArray[np.void]


class Episode(NamedTuple):
    """What is known of an episode: first split, all splits (bits), end (-1: open), last step."""

    split: int
    splits: int
    end: int
    last: int


class Pending(NamedTuple):
    """A label that waits: its class, and how many transitions had been accepted when it came."""

    label: int
    since: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one model's admissions.

    `lsn` is the position of the last row; `train` and `validation` count accepted transitions;
    `unversioned` those whose action was not this model's; `mixed_episodes` episodes with both
    splits.
    """

    lsn: int = 0
    data_lsn: int = 0
    train: int = 0
    validation: int = 0
    stale_dropped: int = 0
    unversioned: int = 0
    mixed_episodes: int = 0
    pending: int = 0
    pending_expired: int = 0

    @property
    def accepted(self) -> int:
        """Accepted transitions of both splits."""
        return self.train + self.validation

    def warnings(self) -> list[str]:
        """Return what the operator should know, each with its remedy."""
        if not self.mixed_episodes:
            return []
        return [
            f"mixed_episodes: {self.mixed_episodes} episodes have transitions of both splits and so"
            " share observations; use split_scope 'episode'"
        ]


class Store(Protocol):
    """Where the ledger lives."""

    @property
    def counters(self) -> Counters:
        """The totals so far."""
        ...

    def episode(self, key: Key) -> Episode | None:
        """Return what is known of an episode."""
        ...

    def block(self, key: Key, number: int) -> Block | None:
        """Return one block of an episode; the caller does not write to it."""
        ...

    def pending(self, identity: Identity) -> Pending | None:
        """Return the label that waits for a transition."""
        ...

    def pending_oldest(self) -> Iterator[tuple[Identity, Pending]]:
        """Iterate over waiting labels, oldest first."""
        ...

    @property
    def roll(self) -> Tallies:
        """What each actor has sent so far."""
        ...


def new_block(length: int, old: Block | None = None) -> Block:
    """Return a writable block of at least `length` slots that begins with `old`."""
    rounded = min(BLOCK, -(-length // 16) * 16)
    if old is not None and len(old) >= rounded:
        return old.copy()
    block = _UNKNOWN[:rounded].copy()
    if old is not None:
        block[: len(old)] = old
    return block


def new_slots(count: int) -> Block:
    """Return slots to be filled and then written into blocks; their content is arbitrary."""
    return np.empty(count, dtype=_SLOT)


def block_from_bytes(data: bytes) -> Block:
    """Rebuild a block from ``block.tobytes()``."""
    return np.frombuffer(data, dtype=_SLOT)


@dataclass
class Draft:
    """Changes over a store, kept apart until they are merged or forgotten."""

    base: Store
    episodes: dict[Key, Episode] = field(default_factory=dict)
    blocks: dict[tuple[Key, int], Block] = field(default_factory=dict)
    pendings: dict[Identity, Pending | None] = field(default_factory=dict)  # None: removed
    changed: Counters | None = None
    #: What the request brought whose draft this is.
    arrival: Arrival | None = None
    roll: Overlay = field(init=False)

    def __post_init__(self) -> None:
        self.roll = Overlay(self.base.roll)

    @property
    def counters(self) -> Counters:
        """The totals, changes included."""
        return self.changed or self.base.counters

    def count(self, **more: int) -> None:
        """Add to counters."""
        now = self.counters
        self.changed = replace(now, **{k: getattr(now, k) + v for k, v in more.items()})

    def next_lsn(self) -> int:
        """Take the next position of the journal for a data row."""
        now = self.counters
        self.changed = replace(now, lsn=now.lsn + 1, data_lsn=now.lsn + 1)
        return now.lsn + 1

    def episode(self, key: Key) -> Episode | None:
        """Return what is known of an episode."""
        return self.episodes[key] if key in self.episodes else self.base.episode(key)

    def block(self, key: Key, number: int) -> Block | None:
        """Return one block of an episode; the caller does not write to it."""
        found = self.blocks.get((key, number))
        return found if found is not None else self.base.block(key, number)

    def writable(self, key: Key, number: int, length: int, known: int | None = None) -> Block:
        """Return a block of at least `length` slots whose changes belong to this draft.

        Args:
            key: of the episode.
            number: of the block.
            length: slots.
            known: last step of the episode so far, -1 for none: behind it there is no block to look
                for. None is any.
        """
        mine = self.blocks.get((key, number))
        if mine is None or len(mine) < length:
            begins = known is not None and known < number * BLOCK
            mine = new_block(length, None if begins else self.block(key, number))
            self.blocks[key, number] = mine
        return mine

    def pending(self, identity: Identity) -> Pending | None:
        """Return the label that waits for a transition."""
        if identity in self.pendings:
            return self.pendings[identity]
        return self.base.pending(identity)

    def pending_oldest(self) -> Iterator[tuple[Identity, Pending]]:
        """Iterate over waiting labels, oldest first."""
        for identity, waiting in self.base.pending_oldest():
            if identity not in self.pendings:
                yield identity, waiting
        for identity, mine in self.pendings.items():
            if mine is not None:
                yield identity, mine

    def put_pending(self, identity: Identity, waiting: Pending) -> None:
        """Let a label wait."""
        self.pendings[identity] = waiting
        self.count(pending=1)

    def drop_pending(self, identity: Identity) -> None:
        """Take a label off the waiting list."""
        self.pendings[identity] = None
        self.count(pending=-1)

    def merge(self, changes: Draft) -> None:
        """Take over the changes of a draft that was made over this one."""
        self.episodes.update(changes.episodes)
        self.blocks.update(changes.blocks)
        for identity, waiting in changes.pendings.items():
            # Re-inserted, so that the order stays the order in which labels came to wait.
            self.pendings.pop(identity, None)
            self.pendings[identity] = waiting
        self.changed = changes.changed or self.changed
        self.roll.take(changes.roll.tallies)


@dataclass
class MemoryStore:
    """A store in this process's memory."""

    counters: Counters = field(default_factory=Counters)
    episodes: dict[Key, Episode] = field(default_factory=dict)
    blocks: dict[tuple[Key, int], Block] = field(default_factory=dict)
    pendings: dict[Identity, Pending] = field(default_factory=dict)
    roll: Roll = field(default_factory=Roll)

    def episode(self, key: Key) -> Episode | None:
        """Return what is known of an episode."""
        return self.episodes.get(key)

    def block(self, key: Key, number: int) -> Block | None:
        """Return one block of an episode."""
        return self.blocks.get((key, number))

    def pending(self, identity: Identity) -> Pending | None:
        """Return the label that waits for a transition."""
        return self.pendings.get(identity)

    def pending_oldest(self) -> Iterator[tuple[Identity, Pending]]:
        """Iterate over waiting labels, oldest first."""
        return iter(self.pendings.items())

    def apply(self, changes: Draft) -> None:
        """Make a draft's changes permanent."""
        self.episodes.update(changes.episodes)
        self.blocks.update(changes.blocks)
        for identity, waiting in changes.pendings.items():
            self.pendings.pop(identity, None)
            if waiting is not None:
                self.pendings[identity] = waiting
        self.roll.take(changes.roll.tallies)
        self.counters = changes.counters

    def to_bytes(self) -> bytes:
        """Return everything as MessagePack."""
        return msgspec.msgpack.encode(
            {
                "counters": asdict(self.counters),
                "episodes": [(*key, *episode) for key, episode in self.episodes.items()],
                "blocks": [(*key, n, b.tobytes()) for (key, n), b in self.blocks.items()],
                "pendings": [(*identity, *p) for identity, p in self.pendings.items()],
                "actors": [(actor, *tally) for actor, tally in self.roll.items()],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> MemoryStore:
        """Rebuild what `to_bytes` gave."""
        body = msgspec.msgpack.decode(data)
        roll = Roll()
        # A checkpoint from before there were tallies has none.
        roll.take({actor: Tally(*rest) for actor, *rest in body.get("actors", ())})
        return cls(
            counters=Counters(**body["counters"]),
            episodes={(a, e): Episode(*rest) for a, e, *rest in body["episodes"]},
            blocks={((a, e), n): block_from_bytes(b) for a, e, n, b in body["blocks"]},
            pendings={(a, e, t): Pending(*rest) for a, e, t, *rest in body["pendings"]},
            roll=roll,
        )
