"""`RemotePolicy`: a service's newest policy in the shape SB3 gives policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.client.guard import Guard, GuardCounts
from jormungandr.client.learner import Placement, RemoteLearner
from jormungandr.prediction import Predictor
from jormungandr.spec import ModelSpec
from jormungandr.transport import Transport

__all__ = ["RemotePolicy"]


class RemotePolicy(Predictor):
    """A service's newest policy in the shape SB3 gives policies; `evaluate_policy` takes it.

    Args:
        url, model_id, token: as for `RemoteLearner`.
        placement: ``remote`` asks the service for each action. ``local`` acts here, in NumPy, with
            the newest policy that a thread fetches; it goes on acting while the service is away.
        transport, patience, guard, poll, seed, policy: as for `RemoteLearner`.

    Raises:
        ModelUnknown: there is no such model.
        ActionRange: the guard's fallback is no action of the model.
        JormungandrError: the service does not answer, or has no policy yet.
    """

    def __init__(
        self,
        url: str | None,
        model_id: str,
        token: str | None = None,
        placement: Placement = "remote",
        *,
        transport: Transport | None = None,
        patience: float = 60.0,
        guard: Guard | None = None,
        poll: float = 20.0,
        seed: int | None = None,
        policy: str | None = None,
    ) -> None:
        self._endpoint = RemoteLearner(
            url,
            model_id,
            token,
            patience=patience,
            transport=transport,
            placement=placement,
            guard=guard,
            poll=poll,
            seed=seed,
            policy=policy,
        )
        try:
            self._spec = self._endpoint.specification()
            if guard is not None:
                guard.check(self._spec)
        except BaseException:
            self._endpoint.close()
            raise

    @property
    def spec(self) -> ModelSpec:
        """The model's specification."""
        return self._spec

    @property
    def version(self) -> int:
        """Of the policy that acted last or, placed here, acts next; -1 before there is one."""
        return self._endpoint.version

    @property
    def age(self) -> float:
        """Seconds since the service said that the policy placed here is its newest."""
        return self._endpoint.age

    @property
    def guarded(self) -> GuardCounts:
        """What the guard counted; nothing without one."""
        return self._endpoint.guarded

    def _specification(self) -> ModelSpec:
        return self._spec

    def _choose(self, observations: Any, deterministic: bool, masks: Any) -> NDArray[np.int64]:
        reply = self._endpoint.act(observations, deterministic=deterministic, action_masks=masks)
        return reply.indices

    def close(self) -> None:
        """Close the connection, and follow no longer."""
        self._endpoint.close()
