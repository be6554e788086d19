"""`ParallelEnvironment`: what the recorder uses of a PettingZoo parallel environment.

PettingZoo itself need not be installed: any class with these methods will do.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol, TypeAlias, TypeVar

from gymnasium import spaces

from jormungandr.errors import InvalidType

__all__ = ["Agent", "ParallelEnvironment", "ParallelStep", "check_parallel"]

#: An agent's name, whatever the environment uses; nearly everywhere a str.
Agent = TypeVar("Agent", bound=Hashable)

#: What a step returns: observations, rewards, terminations, truncations and infos, by agent.
ParallelStep: TypeAlias = tuple[
    dict[Agent, Any],
    dict[Agent, float],
    dict[Agent, bool],
    dict[Agent, bool],
    dict[Agent, dict[str, Any]],
]


class ParallelEnvironment(Protocol[Agent]):
    """All live agents act at once; some may leave before the others, some may come later."""

    agents: list[Agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Agent, Any], dict[Agent, dict[str, Any]]]:
        """Begin an episode; return observations and infos by agent."""
        ...

    def step(self, actions: Any) -> ParallelStep[Agent]:
        """Take one action of each live agent."""
        ...

    def observation_space(self, agent: Agent) -> spaces.Space[Any]:
        """Return what an agent sees."""
        ...

    def action_space(self, agent: Agent) -> spaces.Space[Any]:
        """Return what an agent may do."""
        ...

    def render(self) -> Any:
        """Return a picture."""
        ...

    def state(self) -> Any:
        """Return what there is to know of all agents together."""
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...


def check_parallel(env: object) -> None:
    """Refuse what is no parallel environment; an AEC one has the same methods, and more.

    Raises:
        InvalidType: saying what makes one of it.
    """
    methods = ("reset", "step", "observation_space", "action_space")
    if hasattr(type(env), "agent_iter") or not all(
        callable(getattr(env, method, None)) for method in methods
    ):
        raise InvalidType(
            "parallel_env",
            "a PettingZoo parallel environment",
            type(env),
            "pettingzoo.utils.aec_to_parallel converts an AEC one",
        )
