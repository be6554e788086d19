"""Who learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from benchmarks.learning.baselines import Baseline
from benchmarks.learning.ours import Ours, Pause, default, tuned
from benchmarks.learning.tasks import Task
from benchmarks.learning.zoo import TUNED, ZOO

__all__ = ["CONTENDERS", "Contender", "seeds_of"]


class Contender(Protocol):
    """An agent with its settings on every task; see `Ours` and `Baseline`."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def seeds(self) -> int:
        """Trainings of it on most tasks."""

    def settings(self, task: Task) -> dict[str, Any] | None:
        """Return all that decides a training but the seed; None if it does not enter."""

    def inert(self, task: Task) -> dict[str, Any]:
        """Return the values that decide nothing new where old lines do not have them."""

    def changes(self, task: Task) -> dict[str, Any]:
        """Return what it asks for on a task, for a reader."""

    def train(self, task: Task, seed: int) -> Iterator[Pause]:
        """Train with a seed; hand over the policy after every `task.every` steps."""


def _labelled(task: Task) -> dict[str, Any] | None:
    """Return the preset with an auxiliary head, on the one task with labels for it."""
    few = task.env_id == "OUSpread-v0" and task.steps < 10_000
    return {"preset": "ou-note"} if few else None


_OU = ("OUSpread-v0",)

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Ours("ours", default),
        Ours("ours, preset", tuned),
        Ours("ours, preset, labels", _labelled, label_key="drift_label"),
        Baseline("SB3 DQN", "DQN"),
        Baseline("SB3 DQN, RL Zoo", "DQN", ZOO["DQN"]),
        Baseline("SB3 DQN, tuned", "DQN", TUNED["DQN"], most=1_344),
        Baseline("QR-DQN", "QRDQN", only=_OU, seeds=3),
        Baseline("QR-DQN, RL Zoo", "QRDQN", ZOO["QRDQN"], seeds=3),
        Baseline("QR-DQN, tuned", "QRDQN", TUNED["QRDQN"], most=1_344, seeds=3),
        Baseline("SB3 PPO", "PPO"),
        Baseline("SB3 PPO, RL Zoo", "PPO", ZOO["PPO"]),
    )
}


def seeds_of(contender: Contender, task: Task) -> int:
    """Return how many seeds a contender has on a task: of baselines, fewer where it takes long.

    Everyone has ten where a run takes seconds: there the luck of a seed is most of the result.
    """
    if not isinstance(contender, Baseline):
        return contender.seeds
    if task.steps < 10_000:
        return 10
    return min(3, contender.seeds) if task.env_id == "LunarLander-v3" else contender.seeds
