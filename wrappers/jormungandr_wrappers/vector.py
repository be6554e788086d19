"""`VectorRecorder`: a Gymnasium vector environment whose every transition reaches an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import ArrayLike

from jormungandr.episode import check_split
from jormungandr.errors import InvalidValue
from jormungandr.protocol import Endpoint, Split
from jormungandr_wrappers.checks import check_kind, check_label_key, check_spaces
from jormungandr_wrappers.recording import Recording
from jormungandr_wrappers.rules import SplitRule, TagRule

__all__ = ["VectorRecorder"]

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:  # generic only in newer versions of Gymnasium
    _Wrapper = VectorWrapper


class VectorRecorder(Recording, _Wrapper):
    """Record a vector environment's transitions and submit them; it steps as it did without.

    All three autoreset modes are known; the rows that only report a reset are left out, and an
    ended episode keeps its true last observation. Every sub-environment has the same `actor_id`;
    episode ids ``{run}-{sub-environment}-{n}`` tell them apart, also from those of another run. An
    episode that `reset` breaks off stays without an end.

    An error of the endpoint leaves through whichever call met it; nothing is lost. When `step`
    raises one, the environment has moved: the results are in `last_step`, the transitions in
    ``outbox.unsent``, and `flush` tries again. An error of the environment, an end without a last
    observation, or a missing mask breaks all running episodes off: the next call has to be `reset`.

    An endpoint with a spool takes transitions also while its service is away. `OverlappedRecorder`
    hides the time that a service takes to choose.

    Args:
        vector_env: with a Discrete from 0 to choose from, and to see what a model can: a Box,
            Discrete, MultiBinary, MultiDiscrete, or a Dict of those.
        endpoint: a `Learner`, a `RemoteLearner`, or another `Endpoint`.
        actor_id: who acts; 1-128 bytes of UTF-8.
        split: ``train`` or ``validation``, or one of them per sub-environment; or what says so of
            each episode: it is called with the info of its reset, and may return None. Such an
            episode is played and not recorded, and `skipped` counts it.
            `jormungandr.splits.TimeSplit` makes one.
        label_key: the infos' key of the auxiliary class of the observation they come with; with
            OUSpread ``"drift_label"``. None records no labels.
        mask_key: the infos' key of the mask of actions that are allowed from the observation they
            come with; in Taxi ``"action_mask"``. `act` sends the masks, and each transition carries
            its successor's. Only the last observation of a termination may be without. An action
            that was taken though its mask forbids it is recorded as it is. None: a model without.
        batch_size: transitions to gather before they are sent. 1 sends after every vector step, so
            that a learner in this process is never behind; over a network 256 saves round trips.
        run: first part of the episode ids; None draws 64 random bits.
        first: number of the first sub-environment in the episode ids.
        tags: of every episode, such as ``{"map": "dust"}``; or what returns those of each: it is
            called with the info of its reset and its number n.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind, or an environment whose
            ``metadata["autoreset_mode"]`` or spaces cannot be recorded.

    Example:
        >>> import gymnasium as gym
        >>> from jormungandr import Learner, ModelSpec
        >>> learner = Learner(ModelSpec.preset("ou-note"))
        >>> env = VectorRecorder(gym.make_vec("OUSpread-v0", num_envs=8), learner, actor_id="a1")
        >>> observations, infos = env.reset(seed=0)
        >>> for _ in range(10):
        ...     observations, *_ = env.step(env.act(observations))
        >>> env.close()
        >>> len(learner.replay)
        80
    """

    def __init__(
        self,
        vector_env: VectorEnv[Any, Any, Any],
        endpoint: Endpoint,
        *,
        actor_id: str,
        split: Split | Sequence[Split] | SplitRule = "train",
        label_key: str | None = None,
        mask_key: str | None = None,
        batch_size: int = 1,
        run: str | None = None,
        first: int = 0,
        tags: TagRule | None = None,
    ) -> None:
        check_kind(
            vector_env,
            VectorEnv,
            "vector_env",
            "gymnasium.make_vec makes one; RemoteActor takes a single environment",
        )
        super().__init__(vector_env)
        _, actions = check_spaces(
            vector_env.single_observation_space, vector_env.single_action_space
        )
        rule = split if callable(split) else None
        splits = check_split("train" if callable(split) else split, vector_env.num_envs)
        self._label_key = label_key
        self._record_for(
            endpoint,
            actor_id=actor_id,
            splits=splits,
            mode=_autoreset_mode(vector_env),
            action_space=vector_env.single_action_space,
            actions=actions,
            label_key=label_key,
            mask_key=mask_key,
            batch_size=batch_size,
            run=run,
            first=first,
            rule=rule,
            tags=tags,
        )
        #: What the last `step` of the environment returned.
        self.last_step: tuple[Any, Any, Any, Any, dict[str, Any]] | None = None

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments, or those of ``options["reset_mask"]``; new episodes begin.

        Args:
            seed: as the environment takes it; an int seeds sub-environment i with ``seed + i``.
            options: handed to the environment.

        Raises:
            InvalidInput: (one of its classes) the infos have no `label_key`, or not every mask.
        """
        # Read first: SyncVectorEnv takes the mask out of the caller's dict.
        mask = None if options is None else options.get("reset_mask")
        with self._episodes.moving():
            observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
            if mask is None:
                check_label_key(self._label_key, infos)
            self._episodes.begin(observations, infos, mask)
        self._choices.forget()
        return observations, infos

    def step(self, actions: ArrayLike) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment and record the transitions.

        A sub-environment that is given the action which the last `act` chose for it is tagged with
        that policy's version and the action's probability; any other action is tagged -1, without.

        Args:
            actions: action indices, (B,).

        Raises:
            ActionRange: not B integers.
            gymnasium.error.ResetNeeded: before the first reset, after what broke the episodes off
                or, without autoreset, after an end.
            InvalidValue: an episode ended in ``SAME_STEP`` mode without its last observation in
                ``infos["final_obs"]``; nothing of the step is recorded.
            InvalidInput: (one of its classes) a mask is missing, or is none; likewise.
            JormungandrError: the endpoint's own; see the class.
        """
        choices = self._begin_step(actions)
        with self._episodes.moving():
            result = self.env.step(actions)
            self.last_step = result
            self._choices.forget()
            rows = self._episodes.advance(choices, *result)
        self.outbox.put(rows)
        return result

    def close(self, **kwargs: Any) -> None:
        """Send what is left and close the environment, which is closed even if sending fails."""
        try:
            self.outbox.send()
        finally:
            self.env.close(**kwargs)

    def __del__(self) -> None:
        """Do nothing: older Gymnasium closes here, but sending is no work for a collector."""


def _autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return what the environment does after an end; a guess would record steps that never were."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise InvalidValue(
            'vector_env.metadata["autoreset_mode"]',
            f"one of {[str(m) for m in AutoresetMode]}",
            "nothing" if mode is None else repr(mode),
            "the environment has to say what the step after an end returns",
        )
    return mode
