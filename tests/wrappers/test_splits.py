"""`TimeSplit`: no training episode touches what is held out, or the gap before it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr import errors as e
from jormungandr.splits import TimeSplit, walk_forward

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
TIMES = st.integers(-50, 50)
#: Numbers, dates, datetimes and NumPy's: what turns an integer into a point, and into a length.
KINDS: dict[str, tuple[Any, Any]] = {
    "integer": (lambda n: n, lambda n: n),
    "float": (lambda n: n / 8, lambda n: n / 8),
    "date": (lambda n: date(2020, 1, 1) + n * DAY, lambda n: n * DAY),
    "text": (lambda n: str(date(2020, 1, 1) + n * DAY), lambda n: n * DAY),
    "datetime": (lambda n: datetime(2020, 1, 1) + n * HOUR, lambda n: n * HOUR),
    "zone": (lambda n: datetime(2020, 1, 1, tzinfo=UTC) + n * DAY, lambda n: n * DAY),
    "numpy": (lambda n: np.datetime64("2020-01-01T00", "ns") + np.timedelta64(n, "s"), None),
}


@given(
    kind=st.sampled_from(sorted(KINDS)),
    train_until=TIMES,
    embargo=st.integers(0, 20),
    held=st.none() | st.integers(1, 30),
    begin=st.none() | st.integers(1, 30),
    episodes=st.lists(st.tuples(TIMES, st.integers(0, 40)), max_size=30),
)
def test_nothing_leaks(
    kind: str,
    train_until: int,
    embargo: int,
    held: int | None,
    begin: int | None,
    episodes: list[tuple[int, int]],
) -> None:
    """By its whole interval: training ends before the gap, validation begins after it.

    An oracle over integers says the same of every episode, in every kind of time.
    """
    point, length = KINDS[kind]
    length = length or (lambda n: timedelta(seconds=n))
    validation_from = train_until + embargo
    until = None if held is None else validation_from + held
    first = None if begin is None else train_until - begin
    split = TimeSplit(
        point(train_until),
        length(embargo),
        None if until is None else point(until),
        None if first is None else point(first),
    )
    for start, duration in episodes:
        end = start + duration
        expected = None
        if end < train_until and (first is None or start >= first):
            expected = "train"
        elif start >= validation_from and (until is None or end < until):
            expected = "validation"
        got = split(point(start), point(end))
        assert got == expected
        if got == "train":  # nothing of it lies within `embargo` of anything that is held out
            assert end + embargo < validation_from
        if start < train_until <= end or start < validation_from <= end:
            assert got is None


@given(
    first=TIMES,
    embargo=st.integers(0, 10),
    validation=st.integers(1, 20),
    until=st.integers(-50, 150),
    train=st.none() | st.integers(1, 40),
    episodes=st.lists(st.tuples(TIMES, st.integers(0, 15)), max_size=20),
)
def test_walking_forward(
    first: int,
    embargo: int,
    validation: int,
    until: int,
    train: int | None,
    episodes: list[tuple[int, int]],
) -> None:
    """Folds tile what is held out, none reaches beyond the end, and none leaks."""
    folds = list(
        walk_forward(first, embargo=embargo, validation=validation, until=until, train=train)
    )

    assert len(folds) == max(0, (until - first - embargo) // validation)
    for i, fold in enumerate(folds):
        assert fold.validation_from == first + embargo + i * validation
        assert fold.validation_until == fold.validation_from + validation <= until
        assert fold.train_until == fold.validation_from - embargo
        assert fold.train_from == (None if train is None else fold.train_until - train)
    for start, duration in episodes:
        found = [fold(start, start + duration) for fold in folds]
        assert found.count("validation") <= 1
        held = found.index("validation") if "validation" in found else len(found)
        assert "train" not in found[: held + 1] or held == len(found)


def test_folds_of_dates() -> None:
    """A year by quarters of ninety days, with ten between."""
    folds = list(
        walk_forward(
            "2020-01-01", embargo=10 * DAY, validation=90 * DAY, until="2020-12-31", train=365 * DAY
        )
    )

    starts = [str(fold.validation_from) for fold in folds]
    assert starts == ["2020-01-11", "2020-04-10", "2020-07-09"]
    assert folds[1].train_from == date(2020, 3, 31) - 365 * DAY


UNTIL = date(2020, 1, 1)
BAD: list[tuple[dict[str, Any], type[e.InvalidInput], str]] = [
    ({"train_until": True}, e.InvalidType, "train_until"),
    ({"train_until": None}, e.InvalidType, "train_until"),
    ({"train_until": "soon"}, e.InvalidType, "train_until"),
    ({"train_until": float("nan")}, e.InvalidValue, "train_until"),
    ({"train_until": np.datetime64("NaT")}, e.InvalidType, "train_until"),
    ({"embargo": 3}, e.InvalidType, "embargo"),
    ({"embargo": -DAY}, e.InvalidValue, "embargo"),
    ({"embargo": timedelta(hours=36)}, e.InvalidValue, "embargo"),
    ({"train_until": 5, "embargo": DAY}, e.InvalidType, "embargo"),
    ({"train_until": 5, "embargo": -1}, e.InvalidValue, "embargo"),
    ({"train_until": 5, "embargo": date(2020, 1, 1)}, e.InvalidType, "embargo"),
    ({"validation_until": 5}, e.InvalidType, "validation_until"),
    ({"validation_until": datetime(2021, 1, 1)}, e.InvalidType, "validation_until"),
    ({"validation_until": UNTIL + 10 * DAY}, e.InvalidValue, "validation_until"),
    ({"train_from": UNTIL}, e.InvalidValue, "train_from"),
]


@pytest.mark.parametrize(("fields", "error", "where"), BAD)
def test_bad_arguments(fields: dict[str, Any], error: type[e.InvalidInput], where: str) -> None:
    """What is no time, of another kind, or the wrong way round, by name."""
    with pytest.raises(error) as caught:
        TimeSplit(**{"train_until": UNTIL, "embargo": 10 * DAY, **fields})

    assert caught.value.where == where


@pytest.mark.parametrize(
    ("start", "end", "error", "where"),
    [
        ("2020-02-01", "2020-01-01", e.InvalidValue, "end"),
        (3, None, e.InvalidType, "start"),
        (datetime(2020, 2, 1), None, e.InvalidType, "start"),
        (UNTIL, datetime(2020, 2, 1, tzinfo=UTC), e.InvalidType, "end"),
    ],
)
def test_bad_episodes(start: Any, end: Any, error: type[e.InvalidInput], where: str) -> None:
    """An episode that ends before it starts, or of another kind of time."""
    with pytest.raises(error) as caught:
        TimeSplit(UNTIL, 10 * DAY)(start, end)

    assert caught.value.where == where


def test_bad_folds() -> None:
    """A length of nothing would never end."""
    for lengths in ({"validation": 0}, {"validation": 5, "train": 0}, {"validation": -5}):
        with pytest.raises(e.InvalidValue):
            next(walk_forward(0, embargo=1, until=100, **lengths))


def test_by_info() -> None:
    """The rule that recorders take reads the info, and says what is missing there."""
    rule = TimeSplit(10, 2).by("begin", "end")

    assert rule({"begin": 0, "end": 9}) == "train"
    assert rule({"begin": 0, "end": 10}) is None
    assert TimeSplit(10, 2).by("begin")({"begin": np.int64(12)}) == "validation"
    with pytest.raises(e.MissingField) as caught:
        rule({"begin": 0, "_x": 1})
    assert caught.value.where == "info['end']"
    assert caught.value.expected == "one of ['begin']"
