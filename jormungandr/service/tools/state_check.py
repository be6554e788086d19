"""The state in a checkpoint against the journal, and against one that was made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from jormungandr.columns import TRAIN
from jormungandr.service.child.recovery import position
from jormungandr.service.journal.reader import JournalReader

__all__ = ["State", "contradictions", "differences"]

#: What a checkpoint holds: values, tensors and files, each by name.
State: TypeAlias = tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, bytes]]


def contradictions(path: Path, checkpoint: State, reader: JournalReader) -> list[str]:
    """Return in which ways a checkpoint contradicts the journal, or itself.

    Args:
        path: of the checkpoint.
        checkpoint: what it holds.
        reader: of the journal.
    """
    state, tensors, _ = checkpoint
    created, progress = reader.created(), state["progress"]
    if state["spec"] != created.spec.to_dict() or state["generation"] != created.generation:
        return ["it is of another model"]
    held = state["pacing"]["transitions"]
    due = reader.train(position(path)) - sum(
        n for split, _, n in progress["gaps"] if split == TRAIN
    )
    count = int(tensors["normalizer.count"])
    wrong = []
    if progress["lsn"] != position(path):
        wrong.append(f"at row {progress['lsn']}, not as it is named")
    if held != due:
        wrong.append(f"{held} training transitions, and by the rows {due}")
    if count != 2 * held:
        wrong.append(f"normalizer count {count}, and not twice {held}")
    for ring, limit in (
        ("replay", created.spec.replay.capacity),
        ("validation", created.spec.validation.capacity),
    ):
        if len(tensors[f"{ring}.action"]) > limit:
            wrong.append(f"{ring} holds more than {limit}")
    return wrong


def differences(made: State, checkpoint: State) -> list[str]:
    """Return the names of what differs by a bit."""
    values = [
        f"state.json: {name}"
        for name in _unequal(made[0], checkpoint[0], lambda v: json.dumps(v, sort_keys=True))
    ]
    tensors = [f"tensors.safetensors: {name}" for name in _unequal(made[1], checkpoint[1], _bits)]
    return values + tensors + _unequal(made[2], checkpoint[2], bytes)


def _unequal(one: dict[str, Any], other: dict[str, Any], form: Callable[[Any], Any]) -> list[str]:
    shared = one.keys() & other.keys()
    return [
        name
        for name in sorted(one.keys() | other.keys())
        if name not in shared or form(one[name]) != form(other[name])
    ]


def _bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()
