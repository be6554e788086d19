"""`Choices`: what an endpoint chose for the sub-environments that are stepped together.

B is the number of sub-environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jormungandr.episode import Choice
from jormungandr.errors import ActionRange, InvalidType, ShapeMismatch, shown
from jormungandr.protocol import Endpoint, InferenceReply, Split
from jormungandr_wrappers import batches
from jormungandr_wrappers.checks import check_actions

__all__ = ["Choices"]


class Choices:
    """Ask an endpoint for actions, and know them again when the environment is stepped with them.

    Args:
        endpoint: of the policy.
        splits: one per sub-environment, (B,); the endpoint acts greedily where it is validation.
        action_space: of one sub-environment.
    """

    def __init__(
        self, endpoint: Endpoint, splits: Sequence[Split], action_space: spaces.Space[Any]
    ) -> None:
        self._endpoint, self._action_space = endpoint, action_space
        self._held_out = np.array([name == "validation" for name in splits])
        self._chosen: list[Choice] | None = None  # by the last `act`, for the next step
        self._actions: list[int] = []  # those of them
        #: The endpoint's last reply.
        self.reply: InferenceReply | None = None

    def act(
        self,
        observations: Any,
        deterministic: bool | None,
        epsilon: float | None,
        masks: NDArray[np.bool_] | None = None,
        held_out: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Return actions, (B,), and remember which policy chose them.

        Args:
            observations: of all sub-environments.
            deterministic: take the best actions always, or, where False, explore everywhere; None
                takes the best in sub-environments of the validation split and explores in others.
            epsilon: probability of a random action; None is the model's exploration schedule.
            masks: (B, A) which actions are allowed; None of a model without masks.
            held_out: (B,) whose episodes are of the validation split; None is as at first.

        Raises:
            ShapeMismatch: another number of observations.
            InvalidType: no observations at all, or a `deterministic` that is no flag.
            InvalidValue: the model's actions are not the environment's.
        """
        count, given = len(self._held_out), batches.count(observations)
        if given != count:
            raise ShapeMismatch("observations", f"one per sub-environment ({count})", given)
        if not isinstance(deterministic, bool | np.bool_ | None):
            raise InvalidType("deterministic", "true, false or None", shown(deterministic))
        chosen: list[Choice] = [Choice(-1)] * count  # each is replaced
        if held_out is None:
            held_out = self._held_out
        if deterministic is not None:
            held_out = np.full(count, deterministic)
        for greedy in (False, True):
            index = np.flatnonzero(held_out == greedy)
            if not len(index):
                continue
            allowed = {} if masks is None else {"action_masks": masks[index]}
            reply = self._endpoint.act(
                batches.subset(observations, index),
                deterministic=greedy,
                epsilon=epsilon,
                **allowed,
            )
            check_actions(reply, self._action_space)
            version = reply.policy_version
            for i, choice, probability in zip(
                index.tolist(), reply.actions, reply.behavior_prob, strict=True
            ):
                chosen[i] = Choice(choice.index, version, probability)
            self.reply = reply
        self._chosen, self._actions = chosen, [choice.action for choice in chosen]
        return np.array(self._actions, dtype=np.int64)

    def recognise(self, actions: ArrayLike) -> list[Choice]:
        """Return the actions of a step, (B,), with where each came from.

        One that the last `act` chose for its sub-environment has that policy's version and its
        probability; any other has the version -1, and none.

        Raises:
            ActionRange: not B integers.
        """
        count = len(self._held_out)
        try:
            given = np.asarray(actions)
        except ValueError:
            got = "lists of different lengths"
            raise ActionRange("actions", f"{count} action indices", got) from None
        if given.shape != (count,) or given.dtype.kind not in "iu":
            got = f"{given.dtype} of shape {given.shape}"
            raise ActionRange("actions", f"{count} action indices", got)
        taken: list[int] = given.tolist()
        if self._chosen is None:
            return [Choice(action) for action in taken]
        if taken == self._actions:
            return self._chosen
        return [
            choice if choice.action == action else Choice(action)
            for action, choice in zip(taken, self._chosen, strict=True)
        ]

    def forget(self) -> None:
        """Forget them: the environment has moved on."""
        self._chosen = None
