"""Counters, gauges and histograms, and their text as Prometheus reads it.

Text format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/). Plain Python on
one thread: counting something takes less than a microsecond, and nothing is imported for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["CONTENT_TYPE", "Family", "Histogram", "Values", "exposition"]

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

#: Values of a sample's labels, in the order of their family's names.
Labels = tuple[str, ...]


class Family(Protocol):
    """Samples that share a name."""

    @property
    def name(self) -> str:
        """Of the family, with prefix and unit."""
        ...

    @property
    def kind(self) -> str:
        """``counter``, ``gauge`` or ``histogram``."""
        ...

    @property
    def text(self) -> str:
        """One sentence for people."""
        ...

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield (suffix of the name, labels in braces or nothing, value)."""
        ...


class Values:
    """A counter or a gauge.

    Args:
        kind: which of them; a counter's name ends with ``_total``.
        name: by the conventions: prefix, what, base unit.
        text: one sentence for people.
        labels: names; one without has the value 0 from the start.
    """

    def __init__(
        self, kind: Literal["counter", "gauge"], name: str, text: str, labels: Labels = ()
    ) -> None:
        assert (kind == "counter") == name.endswith("_total")
        self.kind, self.name, self.text, self._names = kind, name, text, labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        """Add to a sample; one that was not there begins at 0."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float | None, *labels: str) -> None:
        """Set a sample; None leaves it out, where there is nothing to say."""
        if value is not None:
            self._values[labels] = float(value)

    def forget(self, first: str) -> None:
        """Drop every sample whose first label has this value."""
        self._values = {key: value for key, value in self._values.items() if key[0] != first}

    def get(self, *labels: str) -> float:
        """Return a sample; 0 where there is none."""
        return self._values.get(labels, 0.0)

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield (no suffix, labels, value)."""
        for labels, value in self._values.items():
            yield "", _braces(zip(self._names, labels, strict=True)), value


class Histogram:
    """How often values fell below each of some bounds.

    Args:
        name: with its base unit at the end.
        text: one sentence for people.
        bounds: ascending; one more, infinity, is implied.
        labels: names.
    """

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        assert list(bounds) == sorted(set(bounds))
        self.name, self.text, self._bounds, self._names = name, text, tuple(bounds), labels
        self._edges = np.array(self._bounds, np.float64)
        #: Counts of each interval (of those above the last bound too), and the sum.
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}
        if not labels:
            self._at(())

    def _at(self, labels: Labels) -> tuple[list[int], list[float]]:
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = ([0] * (len(self._bounds) + 1), [0.0])
        return found

    def observe(self, value: float, *labels: str) -> None:
        """Count one value."""
        counts, total = self._at(labels)
        counts[bisect_left(self._bounds, value)] += 1
        total[0] += value

    def observe_all(self, values: ArrayLike, *labels: str) -> None:
        """Count (N,) values."""
        given = np.asarray(values, np.float64)
        counts, total = self._at(labels)
        places = self._edges.searchsorted(given)
        for place, many in enumerate(np.bincount(places, minlength=len(counts)).tolist()):
            counts[place] += many
        total[0] += float(given.sum())

    def forget(self, first: str) -> None:
        """Drop every series whose first label has this value."""
        self._series = {key: value for key, value in self._series.items() if key[0] != first}

    def count(self, *labels: str) -> int:
        """Return how many values were counted."""
        return sum(self._series[labels][0]) if labels in self._series else 0

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield the buckets, cumulative, then sum and count."""
        for labels, (counts, total) in self._series.items():
            named, below = list(zip(self._names, labels, strict=True)), 0
            for bound, count in zip((*self._bounds, math.inf), counts, strict=True):
                below += count
                yield "_bucket", _braces([*named, ("le", _number(bound))]), below
            yield "_sum", _braces(named), total[0]
            yield "_count", _braces(named), below


def exposition(families: Iterable[Family]) -> bytes:
    """Return the text of all families that have a sample, each under its HELP and TYPE."""
    lines = []
    for family in families:
        samples = list(family.samples())
        if not samples:
            continue
        lines.append(f"# HELP {family.name} {_escaped(family.text)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in samples:
            lines.append(f"{family.name}{suffix}{labels} {_number(value)}")
    return ("\n".join(lines) + "\n").encode()


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(
        f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels
    )
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
