"""`TimeSplit`: episodes of historical data held out by time, with a gap that nobody learns from.

Purging and embargo are those of López de Prado, Advances in Financial Machine Learning (2018),
chapter 7: what overlaps the held-out time is kept out of training, and so is what lies close to it.
An episode counts with its whole interval. Training always comes before the time that is held out,
as it will when the policy is used; the gap lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np

from jormungandr.errors import InvalidType, InvalidValue, MissingField, shown
from jormungandr.protocol import Split

__all__ = ["Instant", "Length", "TimeSplit", "walk_forward"]

#: A point in time, in the unit of the data: a number, a date, or a datetime.
Instant: TypeAlias = int | float | date
#: A distance between two of them: a number, or a timedelta.
Length: TypeAlias = int | float | timedelta


@dataclass(frozen=True)
class TimeSplit:
    """Which split an episode belongs to, by the interval of time that it plays.

    Training is what lies in [`train_from`, `train_until`), validation what lies in
    [`validation_from`, `validation_until`), where `validation_from` is `train_until` + `embargo`.
    An episode that reaches beyond either belongs to neither: None.

    All points in time are of one kind: numbers, dates, datetimes with or without a time zone. ISO
    text and NumPy's datetime64 are taken as what they say.

    Args:
        train_until: end of training, not part of it.
        embargo: length of the gap, at least 0: at least what an observation looks back, and what
            a position may last beyond its episode. Of dates a timedelta of whole days.
        validation_until: end of what is held out, not part of it; None is no end.
        train_from: begin of training; None is from ever.

    Raises:
        InvalidType: what is no point in time, or points of different kinds.
        InvalidValue: an end that does not come after its begin, or a length below 0.

    Example:
        >>> split = TimeSplit(train_until="2020-01-01", embargo=timedelta(days=10))
        >>> split("2019-12-02", "2019-12-31"), split("2020-01-11", "2020-02-11")
        ('train', 'validation')
        >>> split("2019-12-02", "2020-01-01"), split("2020-01-10", "2020-02-11")  # None for both
        (None, None)
    """

    train_until: Any
    embargo: Any
    validation_until: Any = None
    train_from: Any = None

    def __post_init__(self) -> None:
        until = _instant(self.train_until, "train_until")
        object.__setattr__(self, "train_until", until)
        object.__setattr__(self, "embargo", _length(self.embargo, until, "embargo"))
        for name, first, last in (
            ("validation_until", self.validation_from, self.validation_until),
            ("train_from", self.train_from, until),
        ):
            given = getattr(self, name)
            if given is None:
                continue
            instant = self._like(given, name)
            object.__setattr__(self, name, instant)
            begin, end = (first, instant) if last is given else (instant, last)
            if not begin < end:
                expected = f"after {begin}" if last is given else f"before {end}"
                raise InvalidValue(name, expected, instant)

    @property
    def validation_from(self) -> Any:
        """Begin of what is held out."""
        return self.train_until + self.embargo

    def __call__(self, start: Any, end: Any = None) -> Split | None:
        """Return the split of an episode; None is of neither.

        Args:
            start: time of its first observation, or of the first price that it looks back at.
            end: time of the last one; None is `start`.

        Raises:
            InvalidType: what is no point in time, or of another kind than the split's.
            InvalidValue: an end before the start.
        """
        first = self._like(start, "start")
        last = first if end is None else self._like(end, "end")
        if last < first:
            raise InvalidValue("end", f"{first}, the start, or later", last)
        if last < self.train_until:
            early = self.train_from is not None and first < self.train_from
            return None if early else "train"
        if first >= self.validation_from:
            late = self.validation_until is not None and last >= self.validation_until
            return None if late else "validation"
        return None

    def by(self, start: str, end: str | None = None) -> Callable[[Mapping[str, Any]], Split | None]:
        """Return the rule for recorders: by the times in the info of an episode's reset.

        Args:
            start: key of the time at which the episode begins.
            end: key of the time at which it will end at the latest; None: it is one point in time,
                a date whose day it does not outlast, say.
        """

        def rule(info: Mapping[str, Any]) -> Split | None:
            for key in (start, end):
                if key is not None and info.get(key) is None:
                    there = sorted(key for key in info if not key.startswith("_"))
                    raise MissingField(f"info[{key!r}]", f"one of {there}", "nothing")
            return self(info[start], None if end is None else info[end])

        return rule

    def _like(self, value: Any, where: str) -> Any:
        """Return a point in time of the split's kind."""
        instant = _instant(value, where)
        if _kind(instant) != _kind(self.train_until):
            expected = f"a {_kind(self.train_until)}, as train_until is"
            raise InvalidType(where, expected, f"a {_kind(instant)}")
        return instant


