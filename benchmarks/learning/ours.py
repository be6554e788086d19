"""Our contenders: a learner in this process, with a preset or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.learning.tasks import Act, Task
from jormungandr import ModelSpec
from jormungandr.learner import Learner
from jormungandr.policy import PolicySnapshot
from jormungandr.presets import preset_fields
from jormungandr.spec import preset_names
from jormungandr_wrappers import RemoteActor

__all__ = ["Ours", "default", "tuned"]

#: Steps taken, what acts greedily then, and what is worth noting.
Pause = tuple[int, Act, dict[str, Any]]
#: Parts of a specification that say how it learns.
_LEARNING = ("c51", "replay", "pacing", "exploration", "auxiliary")


@dataclass(frozen=True)
class Ours:
    """A contender of ours.

    Args:
        name: of the contender.
        fields: of the specification for a task, beside what its environment says; None where this
            contender would be another one, and does not enter.
        seeds: that it is trained with, from 0.
        label_key: of the info, for the labels of the auxiliary head; None trains without labels.
    """

    name: str
    fields: Callable[[Task], dict[str, Any] | None]
    seeds: int = 10
    label_key: str | None = None

    def settings(self, task: Task) -> dict[str, Any] | None:
        """Return all that decides a training but the seed; None if it does not enter."""
        spec = self.spec(task, 0)
        return None if spec is None else {"label_key": self.label_key, **_seedless(spec)}

    def inert(self, task: Task) -> dict[str, Any]:
        """Return the default settings: a field that old lines do not have was like this then."""
        return {"label_key": None, **_seedless(_for_env(task, {}, 0))}

    def changes(self, task: Task) -> dict[str, Any]:
        """Return what it asks for on a task, for a reader: of a preset, what it says by now."""
        asked = dict(self.fields(task) or {})
        named = preset_fields(asked["preset"]) if "preset" in asked else {}
        groups = {key: value for key, value in named.items() if key in _LEARNING}
        return {**asked, **groups, **({"label_key": self.label_key} if self.label_key else {})}

    def train(self, task: Task, seed: int) -> Iterator[Pause]:
        """Train with a seed; hand over the policy after every `task.every` steps."""
        spec = self.spec(task, seed)
        assert spec is not None
        env, learner = task.make(), Learner(spec)
        actor = RemoteActor(
            env, learner, actor_id="train", batch_size=1, label_key=self.label_key, run="train"
        )
        for at in range(task.every, task.steps + 1, task.every):
            actor.run(steps=task.every, seed=seed if at == task.every else None)
            noted = {"updates": learner.update_count, "warnings": learner.warnings()}
            yield at, _greedy(learner.snapshot()), noted
        env.close()

    def spec(self, task: Task, seed: int) -> ModelSpec | None:
        """Return its specification for a task; None if it does not enter."""
        fields = self.fields(task)
        if fields is None:
            return None
        named = preset_fields(fields["preset"]) if "preset" in fields else {}
        if "actions" in {**named, **fields}:  # it says itself what it sees and does
            return ModelSpec.from_dict({**fields, "seed": seed})
        return _for_env(task, fields, seed)


def default(task: Task) -> dict[str, Any]:
    """Return what ``jormungandr train`` starts from unasked, on every task."""
    return {"preset": "default"}


def tuned(task: Task) -> dict[str, Any] | None:
    """Return the preset for a task, None without one.

    OUSpread has one of its own for few transitions.
    """
    name = "ou-1344" if task.env_id == "OUSpread-v0" and task.steps < 10_000 else task.env_id
    return {"preset": name} if name in preset_names() else None


def _for_env(task: Task, fields: dict[str, Any], seed: int) -> ModelSpec:
    env = task.make()
    spec = ModelSpec.for_env(env, **fields, seed=seed)
    env.close()
    return spec


def _seedless(spec: ModelSpec) -> dict[str, Any]:
    return {key: value for key, value in spec.to_dict().items() if key != "seed"}


def _greedy(snapshot: PolicySnapshot) -> Act:
    nobody = np.random.default_rng(0)  # greedy actions draw nothing
    return lambda seen: snapshot.act(seen, nobody, deterministic=True).indices
