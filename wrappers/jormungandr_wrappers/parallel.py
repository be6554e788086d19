"""`ParallelRecorder`: a PettingZoo parallel environment, every agent's transitions recorded."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from jormungandr.episode import Choice, check_split, copied
from jormungandr.errors import ActionRange, ShapeMismatch
from jormungandr.outbox import Outbox
from jormungandr.protocol import Endpoint, Receipt, Split
from jormungandr_wrappers.batches import joined
from jormungandr_wrappers.checks import check_actions, check_label_key
from jormungandr_wrappers.masks import AgentMasks
from jormungandr_wrappers.outboxes import Outboxes
from jormungandr_wrappers.parallel_environment import (
    Agent,
    ParallelEnvironment,
    ParallelStep,
    check_parallel,
)
from jormungandr_wrappers.parallel_episodes import ParallelEpisodes
from jormungandr_wrappers.rules import TagRule


class _NoParallelEnv:
    """Stands for PettingZoo's class where that is not installed, and for type checkers always."""


_ParallelEnv = _NoParallelEnv
if not TYPE_CHECKING:
    with contextlib.suppress(ModuleNotFoundError):
        from pettingzoo import ParallelEnv as _ParallelEnv

__all__ = ["ParallelRecorder"]


class ParallelRecorder(_ParallelEnv, Generic[Agent]):
    """Record the transitions of every agent and submit them; the environment steps as it did.

    Agent x is the actor ``{actor_id}-{x}`` and has one episode per reset, ``{run}-0-{n}``. An
    agent that is terminated or truncated ends its own episode while the others go on; one that
    joins late begins its own. An episode that `reset` breaks off stays without an end. Agents that
    share an endpoint share its model: `act` asks it once for all of them.

    An error of an endpoint leaves through whichever call met it, after the other endpoints were
    sent theirs; nothing is lost. When `step` raises one, the environment has moved: the results
    are in `last_step`, the transitions in the outboxes' `unsent`, and `flush` tries again.

    Put this inside wrappers that hide ends (PettingZoo's MultiEpisodeParallelEnv, SuperSuit's
    black_death), not around them: it records what it is shown.

    Args:
        parallel_env: of agents with a Discrete from 0 to choose from, and to see what a model can:
            a Box, Discrete, MultiBinary, MultiDiscrete, or a Dict of those.
        endpoints: one for all agents, or a mapping from each agent to its own. In the mapping a str
            stands for another entry: ``{"wolf_0": learner, "wolf_1": "wolf_0"}``.
        actor_id: of the environment; with ``-`` and an agent's name 1-128 bytes of UTF-8.
        split: ``train`` or ``validation``, of all agents: what is held out of one would be known
            from the others, who live through the same.
        label_key: the key in an agent's info of the auxiliary class of the observation it comes
            with; in the OU market ``"drift_label"``. None records no labels.
        mask_key: the key of the mask of actions that an agent may take from what it observes;
            PettingZoo's is ``"action_mask"``. `act` sends the masks, and each transition carries
            its successor's. Only the last observation of a termination may be without. An action
            that was taken though its mask forbids it is recorded as it is. None: models without.
        mask_in: where it is: ``info``, an agent's info, or ``observation``: then what an agent sees
            is a Dict of ``"observation"``, which is all that the model observes, and `mask_key`.
        batch_size: transitions to gather for an endpoint before they are sent. 1 sends after every
            step, so that a learner in this process is never behind; over a network 256 saves round
            trips.
        run: first part of the episode ids; None draws 64 random bits.
        tags: of every episode, such as ``{"map": "dust"}``; or what returns those of each: it is
            called with the first info of its agent and its number n.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind, or an agent that cannot be
            recorded: no endpoint, other spaces than those it shares one with, too long a name.

    Example:
        >>> from jormungandr import Learner, ModelSpec
        >>> from jormungandr_envs import ou_market_v0
        >>> learner = Learner(ModelSpec.preset("ou-note"))
        >>> market = ParallelRecorder(ou_market_v0.parallel_env(), learner, actor_id="m1")
        >>> observations, infos = market.reset(seed=0)
        >>> while market.agents:
        ...     observations, *_ = market.step(market.act(observations))
        >>> len(learner.replay)
        144
    """

    def __init__(
        self,
        parallel_env: ParallelEnvironment[Agent],
        endpoints: Endpoint | Mapping[Agent, Endpoint | str],
        *,
        actor_id: str,
        split: Split = "train",
        label_key: str | None = None,
        mask_key: str | None = None,
        mask_in: Literal["info", "observation"] = "info",
        batch_size: int = 1,
        run: str | None = None,
        tags: TagRule | None = None,
    ) -> None:
        check_parallel(parallel_env)
        (self.split,) = check_split(split)
        self.env = parallel_env
        self._label_key = label_key
        self._outboxes: Outboxes[Agent] = Outboxes(endpoints, batch_size)
        self._masks: AgentMasks[Agent] = AgentMasks(mask_key, mask_in)
        self._episodes: ParallelEpisodes[Agent] = ParallelEpisodes(
            actor_id=actor_id,
            split=self.split,
            label_key=label_key,
            masks=self._masks,
            run=run,
            tags=tags,
        )
        for agent in getattr(parallel_env, "possible_agents", ()):  # not all can name them
            self._admit(agent)
        self._ready = False  # to be stepped
        self._chosen: dict[Agent, Choice] = {}  # by `act`, for the next `step`
        #: What the last `step` of the environment returned.
        self.last_step: ParallelStep[Agent] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return the environment's attribute, `agents` and `possible_agents` among them."""
        if name.startswith("_") or name == "env":  # of which the latter is not there yet
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    @property
    def run(self) -> str:
        """First part of every episode id of this recorder."""
        return self._episodes.run

    @property
    def outboxes(self) -> tuple[Outbox, ...]:
        """One per endpoint, in the order in which they were given.

        Each holds what was recorded and not yet sent, and the receipts of what was.
        """
        return self._outboxes.all

    @property
    def unwrapped(self) -> Any:
        """The environment below all wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def observation_space(self, agent: Agent) -> spaces.Space[Any]:
        """Return what an agent sees."""
        return self.env.observation_space(agent)

    def action_space(self, agent: Agent) -> spaces.Space[Any]:
        """Return what an agent may do."""
        return self.env.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Agent, Any], dict[Agent, dict[str, Any]]]:
        """Reset the environment; a new episode begins for every agent.

        Args:
            seed: as the environment takes it.
            options: handed to the environment.

        Raises:
            MissingField: no agent's info has the label key, or an agent has no mask.
            InvalidInput: (one of its classes) an agent that cannot be recorded; see the class.
        """
        self._ready, self._chosen = False, {}
        self._episodes.reset()
        observations, infos = self.env.reset(seed=seed, options=options)
        told = [infos.get(agent, {}) for agent in self.env.agents]
        check_label_key(self._label_key, {key: info[key] for info in told for key in info})
        self._begin(observations, infos)
        self._ready = True
        return observations, infos

    def act(
        self,
        observations: Mapping[Agent, Any],
        deterministic: bool | None = None,
        epsilon: float | None = None,
    ) -> dict[Agent, int]:
        """Ask each endpoint once what its agents do, and remember which policy chose it for `step`.

        Args:
            observations: as `reset` or `step` returned them. Those of agents that are not live are
                left out; live agents that are not in it are not asked about.
            deterministic: take the best actions always, which wins over `epsilon`; None does so in
                the validation split.
            epsilon: probability of a random action; None is the model's exploration schedule.

        Returns:
            An action index for each live agent in `observations`.
        """
        if deterministic is None:
            deterministic = self.split == "validation"
        live = [agent for agent in self._episodes.agents if agent in observations]
        chosen: dict[Agent, Choice] = {}
        for endpoint, agents in self._outboxes.groups(live):
            seen = [self._masks.seen(agent, observations[agent]) for agent in agents]
            batch = _stack([copied(one) for one in seen])
            masks = [mask for agent in agents if (mask := self._episodes.mask(agent)) is not None]
            allowed = {"action_masks": np.stack(masks)} if masks else {}
            reply = endpoint.act(batch, deterministic=deterministic, epsilon=epsilon, **allowed)
            check_actions(reply, self.env.action_space(agents[0]))
            for agent, action, probability in zip(
                agents, reply.actions, reply.behavior_prob, strict=True
            ):
                chosen[agent] = Choice(action.index, reply.policy_version, probability)
        self._chosen |= chosen
        return {agent: chosen[agent].action for agent in live}

    def step(self, actions: Mapping[Agent, Any]) -> ParallelStep[Agent]:
        """Step the environment and record each agent's transition.

        An agent that is given the action which the last `act` chose for it is tagged with that
        policy's version and the action's probability; any other action is tagged -1, without.

        Args:
            actions: an action index for each live agent.

        Raises:
            ActionRange: a live agent without an action index.
            InvalidValue: what the environment returned breaks PettingZoo's rules, and all episodes
                are broken off; or an agent has joined that cannot be recorded (see the class).
            InvalidInput: (one of its classes) a mask is missing, or is none; likewise.
            gymnasium.error.ResetNeeded: before the first reset, or after what broke the rules.
            JormungandrError: an endpoint's own; see the class.
        """
        if not self._ready:
            raise ResetNeeded("expected running episodes; call reset() first")
        choices = {agent: self._choice(agent, actions) for agent in self._episodes.agents}
        result = self.env.step(actions)
        self._chosen, self.last_step = {}, result
        self._ready = False
        rows = self._episodes.advance(choices, result, self.env.agents)
        self._ready = True
        # All are kept before any is sent: no endpoint's error may cost another one its rows.
        self._outboxes.keep(rows)
        self._begin(result[0], result[4])
        self._outboxes.send_full()
        return result

    def flush(self) -> tuple[Receipt, ...]:
        """Send what is left, and return what became of all that was sent, for each outbox.

        With one endpoint, ``endpoint.wait(recorder.flush()[0].lsn)`` returns when the learner has
        applied it.

        Raises:
            JormungandrError: an endpoint's own; what it has not receipted is kept.
        """
        return self._outboxes.flush()

    def render(self) -> Any:
        """Return the environment's picture."""
        return self.env.render()

    def state(self) -> Any:
        """Return the environment's own global state, if it has one."""
        return self.env.state()

    def close(self) -> None:
        """Send what is left and close the environment, which is closed even if sending fails."""
        try:
            self._outboxes.send()
        finally:
            self.env.close()

    def _admit(self, agent: Agent) -> None:
        """Look at all that could be wrong with an agent, and give it its outbox."""
        self._episodes.actor_id(agent)
        observed = self._masks.observed(agent, self.env.observation_space(agent))
        actions = self._outboxes.admit(agent, observed, self.env.action_space(agent))
        self._masks.admit(agent, actions)

    def _begin(
        self, observations: Mapping[Agent, Any], infos: Mapping[Agent, Mapping[str, Any]]
    ) -> None:
        """Begin the episodes of live agents that have none."""
        playing = set(self._episodes.agents)
        for agent in self.env.agents:
            if agent not in playing:
                self._admit(agent)
                self._episodes.begin([agent], observations, infos)

    def _choice(self, agent: Agent, actions: Mapping[Agent, Any]) -> Choice:
        """Return an agent's action with where it came from."""
        if agent not in actions:
            raise ActionRange("actions", f"one of {agent!r}, who is live", list(actions))
        try:
            action = operator.index(actions[agent])
        except TypeError:
            where = f"actions[{agent!r}]"
            raise ActionRange(where, "an action index", actions[agent]) from None
        choice = self._chosen.get(agent)
        return choice if choice is not None and choice.action == action else Choice(action)


def _stack(observations: list[Any]) -> Any:
    """Return the observations of the agents of one endpoint as a batch."""
    shapes = {np.shape(seen) for seen in observations if not isinstance(seen, Mapping)}
    if len(shapes) > 1:
        raise ShapeMismatch("observations", "one shape for all who share an endpoint", shapes)
    return joined(observations)
