"""`Steps`: from the records of a file to transitions, with split, timestep and successor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from jormungandr.cli.fields import Fields
from jormungandr.cli.logged import Record
from jormungandr.columns import REQUIRED
from jormungandr.errors import InvalidValue, MissingField
from jormungandr.protocol import SPLITS, Transition

__all__ = ["Step", "Steps", "split_rule"]

Key = tuple[Any, Any]


@dataclass(slots=True)
class Step:
    """One transition on its way: the record it is of, and its fields so far."""

    record: Record
    fields: dict[str, Any]

    @property
    def key(self) -> Key:
        """Actor and episode."""
        return self.fields["actor_id"], self.fields["episode_id"]

    @property
    def last(self) -> bool:
        """Whether its episode ends with it."""
        return bool(self.fields["terminated"] or self.fields["truncated"])

    def transition(self) -> Transition:
        """Return it, whole."""
        return Transition(**self.fields)


def split_rule(given: str, seed: int) -> tuple[str | None, Callable[[Key], str]]:
    """Return (column that holds the split, or None; the split of an episode).

    With a fraction, an episode is held out when the SHA-256 of the seed and its names, taken as a
    number in [0, 1), is below it: the same episodes each time, and whatever else is in the file.

    Args:
        given: ``train``, ``validation``, ``column:NAME`` or ``fraction:F``.
        seed: of the choice of episodes.

    Raises:
        InvalidValue: something else.
    """
    kind, colon, value = given.partition(":")
    if given in SPLITS:
        return None, lambda key: given
    if kind == "column" and value:
        return value, lambda key: ""
    if kind == "fraction" and colon:
        try:
            fraction = float(value)
        except ValueError:
            fraction = -1.0
        if 0 < fraction < 1:
            return None, lambda key: SPLITS[_uniform(seed, key) < fraction]
    expected = "train, validation, column:NAME, or fraction:F with 0 < F < 1"
    raise InvalidValue("--split", expected, repr(given))


def _uniform(seed: int, key: Key) -> float:
    text = f"{seed}\0{key[0]}\0{key[1]}".encode()
    return int.from_bytes(sha256(text).digest()[:8]) / 2**64


@dataclass
class Steps:
    """Make transitions of records, in the order of the file but for what waits for a successor.

    Args:
        fields: what the columns stand for.
        split: of an episode, where no column says it.
        keep_versions: whether the file's policy versions are of the model that is filled.
        last: what becomes of a step whose successor the file does not have: ``refuse``, ``drop``
            (the episode then ends before it, ``truncated``), or ``repeat``, which gives a
            terminated one its own observation, for nothing bootstraps from it, and drops others.
    """

    fields: Fields
    split: Callable[[Key], str]
    keep_versions: bool = False
    last: Literal["refuse", "drop", "repeat"] = "refuse"
    #: Records left out: what admission had dropped already, and steps without a successor.
    stale: int = 0
    dropped: int = 0
    _next: dict[Key, int] = field(default_factory=dict)  # timesteps, where no column has them
    #: Of an episode, up to two steps: one that is whole, and one that waits for its successor.
    _waiting: dict[Key, list[Step]] = field(default_factory=dict)

    def read(self, records: Iterable[Record]) -> Iterator[Step]:
        """Yield whole steps.

        Raises:
            InvalidInput: (one of its classes) naming the line and the column.
        """
        for record in records:
            step = self._step(record)
            if step is None:
                continue
            if "next_observation" in step.fields:
                yield step
            else:
                yield from self._follow(step)
        for steps in list(self._waiting.values()):
            yield from self._end(steps)
        self._waiting.clear()

    def _step(self, record: Record) -> Step | None:
        found = self.fields.read(record)
        outcome = found.pop("outcome", "accepted")
        if outcome == "stale_dropped":
            self.stale += 1
            return None
        if outcome != "accepted":
            where = f"{record.place}, column {self.fields.column('outcome', record.values)}"
            raise InvalidValue(where, "accepted or stale_dropped", repr(outcome))
        for name in ("actor_id", "episode_id", "terminated", "truncated"):
            if name not in found:
                raise MissingField(*self._missing(record, name))
        step = Step(record, found)
        if not self.keep_versions:
            found["policy_version"] = -1
        if "split" not in found and self.fields.split is None:
            found["split"] = self.split(step.key)
        if "timestep" not in found:
            if "timestep" in self.fields.targets(record.values).values():
                raise MissingField(*self._missing(record, "timestep"))
            found["timestep"] = self._next.get(step.key, 0)
            self._next[step.key] = found["timestep"] + 1
        for name in REQUIRED:
            if name not in found and name != "next_observation":
                raise MissingField(*self._missing(record, name))
        return step

    def _missing(self, record: Record, name: str) -> tuple[str, str, str, str]:
        where = f"{record.place}, column {self.fields.column(name, record.values)}"
        remedy = f"--map COLUMN={name}, or --const {name}=VALUE where it is the same throughout"
        return where, "a value", "nothing", remedy

    def _follow(self, step: Step) -> Iterator[Step]:
        """Give the step before this one its successor, and let this one wait for its own."""
        waiting = self._waiting.pop(step.key, [])
        if waiting:
            before = waiting[-1]
            if step.fields["timestep"] != before.fields["timestep"] + 1:
                yield from self._end(waiting, goes_on=True)
                waiting = []
            else:
                before.fields["next_observation"] = step.fields["observation"]
                yield from waiting[:-1]
                waiting = [before]
        waiting.append(step)
        if step.last:
            yield from self._end(waiting)
        else:
            self._waiting[step.key] = waiting

    def _end(self, steps: list[Step], *, goes_on: bool = False) -> Iterator[Step]:
        """Deal with a step that has no successor, and let the one before it go.

        Args:
            steps: of an episode, the one without a successor last.
            goes_on: whether the episode has more steps, after a gap.
        """
        *whole, step = steps
        if self.last == "refuse":
            column = self.fields.column("next_observation", step.record.values)
            raise MissingField(
                f"{step.record.place}, column {column}",
                f"a value, or timestep {step.fields['timestep'] + 1} of the episode further down",
                "neither",
                "--last drop leaves out such steps, --last repeat only those not terminated",
            )
        if self.last == "repeat" and step.fields["terminated"]:
            step.fields["next_observation"] = step.fields["observation"]
            whole.append(step)
        else:
            self.dropped += 1
            for before in whole:
                before.fields["truncated"] = not goes_on
        yield from whole
