"""Where actions come from: `RemoteActing` asks the service, `LocalActing` computes them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from jormungandr.client.calls import Calls, decoded
from jormungandr.client.follower import Follower
from jormungandr.errors import InvalidType, InvalidValue, NonFinite
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import InferenceReply
from jormungandr.wire import encode

__all__ = ["Acting", "LocalActing", "RemoteActing"]


class Acting(Protocol):
    """Chooses actions with a policy of one model."""

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
        policy: str | int | None = None,
        seconds: float | None = None,
    ) -> InferenceReply:
        """Choose actions, as `Endpoint.act` does, within so many seconds if it has to ask."""
        ...

    @property
    def version(self) -> int:
        """Of the policy that it acts with; -1 before there is one."""
        ...

    @property
    def age(self) -> float:
        """Seconds since the service said that this policy is its newest."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class RemoteActing:
    """Asks the service for every action.

    Args:
        calls: to the service.
        path: of the model.
        policy: that is asked for where no other is; None is what the model serves.
    """

    def __init__(self, calls: Calls, path: str, policy: str | None = None) -> None:
        self._calls, self._path, self._policy = calls, path, policy
        self._version = -1

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
        policy: str | int | None = None,
        seconds: float | None = None,
    ) -> InferenceReply:
        """See `Acting.act`."""
        # A list goes as it is: an array of [1.0, True] or of rows of two lengths hides the fault.
        as_it_is = isinstance(observations, list | tuple | Mapping)
        rows: Any = observations if as_it_is else np.asarray(observations)
        _check_finite(rows, epsilon)
        if isinstance(rows, np.ndarray) and rows.ndim == 0:  # one observation that is a number
            rows = rows.reshape(1)
        request: dict[str, Any] = {"observations": rows}
        if deterministic:
            request["deterministic"] = True
        if epsilon is not None:
            request["epsilon"] = epsilon
        if action_masks is not None:
            # As a list: bytes of two axes would travel as pixels do.
            masks: Any = action_masks
            request["action_masks"] = masks.tolist() if isinstance(masks, np.ndarray) else masks
        if distribution:
            request["distribution"] = True
        wanted = self._policy if policy is None else policy
        if wanted is not None:
            request["policy"] = wanted
        try:
            body = encode(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidType("observations", "values that JSON can carry", error) from None
        # Who has a deadline does better with something else than with a second attempt.
        patience = None if seconds is None else 0.0
        answer = self._calls.request(
            "POST", f"{self._path}/inference", body, timeout=seconds, patience=patience
        )
        reply = decoded(answer, InferenceReply)
        self._version = reply.policy_version
        return reply

    @property
    def version(self) -> int:
        """Of the last answer; -1 before there is one."""
        return self._version

    @property
    def age(self) -> float:
        """Nothing: the service acts with its newest policy."""
        return 0.0

    def close(self) -> None:
        """Hold nothing."""


class LocalActing:
    """Acts here, in NumPy, with the newest policy that the service was heard to have.

    It explores by the schedule that came with the policy; the service's own counts what was
    accepted since.

    Args:
        follower: keeps the newest policy.
        seed: of what it explores with; None draws one, so that actors differ.
    """

    def __init__(self, follower: Follower, seed: int | None = None) -> None:
        self._follower = follower
        self._rng = np.random.default_rng(seed)

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
        policy: str | int | None = None,
        seconds: float | None = None,
    ) -> InferenceReply:
        """See `Acting.act`; only the first call waits for anything.

        Raises:
            InvalidValue: another policy is asked for than the one that is followed.
        """
        if policy is not None:
            remedy = "placement='remote' asks the service, which has them all"
            raise InvalidValue("policy", "None, for a policy that is placed here", policy, remedy)
        return self.policy(seconds).act(
            observations,
            self._rng,
            deterministic=deterministic,
            epsilon=epsilon,
            action_masks=action_masks,
            distribution=distribution,
        )

    def policy(self, seconds: float | None = None) -> PolicySnapshot:
        """Return the newest policy, waiting for the first one.

        Raises:
            JormungandrError: there is none in time, or the service refuses to give one.
        """
        return self._follower.newest(seconds)

    @property
    def version(self) -> int:
        """Of the policy it acts with; -1 before there is one."""
        return self._follower.version

    @property
    def age(self) -> float:
        """Seconds since the service said that it has no newer one."""
        return self._follower.age

    def stop(self) -> None:
        """Follow no longer, and let nobody hear of it when a connection is closed."""
        self._follower.stop()

    def close(self) -> None:
        """Follow no longer."""
        self._follower.close()


def _check_finite(observations: Any, epsilon: float | None) -> None:
    """Refuse NaN and infinity, which JSON cannot carry; all else is the service's to judge."""
    if isinstance(observations, Mapping):
        for part in observations.values():
            _check_finite(part, None)
        return
    if isinstance(epsilon, float | np.floating) and not np.isfinite(epsilon):
        raise InvalidValue("epsilon", "a number in 0..1", epsilon)
    one_array = isinstance(observations, np.ndarray) and observations.dtype.kind == "f"
    if one_array and np.isfinite(observations).all():
        return  # what is amiss is looked for one by one
    for i, row in enumerate(observations if np.iterable(observations) else ()):
        if isinstance(row, Mapping):
            _check_finite(row, None)
            continue
        try:
            finite = bool(np.isfinite(row).all())
        except (TypeError, ValueError):  # no numbers
            continue
        if not finite:
            raise NonFinite(f"observations[{i}]", "numbers that are finite in float32", row)
