"""`Predictor`: `predict` in the shape Stable-Baselines3 gives policies, for a bare environment.

What the specification says about frames and repeated actions happens here, in the state that a
recurrent policy of Stable-Baselines3 would have: `evaluate_policy` and loops that hand the state
back need no wrapper around the environment. B environments, A actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import as_array, check_no_pair
from jormungandr.encoding import is_single, observations
from jormungandr.errors import InvalidType, ShapeMismatch
from jormungandr.settings import Observation
from jormungandr.spec import ModelSpec

__all__ = ["Predictor"]

State = tuple[NDArray[Any], ...]


class Predictor(ABC):
    """Chooses actions for environments that are played beside each other."""

    @abstractmethod
    def _specification(self) -> ModelSpec:
        """Return the model's specification."""

    @abstractmethod
    def _choose(self, observations: Any, deterministic: bool, masks: Any) -> NDArray[np.int64]:
        """Return action indices, (B,), for a batch as the network sees it, frames stacked."""

    def predict(
        self,
        observation: Any,
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray[np.int64], State | None]:
        """Return (action indices, state): (B,) for a batch, 0-d for a single observation.

        Args:
            observation: what one environment shows, or a batch of B. Of a model with stacked
                frames a frame; a batch of stacks, as a wrapped environment shows them, is taken
                too, and then neither frames nor repeated actions are kept here. (A single stack
                would look like a batch of frames: give it as a batch of one.)
            state: what the call before returned. A model with stacked frames or repeated actions
                needs it from the second step of an episode on; others hand it through.
            episode_start: (B,) where an episode begins, which forgets the state; None is nowhere,
                but everywhere without a state.
            deterministic: the best action; otherwise the model's exploration schedule applies.
            action_masks: (B, A) or (A,), which actions are allowed; of a model with action masks.

        Raises:
            InvalidType: the pair that ``env.reset()`` returns was given instead of its first part.
            InvalidInput: (one of its classes) an observation or mask that does not fit, or a state
                or `episode_start` of other environments.
        """
        check_no_pair(observation)
        spec = self._specification()
        if spec.observation.frame_stack > 1:
            frames, single = _frames(observation, spec.observation)
            if frames is None:
                return self._choose(observation, deterministic, action_masks), state
        elif spec.action_repeat > 1:
            single = is_single(observation, spec.observation)
            frames = observations(observation, spec, "observation")[:, None]
        else:
            single = is_single(observation, spec.observation)
            batch = _batch_of_one(observation) if single else observation
            indices = self._choose(batch, deterministic, action_masks)
            return indices.reshape(() if single else (-1,)), state
        indices, state = self._go_on(
            spec, frames, state, episode_start, deterministic, action_masks
        )
        return indices.reshape(() if single else (-1,)), state

    def _go_on(
        self,
        spec: ModelSpec,
        frames: NDArray[Any],
        state: State | None,
        episode_start: NDArray[Any] | None,
        deterministic: bool,
        masks: Any,
    ) -> tuple[NDArray[np.int64], State]:
        """Stack frames (B, 1, …), repeat actions; return (B,) of them and the new state."""
        count, depth = len(frames), spec.observation.frame_stack
        repeated = np.repeat(frames, depth, axis=1)
        if state is None:
            begins = np.ones(count, dtype=np.bool_)
            stack, left, action = repeated, np.zeros(count, np.int64), np.zeros(count, np.int64)
        else:
            stack, left, action = _copied(state, repeated.shape)
            begins = np.zeros(count, dtype=np.bool_)
            if episode_start is not None:
                begins = as_array(episode_start, "episode_start").astype(np.bool_)
                if begins.shape != (count,):
                    raise ShapeMismatch("episode_start", f"({count},)", begins.shape)
        decides = begins | (left == 0)
        wide = [1] * (frames.ndim - 1)
        moved = np.concatenate([stack[:, 1:], frames], axis=1)
        stack = np.where(decides.reshape(-1, *wide), moved, stack)
        stack = np.where(begins.reshape(-1, *wide), repeated, stack)
        if decides.any():
            if masks is not None:
                masks = _rows(masks, count)[decides]
            seen = stack[decides] if depth > 1 else stack[decides, 0]
            action[decides] = self._choose(seen, deterministic, masks)
        left = np.where(decides, spec.action_repeat - 1, left - 1)
        return action.copy(), (stack, left, action)


def _copied(state: Any, shape: tuple[int, ...]) -> State:
    """Return a state whose stacks have the shape, as arrays of its own."""
    if not isinstance(state, tuple) or len(state) != 3:
        expected = "what the call before returned"
        raise InvalidType("state", expected, type(state).__name__, "None begins without one")
    stack, left, action = (np.array(part) for part in state)
    if stack.shape != shape:
        raise ShapeMismatch("state", f"frames {shape}, as they are shown now", stack.shape)
    return stack, left, action


def _rows(masks: Any, count: int) -> NDArray[Any]:
    """Return masks with a row for each environment; what is in them is checked where they go."""
    array = as_array(masks, "action_masks")
    if array.ndim == 1 and count == 1:
        return array[None]
    if array.ndim != 2 or len(array) != count:
        raise ShapeMismatch("action_masks", f"{count} rows, one of each environment", array.shape)
    return array


def _frames(observation: Any, o: Observation) -> tuple[NDArray[Any] | None, bool]:
    """Return frames (B, 1, *shape), None where they are stacked already, and whether it is one."""
    given = as_array(observation, "observation")
    frame = o.shape
    if given.shape == frame:
        return given[None, None], True
    if given.shape[1:] == frame:
        return given[:, None], False
    if given.shape[1:] in (o.shown_shape, o.stored_shape):
        return None, False
    expected = f"a frame {frame}, a batch of them, or a batch of {o.frame_stack} stacked"
    raise ShapeMismatch("observation", expected, given.shape)


def _batch_of_one(observation: Any) -> Any:
    return observation[None] if isinstance(observation, np.ndarray) else [observation]
