"""`VecEnvRecorder`: a VecEnv of Stable-Baselines3 whose every transition reaches an endpoint.

B is the number of sub-environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, unwrap_vec_normalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from jormungandr.episode import Choice, check_split
from jormungandr.errors import InvalidValue
from jormungandr.protocol import Endpoint, Split
from jormungandr_wrappers.checks import check_kind, check_label_key, check_spaces
from jormungandr_wrappers.recording import Recording
from jormungandr_wrappers.rules import TagRule

__all__ = ["VecEnvRecorder"]

#: What the info of an episode's last step must hold, and the meaning of it.
END = {
    "terminal_observation": "the last observation of the episode that ended",
    "TimeLimit.truncated": "whether the episode was cut off, so that a value after it is learned",
}


class VecEnvRecorder(Recording, VecEnvWrapper):
    """Record a VecEnv's transitions and submit them; it steps as it did without.

    The transitions are those of `VectorRecorder` over the same environments: a VecEnv resets an
    ended sub-environment in the same step, its true last observation is the info's
    ``terminal_observation``, and an end with ``TimeLimit.truncated`` is a truncation. A step that
    both terminates and truncates is a termination, because a VecEnv does not tell the two apart.

    An algorithm trains on it as on any VecEnv; what the algorithm chose has the policy version -1.
    Put it inside `VecNormalize`, not around it: what is recorded are the environment's own
    observations, which a model normalises itself.

    An error of the endpoint leaves through whichever call met it; nothing is lost. When `step`
    raises one, the environment has moved: the results are in `last_step`, the transitions in
    ``outbox.unsent``, and `flush` tries again. An error of the environment, an end whose info lacks
    these two, or a missing mask breaks all running episodes off: the next call has to be `reset`.

    Args:
        venv: with a Discrete from 0 to choose from, and to see what a model can: a Box, Discrete,
            MultiBinary, MultiDiscrete, or a Dict of those.
        endpoint: a `Learner`, a `RemoteLearner`, or another `Endpoint`.
        actor_id: who acts; 1-128 bytes of UTF-8.
        split: ``train`` or ``validation``, or one of them per sub-environment.
        label_key: the infos' key of the auxiliary class of the observation they come with; with
            OUSpread ``"drift_label"``. None records no labels.
        mask_key: the infos' key of the mask of actions that are allowed from the observation they
            come with; in Taxi ``"action_mask"``. `act` sends the masks, and each transition carries
            its successor's. Only the last observation of a termination may be without. An action
            that was taken though its mask forbids it is recorded as it is. None: a model without.
        batch_size: transitions to gather before they are sent. 1 sends after every step, so that a
            learner in this process is never behind; over a network 256 saves round trips.
        run: first part of the episode ids; None draws 64 random bits.
        tags: of every episode, such as ``{"map": "dust"}``; or what returns those of each: it is
            called with the info of its reset and its number n.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind, or an environment whose
            spaces cannot be recorded, or whose observations are normalised already.

    Example:
        >>> from stable_baselines3.common.env_util import make_vec_env
        >>> from jormungandr import Learner, ModelSpec
        >>> learner = Learner(ModelSpec.preset("ou-note"))
        >>> env = VecEnvRecorder(make_vec_env("OUSpread-v0", n_envs=2), learner, actor_id="a1")
        >>> observations = env.reset()
        >>> for _ in range(10):
        ...     observations, rewards, dones, infos = env.step(env.act(observations))
        >>> env.close()
        >>> len(learner.replay)
        20
    """

    def __init__(
        self,
        venv: VecEnv,
        endpoint: Endpoint,
        *,
        actor_id: str,
        split: Split | Sequence[Split] = "train",
        label_key: str | None = None,
        mask_key: str | None = None,
        batch_size: int = 1,
        run: str | None = None,
        tags: TagRule | None = None,
    ) -> None:
        check_kind(
            venv,
            VecEnv,
            "venv",
            "VectorRecorder takes Gymnasium's vector environments, RemoteActor a single one",
        )
        _, actions = check_spaces(venv.observation_space, venv.action_space)
        normalize = unwrap_vec_normalize(venv)
        if normalize is not None and normalize.norm_obs:
            raise InvalidValue(
                "venv",
                "the environment's own observations",
                "VecNormalize(norm_obs=True)",
                "put VecNormalize around the recorder",
            )
        splits = check_split(split, venv.num_envs)
        super().__init__(venv)
        self._label_key, self._mask_key = label_key, mask_key
        self._record_for(
            endpoint,
            actor_id=actor_id,
            splits=splits,
            mode=AutoresetMode.SAME_STEP,
            action_space=venv.action_space,
            actions=actions,
            label_key=label_key,
            mask_key=mask_key,
            batch_size=batch_size,
            run=run,
            tags=tags,
        )
        self._whole = callable(tags)  # whether it is asked with all of an info
        self._taken: list[Choice] | None = None  # by `step_async`, for `step_wait`
        #: What the last `step` of the environment returned.
        self.last_step: VecEnvStepReturn | None = None

    def reset(self) -> VecEnvObs:
        """Reset all sub-environments; new episodes begin.

        Raises:
            InvalidInput: (one of its classes) the infos have no `label_key`, or not every mask.
        """
        self._taken = None
        self._choices.forget()
        with self._episodes.moving():
            observations = self.venv.reset()
            infos = self._reset_infos()
            for info in infos:
                check_label_key(self._label_key, info)
            self._episodes.begin(observations, self._told(infos))
        return observations

    def step_async(self, actions: ArrayLike) -> None:
        """Begin a step.

        A sub-environment that is given the action which the last `act` chose for it is tagged with
        that policy's version and the action's probability; any other action is tagged -1, without.

        Args:
            actions: action indices, (B,).

        Raises:
            ActionRange: not B integers.
            gymnasium.error.ResetNeeded: before the first reset, or after what broke the episodes
                off.
        """
        taken, self._taken = self._begin_step(actions), None
        with self._episodes.moving():
            self.venv.step_async(np.asarray(actions))
        self._choices.forget()
        self._taken = taken

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step to be done, and record the transitions.

        Raises:
            gymnasium.error.ResetNeeded: no step was begun.
            InvalidValue: an episode ended without ``terminal_observation`` or
                ``TimeLimit.truncated`` in its info; nothing of the step is recorded.
            InvalidInput: (one of its classes) a mask is missing, or is none; likewise.
            JormungandrError: the endpoint's own; see the class.
        """
        if self._taken is None:
            raise ResetNeeded("expected a step that was begun; call step(actions)")
        taken, self._taken = self._taken, None
        with self._episodes.moving():
            result = self.venv.step_wait()
            self.last_step = result
            observations, rewards, dones, infos = result
            over = np.asarray(dones, np.bool_)
            seen = self._after(over, infos)
            cut = over & [bool(info.get("TimeLimit.truncated")) for info in infos]
            rows = self._episodes.advance(taken, observations, rewards, over & ~cut, cut, seen)
        self.outbox.put(rows)
        return result

    def close(self) -> None:
        """Send what is left and close the environment, which is closed even if sending fails."""
        try:
            self.outbox.send()
        finally:
            self.venv.close()

    def _reset_infos(self) -> Sequence[Mapping[str, Any]]:
        """Return what came with the newest reset of each sub-environment, (B,)."""
        # The innermost environment has them; every wrapper has a list of its own that stays empty.
        self.reset_infos = list(self.venv.unwrapped.reset_infos)
        return self.reset_infos

    def _after(self, over: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a step's infos as a Gymnasium vector environment in ``SAME_STEP`` gives them."""
        final = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(over).tolist():
            for key, meaning in END.items():
                if infos[i].get(key) is None:
                    raise InvalidValue(
                        f'infos[{i}]["{key}"]',
                        meaning,
                        "nothing",
                        "the environment has to keep it there, as DummyVecEnv does; its running"
                        " episodes are broken off, and reset() begins new ones",
                    )
            final[i] = infos[i]["terminal_observation"]
        begun = self._reset_infos()
        now = [begun[i] if over[i] else infos[i] for i in range(self.num_envs)]
        return {**self._told(now), "final_obs": final, "final_info": self._told(infos)}

    def _told(self, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what is read of B infos, as a Gymnasium vector environment gives them."""
        keys = {key for key in (self._label_key, self._mask_key) if key is not None}
        if self._whole:
            keys |= {key for info in infos for key in info}
        told: dict[str, Any] = {}
        for key in keys:
            told[key] = [info.get(key) for info in infos]
            told[f"_{key}"] = [key in info for info in infos]
        return told
