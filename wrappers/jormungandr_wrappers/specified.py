"""`SpecifiedEnv`: a bare environment as the specification of a model says that it is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from jormungandr.episode import copied
from jormungandr.errors import DtypeMismatch, InvalidType, InvalidValue, ShapeMismatch
from jormungandr_wrappers.checks import check_kind, check_spaces

if TYPE_CHECKING:
    from jormungandr.spec import ModelSpec

__all__ = ["SpecifiedEnv"]

VECTORS = (
    "wrap the single environments, before they are vectorised: gymnasium.make_vec(id, num_envs=8,"
    ' vectorization_mode="sync", wrappers=[lambda env: SpecifiedEnv(env, spec)])'
)


class SpecifiedEnv(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Repeat actions and stack frames as a model's specification says.

    Wrapped so, an environment can be played and recorded by everything that knows nothing of
    frames: `RemoteActor`, `VectorRecorder` over a vector of such environments, `endpoint.episode`.

    First, one action is carried out ``spec.action_repeat`` times, or until the episode ends: the
    rewards are summed, observation, end and info are those of the last time. Then the newest
    ``spec.observation.frame_stack`` observations are one, along a new first axis, the oldest first;
    an episode begins with its first one repeated. So there is one frame for each decision. With
    both at 1 the environment steps as it did without; that its spaces are the specification's is
    checked all the same.

    `predict` of `PolicySnapshot` and `RemotePolicy` does the same by itself and takes the bare
    environment.

    Args:
        env: a single, bare environment.
        spec: of the model.

    Raises:
        InvalidType: no single environment, or no specification.
        InvalidValue: the environment's spaces are not the specification's, or it is wrapped so
            already.

    Example:
        >>> import gymnasium as gym
        >>> from jormungandr import ModelSpec
        >>> bare = gym.make("CartPole-v1")
        >>> spec = ModelSpec.for_env(bare, observation={"frame_stack": 3}, action_repeat=2)
        >>> env = SpecifiedEnv(bare, spec)
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(1)
        >>> observation.shape, reward
        ((3, 4), 2.0)
    """

    def __init__(self, env: gymnasium.Env[Any, Any], spec: ModelSpec) -> None:
        check_kind(env, gymnasium.Env, "env", VECTORS)
        _check_fits(spec, env)
        RecordConstructorArgs.__init__(self, spec=spec)
        gymnasium.Wrapper.__init__(self, env)
        self._repeat, self._depth = spec.action_repeat, spec.observation.frame_stack
        if self._depth > 1:
            self.observation_space = batch_space(env.observation_space, self._depth)
        self._stack: NDArray[Any] | None = None  # (frame_stack, …), if frames are stacked

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; its observation is every frame of the first stack.

        Raises:
            ShapeMismatch, DtypeMismatch: of frames to stack, one that is not of its space.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        if self._depth == 1:
            return observation, info
        self._stack = np.repeat(self._frame(observation), self._depth, axis=0)
        return self._stack.copy(), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Carry an action out so many times, or until the episode ends.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
            ShapeMismatch, DtypeMismatch: of frames to stack, one that is not of its space.
        """
        if self._depth > 1 and self._stack is None:
            raise ResetNeeded("expected a running episode; call reset() first")
        observation, reward, terminated, truncated, info = self.env.step(action)
        for _ in range(self._repeat - 1):
            if terminated or truncated:
                break
            observation, more, terminated, truncated, info = self.env.step(action)
            reward = float(reward) + float(more)
        if self._stack is None:
            return observation, reward, terminated, truncated, info
        self._stack = np.concatenate([self._stack[1:], self._frame(observation)])
        return self._stack.copy(), reward, terminated, truncated, info

    def _frame(self, observation: Any) -> NDArray[Any]:
        """Return an observation as one frame, (1, …); refuse what is none of its space."""
        space = self.env.observation_space
        assert isinstance(space, spaces.Box)  # or the specification would stack no frames
        given = np.asarray(copied(observation))
        if given.shape != space.shape:
            raise ShapeMismatch("observation", f"{space.shape}, as its space says", given.shape)
        expected = f"{space.dtype}, as its space says"
        if given.dtype.kind not in "fiu":
            raise DtypeMismatch("observation", expected, given.dtype)
        with np.errstate(invalid="ignore"):  # NaN as an integer, looked at below
            frame = given.astype(space.dtype)
        if frame.dtype.kind != "f" and not (frame == given).all():  # 0.5 would be 0, and so 256
            raise DtypeMismatch("observation", expected, given.dtype)
        return frame[None]


def _check_fits(spec: ModelSpec, env: gymnasium.Env[Any, Any]) -> None:
    """Refuse an environment that is not the specification's, or is no bare one."""
    if not hasattr(spec, "action_set"):
        remedy = "ModelSpec.from_dict makes one of a dict"
        raise InvalidType("spec", "a ModelSpec", type(spec).__name__, remedy)
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, SpecifiedEnv):
            raise InvalidValue("env", "a bare environment", "a SpecifiedEnv", "wrap it once")
        inner = inner.env
    shown, count = check_spaces(env.observation_space, env.action_space)
    seen, actions = spec.observation.described, len(spec.action_set)
    if not spec.observation.sees(shown):
        remedy = "SpecifiedEnv stacks frames itself" if spec.observation.frame_stack > 1 else ""
        raise InvalidValue("observation_space", f"{seen}, as specified", shown, remedy)
    if count != actions:
        raise InvalidValue("action_space", f"{actions} actions, as specified", count)
