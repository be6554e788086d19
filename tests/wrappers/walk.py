"""An environment in which every action matters, and whose episodes differ in length and end."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

KINDS = {
    "vector": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "image": spaces.Box(0, 255, (36, 36), np.uint8),
    "discrete": spaces.Discrete(11),
    "multi_discrete": spaces.MultiDiscrete([11, 4]),
    "dict": spaces.Dict({"gear": spaces.Discrete(11), "place": spaces.Box(-99, 99, (2,))}),
}


class Walk(gym.Env):
    """Walk on eleven places; an episode of 2 to 9 steps is terminated or cut off, as drawn.

    A reward is a whole number: where it went, and how far it is from home.

    Args:
        kind: of what it shows; arrays are one buffer that it writes into at each step.
        masked: whether the info says which of three actions are allowed.
    """

    render_mode = None

    def __init__(self, kind="vector", masked=False):
        self.observation_space, self.action_space = KINDS[kind], spaces.Discrete(3)
        self.kind, self.masked, self.taken = kind, masked, []
        space = self.observation_space
        self.buffer = np.zeros(space.shape, space.dtype) if isinstance(space, spaces.Box) else None

    def reset(self, *, seed=None, options=None):
        """Begin anywhere."""
        super().reset(seed=seed)
        self.place, self.t = int(self.np_random.integers(11)), 0
        self.length, self.ends = int(self.np_random.integers(2, 10)), self.np_random.random() < 0.5
        return self.shown(), self.info()

    def step(self, action):
        """Go down, up by two, or wherever one draws."""
        self.taken.append(int(action))
        moves = (-1, 2, int(self.np_random.integers(11)))
        self.place, self.t = (self.place + moves[action]) % 11, self.t + 1
        over = self.t == self.length
        reward = float(10 * action + self.place)
        return self.shown(), reward, over and self.ends, over and not self.ends, self.info()

    def shown(self):
        """Return what is seen of a place, in the form of the kind."""
        if self.kind == "discrete":
            return np.int64(self.place)
        if self.kind == "multi_discrete":
            return np.array([self.place, self.t % 4])
        if self.kind == "dict":
            return {"gear": np.int64(self.place), "place": np.array([self.t, 1.5], np.float32)}
        if self.kind == "image":
            self.buffer[:] = 0
            self.buffer[3 * self.place : 3 * self.place + 6, 4 * self.t % 36 :] = 200
        else:
            self.buffer.flat[:2] = self.place - 5.0, self.t / 4
        return self.buffer

    def info(self):
        """Return the mask, if there is one: never nothing, never all."""
        number = (self.place + self.t) % 6 + 1
        mask = np.array([number >> i & 1 for i in range(3)], np.int8)
        return {"action_mask": mask, "place": self.place} if self.masked else {"place": self.place}
