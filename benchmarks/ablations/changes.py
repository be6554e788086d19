"""The changes: each a name and fields that differ from the base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.learning.ours import Ours
from benchmarks.learning.tasks import Task
from jormungandr import ModelSpec

__all__ = ["BASE", "SEEDS", "Ablation", "Change", "changes", "contender"]

#: The name of the row that all others are compared with.
BASE = "base"
#: Training seeds of each row: none that docs/benchmarks.md reports, for presets follow from this.
SEEDS = range(100, 105)


@dataclass(frozen=True)
class Change:
    """One change: what it is about, its name, and the fields it sets."""

    about: str
    name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Ablation(Ours):
    """Who trains with one change of a base."""

    change: Change = Change("", BASE, {})

    def changes(self, task: Task) -> dict[str, Any]:
        """Return what is changed, and what that is about."""
        return {"about": self.change.about, **self.change.fields}


def changes(base: ModelSpec, steps: int) -> list[Change]:
    """Return the base and its changes, without those that the base has already.

    Args:
        base: the specification that is changed, resolved: what derives from a changed field, such
            as Adam's epsilon from the batch size, stays.
        steps: of training, over which an annealed learning rate falls.
    """
    found = [Change("", BASE, {})]
    for change in _all(base, steps):
        if ModelSpec.from_dict(_merged(base.to_dict(), change.fields)) != base:
            found.append(change)
    return found


def contender(base: ModelSpec, change: Change) -> Ablation:
    """Return who trains with a change of a base."""
    fields = _merged(base.to_dict(), change.fields)
    return Ablation(change.name, partial(_fields, fields), len(SEEDS), change=change)


def _all(base: ModelSpec, steps: int) -> Iterator[Change]:
    c51, replay = base.c51, base.replay
    rate = base.pacing.updates_per_transition
    for factor in (0.5, 2.0, 4.0):
        fields = {"pacing": {"updates_per_transition": rate * factor}}
        yield Change("updates per transition", f"{rate * factor:g} updates a transition", fields)
    for factor in (0.25, 4.0):
        interval = max(1, round(c51.target_interval * factor))
        yield _c51("target interval", f"target every {interval} updates", target_interval=interval)
    for epsilon in sorted({1e-8, 1.5e-4, 1e-2 / c51.batch_size}):
        yield _c51("Adam's epsilon", f"Adam ε {epsilon:.2g}", adam_eps=epsilon)
    updates = max(1, round((steps - base.pacing.learning_starts) * rate))
    schedules: dict[str, dict[str, Any]] = {
        "constant learning rate": {"kind": "constant"},
        "learning rate to 10 %": {"kind": "linear", "updates": updates, "end": 0.1},
    }
    for name, schedule in schedules.items():
        yield _c51("annealing", name, lr_schedule=schedule)
    for keep in (0.0, 0.99, 0.999):
        name = f"averaging {keep:g}" if keep else "no averaging"
        yield _c51("averaging", name, averaging=keep)
    for capacity in (10_000, 50_000, 100_000):
        yield _replay("replay size", f"replay of {capacity:,}", capacity=capacity)
    for alpha in (0.0, 0.6):
        name = f"priorities^{alpha:g}" if alpha else "uniform replay"
        yield _replay("prioritized replay", name, alpha=alpha)
    # Priorities say nothing where their exponent is 0: the kind is compared at 0.6 then.
    exponent = replay.alpha or 0.6
    for kind in ("cross_entropy", "kl"):
        name = f"{kind.replace('_', ' ')} priorities^{exponent:g}"
        change = _replay("priorities", name, priority=kind, alpha=exponent)
        if replay.alpha or kind == "kl":
            yield change
    yield _c51("double", "double" if not c51.double else "not double", double=not c51.double)
    for n in (1, 3, 5):
        yield _c51("n-step", f"{n}-step", n_step=n)
    for low, high in ((-10.0, 10.0), (0.0, 100.0), (-100.0, 100.0)):
        yield _c51("support", f"support [{low:g}, {high:g}]", support=[low, high])
    yield _c51("support", "support auto", support="auto")
    for size in (c51.batch_size // 2, c51.batch_size * 2):
        yield _c51("batch size", f"batches of {size}", batch_size=size)


def _c51(about: str, name: str, **fields: Any) -> Change:
    return Change(about, name, {"c51": fields})


def _replay(about: str, name: str, **fields: Any) -> Change:
    return Change(about, name, {"replay": fields})


def _fields(fields: dict[str, Any], task: Task) -> dict[str, Any]:
    return fields


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the base with groups overridden field by field."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) else value
    return merged
