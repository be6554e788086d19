"""`ParallelEpisodes`: the episodes of agents that are stepped together, come late, or leave early.

Pure bookkeeping: no endpoint, no clock, and of the environment only what it returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from jormungandr.episode import Choice, Episode, LabelValue, copied, new_run, plain
from jormungandr.errors import InvalidValue
from jormungandr.protocol import LIMITS, Split, Transition
from jormungandr_wrappers.masks import BROKEN_OFF, AgentMasks, Mask
from jormungandr_wrappers.parallel_environment import Agent, ParallelStep
from jormungandr_wrappers.rules import TagRule, check_rules, tags_of

__all__ = ["ParallelEpisodes"]


@dataclass
class _Playing:
    """An agent's running episode, and what its next action is chosen from."""

    episode: Episode
    observation: Any
    label: LabelValue
    mask: Mask | None


class ParallelEpisodes(Generic[Agent]):
    """The running episodes of the agents of one parallel environment.

    Agent x is the actor ``{actor_id}-{x}``. Its episode after the n-th reset, counted from 0, is
    ``{run}-0-{n}``: the same number for every agent, whether it was there from the start or not.

    Args:
        actor_id: of the environment; first part of every agent's.
        split: ``train`` or ``validation``.
        label_key: of an agent's info, for the auxiliary class of the observation it comes with.
        masks: where the masks of the agents are; None is an environment without. An agent must be
            admitted there before it begins.
        run: first part of every episode id; None draws one.
        tags: of the episodes, or what returns those of each, by its agent's first info and n.
    """

    def __init__(
        self,
        *,
        actor_id: str,
        split: Split,
        label_key: str | None = None,
        masks: AgentMasks[Agent] | None = None,
        run: str | None = None,
        tags: TagRule | None = None,
    ) -> None:
        check_rules(tags)
        self._tags = tags
        self.run = new_run() if run is None else run
        self._actor_id, self._split, self._label_key = actor_id, split, label_key
        self._masks: AgentMasks[Agent] = AgentMasks() if masks is None else masks
        self._resets = -1
        self._playing: dict[Agent, _Playing] = {}
        self._ended: set[Agent] = set()  # since the last reset

    @property
    def agents(self) -> tuple[Agent, ...]:
        """Those whose episodes are running, in the order in which they began."""
        return tuple(self._playing)

    def mask(self, agent: Agent) -> Mask | None:
        """Return which actions an agent may take now, (A,); None without masks."""
        return self._playing[agent].mask

    def actor_id(self, agent: Agent) -> str:
        """Return the id under which an agent acts.

        Raises:
            InvalidValue: it is longer than the protocol allows.
        """
        name = f"{self._actor_id}-{agent}"
        size, most = len(name.encode()), LIMITS["id_bytes"]
        if size > most:
            where = f"the actor id of {agent!r}"
            raise InvalidValue(where, f"at most {most} bytes", f"{size}: {name}")
        return name

    def reset(self) -> None:
        """Break every running episode off; those that begin from now on have the next number."""
        self._resets += 1
        self._playing, self._ended = {}, set()

    def begin(
        self,
        agents: Iterable[Agent],
        observations: Mapping[Agent, Any],
        infos: Mapping[Agent, Mapping[str, Any]],
    ) -> None:
        """Begin the episodes of agents who are there after a reset, or who joined with a step.

        Args:
            agents: who begins.
            observations: of them, and perhaps of others, of their spaces; copied.
            infos: likewise.

        Raises:
            InvalidValue: one that ended since the reset is back, which would contradict its end,
                or there is no observation of one, or its actor id is too long.
            InvalidInput: (one of its classes) a mask is missing, or is none; or tags are none.
        """
        for agent in agents:
            if agent in self._ended:
                expected = "a new name for an agent that joins"
                raise InvalidValue("agents", expected, f"{agent!r}, whose episode is over")
            if agent not in observations:
                expected = f"one of {agent!r}, who joins"
                raise InvalidValue("observations", expected, list(observations))
            episode = Episode(
                actor_id=self.actor_id(agent),
                episode_id=f"{self.run}-0-{self._resets}",
                split=self._split,
                tags=tags_of(self._tags, infos.get(agent, {}), self._resets),
            )
            given = observations[agent]
            seen = copied(self._masks.seen(agent, given))
            mask = self._masks.read(agent, given, infos.get(agent, {}))
            self._playing[agent] = _Playing(episode, seen, self._label(agent, infos), mask)

    def advance(
        self,
        choices: Mapping[Agent, Choice],
        step: ParallelStep[Agent],
        live: Collection[Agent],
    ) -> dict[Agent, Transition]:
        """Return the transition of every agent whose episode was running, and end those that ended.

        Args:
            choices: the actions of these agents.
            step: what the environment returned; observations are copied.
            live: the agents who take part in the next step.

        Raises:
            InvalidValue: the step tells nothing of an agent who took part, or one is gone without
                an end, or still there after one. All episodes are broken off then: what is seen
                next may not follow from what was seen last.
            InvalidInput: (one of its classes) a mask is missing, or is none; likewise. Only that of
                a termination's last observation may be.
        """
        observations, rewards, terminations, truncations, infos = step
        playing, self._playing = self._playing, {}  # broken off, until all is known to be well
        there = set(live)
        for agent in playing:
            _check_told(agent, step)
            ended = bool(terminations[agent] or truncations[agent])
            if ended is (agent in there):
                expected = f"{agent!r} {'gone' if ended else 'still there'}, as its flags say"
                raise InvalidValue("agents", expected, list(live))
        rows = {}
        for agent, now in playing.items():
            given = observations[agent]
            after = copied(self._masks.seen(agent, given))
            mask = self._masks.read(
                agent,
                given,
                infos.get(agent, {}),
                terminated=bool(terminations[agent]),
                remedy=BROKEN_OFF,
            )
            rows[agent] = now.episode.transition(
                now.observation,
                choices[agent],
                np.asarray(rewards[agent]).item(),  # PettingZoo allows arrays of one element
                after,
                terminations[agent],
                truncations[agent],
                now.label,
                next_action_mask=mask,
            )
            now.observation, now.label, now.mask = after, self._label(agent, infos), mask
            if now.episode.over:
                self._ended.add(agent)
            else:
                self._playing[agent] = now
        return rows

    def _label(self, agent: Agent, infos: Mapping[Agent, Mapping[str, Any]]) -> LabelValue:
        """Return the label of the observation that came with `infos`."""
        key = self._label_key
        return None if key is None else plain(infos.get(agent, {}).get(key))


def _check_told(agent: Agent, step: ParallelStep[Agent]) -> None:
    """Refuse a step that leaves out what became of an agent."""
    observations, rewards, terminations, truncations, _ = step
    told: dict[str, Mapping[Agent, object]] = {
        "observations": observations,
        "rewards": rewards,
        "terminations": terminations,
        "truncations": truncations,
    }
    for name, given in told.items():
        if agent not in given:
            raise InvalidValue(name, f"an entry of {agent!r}, who took part", list(given))
