"""`C51`: categorical Q-learning with the life cycle of Stable-Baselines3's DQN."""

from __future__ import annotations

import io
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize
from stable_baselines3.dqn.dqn import DQN

from jormungandr import spec
from jormungandr.errors import InvalidValue
from jormungandr.learner.c51 import descend, target_distribution, transition_losses
from jormungandr.learner.network import noise
from jormungandr.learner.support import CLIPPED_AVERAGING, Fitting
from jormungandr.numerics.support import UNKNOWN
from jormungandr.sb3.masks import checked_masks
from jormungandr.sb3.moments import ObservationMoments, has_moments
from jormungandr.sb3.networks import CategoricalNetwork
from jormungandr.sb3.policies import ALIASES, C51Policy
from jormungandr.sb3.policy_arguments import check_policy
from jormungandr.sb3.replay import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSamples,
)
from jormungandr.sb3.support import move_support

__all__ = ["C51"]

#: Steps of reward before the bootstrap, where nobody says.
N_STEPS = 3


class C51(DQN):
    """Categorical DQN (Bellemare, Dabney and Munos 2017, arXiv:1707.06887).

    Stable-Baselines3's DQN with another head, loss and replay: what is not listed here means what
    it means there, its exploration too. Projection, loss, priorities and moments are those of
    `jormungandr.Learner`; the other defaults are those of its preset ``default``, but for averaged
    weights, which are not here.

    Args:
        policy: ``MlpPolicy``, ``CnnPolicy``, ``MultiInputPolicy``, or a class like `C51Policy`.
        env: its actions are a Discrete that starts at 0.
        learning_rate: a number, or a function of the progress that remains, 1 to 0, such as an
            `AnnealedRate`.
        batch_size: transitions per update. Adam's ε is 0.01 / batch_size, the value of the paper,
            unless `policy_kwargs` name an optimizer or its arguments.
        n_steps: steps of reward before the bootstrap; for Dict observations too. None is 3, or
            1 when `replay_buffer_class` is not a `PrioritizedReplayBuffer`.
        target_update_interval: environment steps between copies to the target network: every 50
            updates at one update for two transitions.
        policy_kwargs: arguments of `C51Policy`, such as ``{"dueling": True, "noisy": True}``.
        v_min, v_max: lowest and highest return that can be represented. What lies beyond is put at
            the ends, and ``train/clipped_low`` and ``train/clipped_high`` say how much that is.
            Both None: they begin where the rewards before the first update say, and move outwards
            while learning; ``train/v_min`` and ``train/v_max`` say where they are.
        atoms: points of the support.
        double: choose the bootstrap action with the online network (van Hasselt et al. 2016).
        alpha: exponent of the priorities (Schaul et al. 2016, arXiv:1511.05952); 0 draws
            uniformly. None is 0.6, or 0 when `replay_buffer_class` is not a
            `PrioritizedReplayBuffer`.
        beta_start: exponent of the importance weights at the first update.
        beta_updates: updates over which it rises linearly to 1.
        priority_epsilon: added to every priority.
        is_normalizer: weights are divided by their maximum over the ``batch`` or the ``buffer``.
        normalize_observations: scale a Box of one axis by the moments of the transitions that
            `learn` collects; other spaces have none. Excludes `VecNormalize(norm_obs=True)`.
        clip_observations: bound of a normalised element, in standard deviations.

    Raises:
        InvalidValue: an argument outside its range, or two that exclude each other; a policy, or
            the .zip of an algorithm, that is none of ours.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = ALIASES
    policy: C51Policy
    q_net: CategoricalNetwork
    q_net_target: CategoricalNetwork

    def __init__(
        self,
        policy: str | type[C51Policy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-4,
        buffer_size: int = 100_000,
        learning_starts: int = 1_000,
        batch_size: int = 64,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 2,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int | None = None,
        target_update_interval: int = 100,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float = 10.0,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        v_min: float | None = None,
        v_max: float | None = None,
        atoms: int = 51,
        double: bool = True,
        alpha: float | None = None,
        beta_start: float = 0.4,
        beta_updates: int = 100_000,
        priority_epsilon: float = 1e-6,
        is_normalizer: Literal["batch", "buffer"] = "batch",
        normalize_observations: bool = True,
        clip_observations: float = 10.0,
    ) -> None:
        if n_steps is None:
            kind = replay_buffer_class or PrioritizedReplayBuffer
            n_steps = N_STEPS if issubclass(kind, PrioritizedReplayBuffer) else 1
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,
            gamma,
            train_freq,
            gradient_steps,
            replay_buffer_class,
            replay_buffer_kwargs,
            optimize_memory_usage,
            n_steps,
            target_update_interval,
            exploration_fraction,
            exploration_initial_eps,
            exploration_final_eps,
            max_grad_norm,
            stats_window_size,
            tensorboard_log,
            policy_kwargs,
            verbose,
            seed,
            device,
            _init_setup_model=False,
        )
        if (v_min is None) != (v_max is None):
            raise InvalidValue("v_min, v_max", "both of them, or neither", (v_min, v_max))
        # Of a support that fits itself, where it is at present.
        self.fitting = Fitting(gamma) if v_min is None else None
        self._clipped = [0.0, 0.0]  # running averages, of either end
        self._fitted = False  # whether its bounds follow from rewards yet
        self.v_min, self.v_max = UNKNOWN if v_min is None or v_max is None else (v_min, v_max)
        self.atoms, self.double = atoms, double
        self.alpha = alpha
        self.beta_start, self.beta_updates = beta_start, beta_updates
        self.priority_epsilon, self.is_normalizer = priority_epsilon, is_normalizer
        self.normalize_observations = normalize_observations
        self.clip_observations = clip_observations
        self._non_finite = 0  # updates skipped
        if _init_setup_model:
            self._setup_model()

    # -- setting up -----------------------------------------------------------------------------

    def _setup_model(self) -> None:
        own = self._policy_arguments().keys() - {"optimizer_kwargs"}  # which a caller may give too
        check_policy(self.policy_class, self.policy_kwargs, own)
        self._check()
        given = {
            name: getattr(self, name)
            for name in ("policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs", "n_steps")
        }
        self.policy_kwargs = _joined("policy_kwargs", self.policy_kwargs, self._policy_arguments())
        kind = self.replay_buffer_class or (
            PrioritizedDictReplayBuffer
            if isinstance(self.observation_space, spaces.Dict)
            else PrioritizedReplayBuffer
        )
        if issubclass(kind, PrioritizedReplayBuffer):
            self.replay_buffer_class = kind
            self.replay_buffer_kwargs = _joined(
                "replay_buffer_kwargs", self.replay_buffer_kwargs, self._replay_arguments()
            )
            self.n_steps = 1  # the base class would warn that a class of ours ignores it
        try:
            super()._setup_model()
        finally:
            # As they were given, so that a model loaded with other settings is built from them.
            vars(self).update(given)

    def _check(self) -> None:
        """Refuse settings that do not work, alone or together."""
        spec.C51(
            atoms=self.atoms,
            support="auto" if self.fitting is not None else (self.v_min, self.v_max),
            gamma=self.gamma,
            batch_size=self.batch_size,
            max_grad_norm=self.max_grad_norm,
            n_step=self.n_steps,
        )
        spec.Replay(beta_start=self.beta_start, beta_updates=self.beta_updates)
        spec.Observation(shape=(1,), clip=self.clip_observations)
        if not isinstance(self.action_space, spaces.Discrete) or self.action_space.start != 0:
            raise InvalidValue("action_space", "a Discrete that starts at 0", self.action_space)
        foreign = self.replay_buffer_class is not None and not issubclass(
            self.replay_buffer_class, PrioritizedReplayBuffer
        )
        if foreign and self.alpha:
            raise InvalidValue(
                "alpha",
                "0 or None with a replay_buffer_class that has no priorities",
                self.alpha,
                "leave out replay_buffer_class, or derive it from PrioritizedReplayBuffer",
            )
        self._refuse(self._vec_normalize_env)

    def _refuse(self, vec_normalize: VecNormalize | None) -> None:
        """Refuse a second normalisation of the same observations."""
        if (
            vec_normalize is not None
            and vec_normalize.norm_obs
            and self.normalize_observations
            and has_moments(self.observation_space)
        ):
            raise InvalidValue(
                "env",
                "observations that are not normalised yet",
                "VecNormalize(norm_obs=True)",
                "C51 normalises them itself and keeps the moments in the policy; use"
                " VecNormalize(norm_obs=False), or C51(normalize_observations=False)",
            )

    def _policy_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "atoms": self.atoms,
            "v_min": self.v_min,
            "v_max": self.v_max,
            "normalize_observations": self.normalize_observations,
            "clip_observations": self.clip_observations,
        }
        if not {"optimizer_class", "optimizer_kwargs"} & self.policy_kwargs.keys():
            arguments["optimizer_kwargs"] = {"eps": spec.C51(batch_size=self.batch_size).adam_eps}
        return arguments

    def _replay_arguments(self) -> dict[str, Any]:
        return {
            "n_steps": self.n_steps,
            "gamma": self.gamma,
            "alpha": spec.Replay().alpha if self.alpha is None else self.alpha,
            "priority_epsilon": self.priority_epsilon,
            "is_normalizer": self.is_normalizer,
            "seed": self.seed,
        }

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed every random stream, the draws of the replay among them."""
        super().set_random_seed(seed)
        if seed is not None and isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            self.replay_buffer.seed(seed)
        if seed is not None and getattr(self, "policy", None) is not None:
            self.policy.noise = np.random.default_rng(seed)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Go on in another environment, as in Stable-Baselines3.

        Raises:
            InvalidValue: it normalises observations, and so does the model.
        """
        if isinstance(env, VecEnv):
            self._refuse(unwrap_vec_normalize(env))
        super().set_env(env, force_reset)

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """Load a replay buffer from a pickle file, which is code: only files you trust."""
        super().load_replay_buffer(path, truncate_last_traj)
        if isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            self.replay_buffer.n_steps, self.replay_buffer.gamma = self.n_steps, self.gamma
            self.replay_buffer.close()

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """Return actions and `state`, exploring unless `deterministic`, as DQN does.

        Args:
            observation: a single one, or a batch of B.
            state: handed through.
            episode_start: without meaning here.
            deterministic: the best actions; otherwise, with probability `exploration_rate`, any of
                those allowed.
            action_masks: as in `C51Policy.predict`.

        Raises:
            InvalidInput: (one of its classes) masks of another shape, or a row that allows nothing.
        """
        if action_masks is None:
            return super().predict(observation, state, episode_start, deterministic)
        if deterministic or np.random.rand() >= self.exploration_rate:
            return self.policy.predict(
                observation, state, episode_start, deterministic, action_masks
            )
        batched = self.policy.is_vectorized_observation(observation)
        one = next(iter(observation.values())) if isinstance(observation, dict) else observation
        assert isinstance(self.action_space, spaces.Discrete)
        masks = checked_masks(
            action_masks, len(one) if batched else 1, int(self.action_space.n)
        ).astype(np.int8)
        actions = np.array([self.action_space.sample(mask) for mask in masks])
        return actions if batched else actions.squeeze(axis=0), state

    # -- learning -------------------------------------------------------------------------------

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        resets = reset_num_timesteps or self._last_obs is None
        if resets and isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            self.replay_buffer.close()
        return super()._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )

    def _store_transition(self, replay_buffer: Any, *args: Any, **kwargs: Any) -> None:
        if self.policy.moments is not None:
            replay_buffer = _Observed(replay_buffer, self.policy.moments)
        super()._store_transition(replay_buffer, *args, **kwargs)
        if self.fitting is not None:
            # (E,), as the environment gave it: normalised, where it normalises, like those sampled.
            reward = kwargs["reward"] if "reward" in kwargs else args[2]
            self.fitting.add(np.asarray(reward, dtype=np.float32))

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make `gradient_steps` updates from replay."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        if self.policy.moments is not None:
            self.policy.moments.latch()
        measured = []
        for _ in range(gradient_steps):
            with noise(self.policy.noise, self.q_net, self.q_net_target):  # if they are noisy
                measured.append(self._update(batch_size))
        if self.fitting is not None:
            self.logger.record("train/v_min", self.v_min)
            self.logger.record("train/v_max", self.v_max)
        loss, low, high = np.mean(measured, axis=0)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", loss)
        self.logger.record("train/clipped_low", low)
        self.logger.record("train/clipped_high", high)
        if self._non_finite:
            self.logger.record("train/non_finite", self._non_finite)

    def _update(self, batch_size: int) -> tuple[float, float, float]:
        """Make one update; return its loss and the share of target mass clipped at each end."""
        self._fit_support()
        replay = self.replay_buffer
        assert replay is not None
        if isinstance(replay, PrioritizedReplayBuffer):
            done = min(1.0, self._n_updates / self.beta_updates)
            replay.beta = self.beta_start + (1 - self.beta_start) * done
        data: Any = replay.sample(batch_size, env=self._vec_normalize_env)
        discounts = self.gamma if data.discounts is None else data.discounts
        with torch.no_grad():
            chooser = None
            if self.double:
                # In evaluation mode: successors must not move the statistics of batch norm.
                self.q_net.set_training_mode(False)
                chooser = self.q_net.logits(data.next_observations)
                self.q_net.set_training_mode(True)
            target, low, high = target_distribution(
                self.q_net.support,
                self.q_net_target.logits(data.next_observations),
                chooser,
                data.rewards.flatten(),
                ((1 - data.dones) * discounts).flatten(),
            )
        logits = self.q_net.logits(data.observations)
        losses = transition_losses(logits, data.actions.long().flatten(), target)  # (B,)
        weighted = losses * data.weights if isinstance(data, PrioritizedSamples) else losses
        loss = weighted.mean()
        finite, _ = descend(
            loss, self.q_net.parameters(), self.policy.optimizer, self.max_grad_norm
        )
        self._n_updates += 1
        if not finite:
            self._non_finite += 1
            warnings.warn(
                "C51 skipped an update with a non-finite loss or gradient; look at the rewards and"
                " observations, or lower learning_rate",
                RuntimeWarning,
                stacklevel=2,
            )
        elif isinstance(replay, PrioritizedReplayBuffer):
            replay.update_priorities(data.drawn, losses.detach().cpu().numpy())
        clipped = float(low.mean()), float(high.mean())
        for end in (0, 1):
            self._clipped[end] += CLIPPED_AVERAGING * (clipped[end] - self._clipped[end])
        return float(loss.detach()), *clipped

    def _fit_support(self) -> None:
        """Move the support to where the rewards so far want it."""
        if self.fitting is None:
            return
        before = (self.v_min, self.v_max) if self._fitted else None
        new = self.fitting.wanted(before, *self._clipped, learned=self._n_updates > 0)
        if new is None:
            return
        move_support(self.policy, new, keep=self._fitted)
        (self.v_min, self.v_max), self._clipped, self._fitted = new, [0.0, 0.0], True

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "C51",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Learn from environment steps, as in Stable-Baselines3."""
        return super().learn(
            total_timesteps,
            callback,
            log_interval,
            tb_log_name,
            reset_num_timesteps,
            progress_bar,
        )


class _Observed:
    """A replay buffer on whose way transitions move the moments, both observations of each."""

    def __init__(self, buffer: ReplayBuffer, moments: ObservationMoments) -> None:
        self.buffer, self.moments = buffer, moments

    def add(self, obs: NDArray[Any], next_obs: NDArray[Any], *args: Any) -> None:
        both = np.stack([obs, next_obs], axis=1)  # (E, 2, D)
        self.moments.update(both.reshape(-1, both.shape[-1]))
        self.buffer.add(obs, next_obs, *args)


def _joined(where: str, given: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, refusing a name that is an argument of `C51` itself."""
    if twice := sorted(given.keys() & ours.keys()):
        raise InvalidValue(where, "no argument of C51", twice, "give it to C51 itself")
    return {**given, **ours}
