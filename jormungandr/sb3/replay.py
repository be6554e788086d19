"""Prioritized n-step replay over Stable-Baselines3's storage, for arrays and for Dicts.

B samples, E environments, R rows of E transitions each. Slot s holds the transition of row s // E
and environment s % E.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from jormungandr.errors import InvalidValue
from jormungandr.learner.priorities import Draw, Priorities
from jormungandr.spec import FLOAT32_MAX
from jormungandr.spec import Replay as ReplaySpec

__all__ = ["PrioritizedDictReplayBuffer", "PrioritizedReplayBuffer", "PrioritizedSamples"]


class PrioritizedSamples(NamedTuple):
    """`ReplayBufferSamples`, what to weight them with, and where they came from.

    Args:
        dones: (B, 1), terminated at the last step of the sum of rewards.
        rewards: (B, 1), over k steps.
        discounts: (B, 1), γ^k.
        weights: (B,) float32 importance weights, at most 1.
        drawn: for `update_priorities`.
    """

    observations: PyTorchObs
    actions: Tensor
    next_observations: PyTorchObs
    dones: Tensor
    rewards: Tensor
    discounts: Tensor
    weights: Tensor
    drawn: Draw


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws transitions with P(i) ∝ p_i^α, and sums their rewards over n steps.

    The learner's priorities do the drawing. The n steps are put together when a transition is
    drawn, as in Stable-Baselines3's `NStepReplayBuffer`: one whose n steps are not all there yet
    uses those that are. A sum ends at a termination, a truncation, the newest transition, or where
    `close` was called, and bootstraps at the true successor of its last step unless that
    terminated (Sutton and Barto 2018, equation 7.1).

    Args:
        *args, **kwargs: as in `ReplayBuffer`.
        n_steps: steps of reward before the bootstrap.
        gamma: discount per step.
        alpha: exponent of the priorities; 0 draws uniformly.
        priority_epsilon: added to every priority.
        is_normalizer: weights are divided by their maximum over the ``batch`` or the ``buffer``.
        seed: of the draws; None takes the operating system's randomness.

    Attributes:
        beta: exponent of the importance weights at the next draw, 0..1.

    Raises:
        InvalidValue: a value outside its range, or `optimize_memory_usage`.
    """

    def __init__(
        self,
        *args: Any,
        n_steps: int = 1,
        gamma: float = 0.99,
        alpha: float = 0.6,
        priority_epsilon: float = 1e-6,
        is_normalizer: Literal["batch", "buffer"] = "batch",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.optimize_memory_usage:
            raise InvalidValue(
                "optimize_memory_usage",
                "False",
                True,
                "it loses the last observation of an episode, which truncation and n-step need;"
                " `replay_buffer_class=ReplayBuffer` and"
                " `replay_buffer_kwargs={'handle_timeout_termination': False}` go without",
            )
        if is_normalizer not in ("batch", "buffer"):
            raise InvalidValue("is_normalizer", "batch or buffer", is_normalizer)
        self.n_steps, self.gamma = n_steps, gamma
        self.beta = 1.0
        self._spec = ReplaySpec(
            capacity=self.buffer_size * self.n_envs,
            alpha=alpha,
            priority_epsilon=priority_epsilon,
            is_normalizer=is_normalizer,
        )
        self._priorities = Priorities(self._spec)
        # Where the next row is not the next step although nothing ended: (R, E).
        self._closed = np.zeros((self.buffer_size, self.n_envs), dtype=np.bool_)
        self.seed(seed)

    @property
    def priorities(self) -> NDArray[np.float64]:
        """The priority of every slot, without ε and α; a copy."""
        return self._priorities.priority[: len(self._priorities)].copy()

    @property
    def stale_writes(self) -> int:
        """Priorities that came when their transition had been overwritten."""
        return self._priorities.stale_writes

    def seed(self, seed: int | None) -> None:
        """Begin the stream of draws anew."""
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self._priorities = Priorities(self._spec)

    def close(self) -> None:
        """Let no sum of rewards go on from the newest transitions to the next ones added.

        For an environment that is reset in the middle of an episode.
        """
        if self.size():
            self._closed[self.pos - 1] = True

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a row; arguments as in `ReplayBuffer.add`."""
        row = self.pos
        super().add(*args, **kwargs)
        self._closed[row] = False
        self._priorities.append(self.n_envs)

    def sample(  # type: ignore[override]  # more than ReplayBufferSamples, with its names
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedSamples:
        """Draw transitions with replacement, stratified over the mass when prioritized.

        Args:
            batch_size: B.
            env: normalises observations and rewards as it does at present.

        Raises:
            ValueError: the buffer is empty.
        """
        drawn = self._priorities.sample(batch_size, self.beta, self._rng)
        row, at = np.divmod(drawn.slot, self.n_envs)  # (B,), (B,)
        steps = (row[:, None] + np.arange(self.n_steps)) % self.buffer_size  # (B, n)
        ended = (self.dones[steps, at[:, None]] > 0) | self._closed[steps, at[:, None]]
        ended |= steps == (self.pos - 1) % self.buffer_size
        ended[:, -1] = True
        k = ended.argmax(axis=1) + 1  # (B,) steps summed
        rewards = self._normalize_reward(self.rewards[steps, at[:, None]], env)
        weights = self.gamma ** np.arange(self.n_steps) * (np.arange(self.n_steps) < k[:, None])
        total = (rewards * weights).sum(axis=1).clip(-FLOAT32_MAX, FLOAT32_MAX)
        last = steps[np.arange(batch_size), k - 1]
        terminated = self.dones[last, at] * (1 - self.timeouts[last, at])
        return PrioritizedSamples(
            observations=self._gathered(self.observations, row, at, env),
            actions=self.to_torch(self.actions[row, at]),
            next_observations=self._gathered(self.next_observations, last, at, env),
            dones=self.to_torch(terminated[:, None]),
            rewards=self.to_torch(total.astype(np.float32)[:, None]),
            discounts=self.to_torch((self.gamma**k).astype(np.float32)[:, None]),
            weights=self.to_torch(drawn.weight.astype(np.float32)),
            drawn=drawn,
        )

    def update_priorities(self, drawn: Draw, priority: NDArray[np.floating]) -> None:
        """Write (B,) non-negative priorities back to the transitions they were computed for."""
        self._priorities.update(drawn, priority)

    def _gathered(
        self, stored: Any, row: NDArray[np.int64], at: NDArray[np.int64], env: VecNormalize | None
    ) -> PyTorchObs:
        """Return observations (B, …), or a Dict of them, as tensors."""
        if isinstance(stored, dict):
            many = self._normalize_obs({k: a[row, at] for k, a in stored.items()}, env)
            assert isinstance(many, dict)
            return {key: self.to_torch(array) for key, array in many.items()}
        one = self._normalize_obs(stored[row, at], env)
        assert isinstance(one, np.ndarray)
        return self.to_torch(one)


# SB3 itself types the storage of a Dict differently from that of its base class.
class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """`PrioritizedReplayBuffer` for Dict observations."""