def walk_forward(
    train_until: Any,
    *,
    embargo: Any,
    validation: Any,
    until: Any,
    train: Any = None,
) -> Iterator[TimeSplit]:
    """Yield folds that walk through time: each is held out once, and trained on by later folds.

    Each fold is for a model of its own: what an earlier one holds out, later ones learn from.

    Args:
        train_until: end of the first fold's training.
        embargo: length of the gap, as for `TimeSplit`.
        validation: length of what each fold holds out, above 0.
        until: no fold holds out anything from here on.
        train: length of each fold's training, above 0; None is everything before.

    Raises:
        InvalidInput: (one of its classes) as for `TimeSplit`.
    """
    at = _instant(train_until, "train_until")
    step = _length(validation, at, "validation")
    size = None if train is None else _length(train, at, "train")
    for name, length in (("validation", step), ("train", size)):
        if length is not None and length == length * 0:
            raise InvalidValue(name, "above 0", length)
    while True:
        gap = _length(embargo, at, "embargo")
        fold = TimeSplit(at, gap, at + gap + step, None if size is None else at - size)
        if fold.validation_until > fold._like(until, "until"):
            return
        yield fold
        at = at + step


def _instant(value: Any, where: str) -> Any:
    """Return a point in time as Python's own number, date or datetime."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                expected = "a number, a date, a datetime, or ISO text of one"
                raise InvalidType(where, expected, shown(value)) from None
    if isinstance(value, np.datetime64) and not np.isnat(value):
        # Finer than a microsecond it is cut, which no comparison with a whole one notices.
        unit = np.datetime_data(value.dtype)[0]
        value = value.astype(f"datetime64[{'D' if unit in 'YMWD' else 'us'}]").item()
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not math.isfinite(value):
        raise InvalidValue(where, "a finite number", value)
    if not number and (not isinstance(value, date) or value != value):  # noqa: PLR0124 - NaT
        raise InvalidType(where, "a number, a date or a datetime", shown(value))
    return value


def _kind(instant: Any) -> str:
    if not isinstance(instant, date):
        return "number"
    if not isinstance(instant, datetime):
        return "date"
    return "datetime" if instant.tzinfo is None else "datetime with a time zone"


def _length(value: Any, instant: Any, where: str) -> Any:
    """Return a length of at least 0, in the unit of points in time."""
    if isinstance(instant, date):
        if not isinstance(value, timedelta):
            raise InvalidType(where, "a timedelta", shown(value))
        if not isinstance(instant, datetime) and value != timedelta(days=value.days):
            raise InvalidValue(where, "whole days, between dates", value)
        if value < timedelta(0):
            raise InvalidValue(where, ">= 0", value)
        return value
    if isinstance(value, timedelta):
        raise InvalidType(where, "a number, as the points in time are", shown(value))
    length = _instant(value, where)
    if _kind(length) != "number":
        raise InvalidType(where, "a number, as the points in time are", shown(value))
    if length < 0:
        raise InvalidValue(where, ">= 0", length)
    return length
