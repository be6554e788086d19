"""A small parallel environment whose agents come and go by a script, and what they make of it."""

import itertools
from collections import defaultdict

import numpy as np
import pettingzoo
from gymnasium import spaces

from jormungandr_wrappers import ParallelRecorder

#: How an agent's episode may end: terminated, truncated.
END, CUT, BOTH = (True, False), (False, True), (True, True)
#: b leaves early; c joins with the step with which b leaves; a is cut off last.
SCRIPT = {"a": (0, 4, CUT), "b": (0, 2, END), "c": (2, 3, END)}


class Crowd(pettingzoo.ParallelEnv):
    """Agents that come and go by a script: ``{name: (first step, last step, how it ends)}``.

    What an agent of number k sees at time t is [k, t]; a step to time t is worth k + t / 10. Unless
    `named`, nobody knows beforehand who there will be.
    """

    metadata = {"name": "crowd_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, script, named=True):
        self.script, self.names = script, list(script)
        if named:
            self.possible_agents = self.names
        self.agents, self.now, self.closed, self.taken = [], 0, False, []
        self.render_mode = None
        self._space = {a: (spaces.Box(-1e3, 1e3, (2,)), spaces.Discrete(3)) for a in script}

    def observation_space(self, agent):
        """Return the agent's own space."""
        return self._space[agent][0]

    def action_space(self, agent):
        """Return the agent's own space."""
        return self._space[agent][1]

    def see(self, agent):
        """Return what an agent sees now."""
        return np.array([self.names.index(agent), self.now], np.float32)

    def reset(self, seed=None, options=None):
        """Begin with those whose first step is the first."""
        self.now = 0
        self.agents = [a for a, (first, *_) in self.script.items() if first == 0]
        return {a: self.see(a) for a in self.agents}, {a: {"t": np.int64(0)} for a in self.agents}

    def step(self, actions):
        """Move on by one; the newcomers of the next step are already seen."""
        self.taken.append(dict(actions))
        self.now += 1
        present, ended = self.agents, {}
        for agent in present:
            _, last, how = self.script[agent]
            ended[agent] = how if self.now == last else (False, False)
        come = [a for a, (first, *_) in self.script.items() if first == self.now]
        seen = present + come
        self.agents = [a for a in present if not any(ended[a])] + come
        ended |= dict.fromkeys(come, (False, False))
        return (
            {a: self.see(a) for a in seen},
            {a: self.names.index(a) + self.now / 10 for a in seen},
            {a: ended[a][0] for a in seen},
            {a: ended[a][1] for a in seen},
            {a: {"t": np.int64(self.now)} for a in seen},
        )

    def close(self):
        """Remember it."""
        self.closed = True


def told(script, resets):
    """Return the rows that a script makes, by (actor, episode): the slow truth."""
    rows = {}
    for n, (k, (agent, (first, last, how))) in itertools.product(
        range(resets), enumerate(script.items())
    ):
        rows[f"x-{agent}", f"r-0-{n}"] = [
            ([k, t], k + (t + 1) / 10, [k, t + 1], *(how if t + 1 == last else (False, False)), t)
            for t in range(first, last)
        ]
    return rows


def recorded(endpoint):
    """Return the same of what an endpoint was sent, after looking at timesteps and label types."""
    found = defaultdict(list)
    for row in endpoint.rows:
        rows = found[row.actor_id, row.episode_id]
        assert row.timestep == len(rows)
        assert row.label is None or type(row.label) is int
        seen, after = row.observation.tolist(), row.next_observation.tolist()
        rows.append((seen, row.reward, after, row.terminated, row.truncated, row.label))
    return dict(found)


def recorder_of(env, endpoints, **more):
    """Return a recorder of actor x in run r, after its reset, and the first observations."""
    recorder = ParallelRecorder(env, endpoints, actor_id="x", **{"run": "r", **more})
    observations, _ = recorder.reset(seed=0)
    return recorder, observations


def crowd(endpoints, script=None, **more):
    """Return a recorder of a crowd, and its first observations."""
    return recorder_of(Crowd(script or SCRIPT), endpoints, **more)


def step_all(recorder, action=1):
    """Give every live agent the same action."""
    return recorder.step(dict.fromkeys(recorder.agents, action))


def tags(rows):
    """Return (actor, policy version, behaviour probability) of each."""
    return [(r.actor_id, r.policy_version, r.behavior_prob) for r in rows]
