"""`Layout`: the transitions of a journal as flat columns, one per number, for tables and SQL."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.protocol import SPLITS
from jormungandr.rows import ACCEPTED, STALE_DROPPED, TransitionsRow
from jormungandr.spec import ModelSpec

__all__ = ["OUTCOMES", "Layout"]

#: What admission made of a transition, by its code.
OUTCOMES = {ACCEPTED: "accepted", STALE_DROPPED: "stale_dropped"}


class Layout:
    """Which columns the transitions of a model have, and their values.

    An observation is one column per element, ``observation.NAME``, by the name of its feature or
    by its index; an image is one column of arrays. A mask is one column per action. Tags are JSON,
    of the first step of an episode alone.

    Args:
        spec: of the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        o = spec.observation
        named = o.features is not None and o.frame_stack == 1
        #: Names of an observation's elements; None for an image.
        self.elements: list[str] | None = None
        if not o.is_image:
            size = o.stored_shape[0]
            self.elements = list(o.features or ()) if named else [str(i) for i in range(size)]
        self.actions = [action.label for action in spec.action_set]
        masks = [f"next_action_mask.{label}" for label in self.actions] if spec.action_masks else []
        #: Names of the columns, in their order.
        self.names = [
            "lsn",
            "actor_id",
            "episode_id",
            "timestep",
            "split",
            "policy_version",
            "behavior_prob",
            "label",
            "label_name",
            "outcome",
            "tags",
            *self._named("observation"),
            "action",
            "action_label",
            "reward",
            *self._named("next_observation"),
            "terminated",
            "truncated",
            *masks,
        ]

    def _named(self, field: str) -> list[str]:
        return [field] if self.elements is None else [f"{field}.{e}" for e in self.elements]

    def arrays(self, row: TransitionsRow) -> dict[str, NDArray[Any]]:
        """Return (B,) values by column, in order; what is unknown is masked.

        An image's column is (B, *stored_shape).
        """
        c, spec = row.columns, self.spec
        classes = [] if spec.auxiliary is None else list(spec.auxiliary.classes)
        found: dict[str, NDArray[Any]] = {
            "lsn": np.full(len(c), row.lsn, dtype=np.int64),
            "actor_id": _picked(c.actors, c.actor),
            "episode_id": _picked(c.episodes, c.episode),
            "timestep": c.timestep,
            "split": _picked(SPLITS, c.split),
            "policy_version": c.policy_version,
            "behavior_prob": np.ma.masked_where(np.isnan(c.behavior_prob), c.behavior_prob),
            "label": np.ma.masked_where(c.label < 0, c.label),
            "label_name": np.ma.masked_where(c.label < 0, _picked([*classes, ""], c.label)),
            "outcome": _picked(["", *OUTCOMES.values()], row.outcome),
            "tags": _tags(row),
            "action": c.action,
            "action_label": _picked(self.actions, c.action),
            "reward": c.reward,
            "terminated": c.terminated,
            "truncated": c.truncated,
        }
        for field in ("observation", "next_observation"):
            values, names = getattr(c, field), self._named(field)
            found |= dict(zip(names, [values] if self.elements is None else values.T, strict=True))
        if spec.action_masks:
            found |= {
                f"next_action_mask.{label}": c.next_action_mask[:, a]
                for a, label in enumerate(self.actions)
            }
        return {name: found[name] for name in self.names}


def _tags(row: TransitionsRow) -> NDArray[Any]:
    """Return (B,) the tags that came with each transition as a JSON object; others are masked."""
    c = row.columns
    texts = [msgspec.json.encode(dict(tags)).decode() for tags in c.tags]
    code = np.full(len(c), -1) if c.tag is None else c.tag
    return np.ma.masked_where(code < 0, _picked([*texts, ""], code))


def _picked(names: Any, index: NDArray[Any]) -> NDArray[Any]:
    """Return (B,) strings, as objects."""
    picked: NDArray[Any] = np.array(names, dtype=object)[index]
    return picked
