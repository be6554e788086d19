"""`Guard`: an action in time, whatever the service, the network or this machine do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.checks import INTEGERS, is_number
from jormungandr.client.acting import Acting
from jormungandr.encoding import count
from jormungandr.errors import ActionRange, InvalidType, InvalidValue, TooManyRequests, Unavailable
from jormungandr.protocol import ActionChoice, InferenceReply
from jormungandr.spec import ModelSpec

__all__ = ["Guard", "GuardCounts", "Guarded"]

#: An action index, or a function of (observations, action masks or None) that returns (B,) of them.
Fallback: TypeAlias = int | Callable[[Any, Any], ArrayLike]


@dataclass
class GuardCounts:
    """What became of the decisions so far; one call of `act` or `predict` is one decision.

    Args:
        decisions: all of them.
        late: that the policy did not make within the deadline.
        stale: for which the policy was too old.
        failed: for which the service could not be asked, or said that it cannot answer now.
    """

    decisions: int = 0
    late: int = 0
    stale: int = 0
    failed: int = 0

    @property
    def fallbacks(self) -> int:
        """Decisions that the fallback made."""
        return self.late + self.stale + self.failed


@dataclass(frozen=True)
class Guard:
    """What is done when there is no good action in time.

    The fallback acts where the policy has not answered within the deadline, where it is older than
    allowed, or where the service cannot be asked. Its actions have policy version -1, like all that
    are not the model's, and are learned from as such. Where an action mask forbids one, the first
    action that the mask allows is taken.

    Python keeps the deadline to a few milliseconds: it is a guard, no hard real-time system. A
    callable fallback runs after the deadline, and has to be quick.

    Args:
        fallback: an action index, or a function of (observations, action masks or None) that
            returns (B,) indices.
        deadline_ms: milliseconds for one decision; None sets no deadline.
        max_policy_age: seconds since the service last said that the policy is its newest; None
            sets no limit. It bounds `placement="local"`; a service acts with its newest itself.

    Raises:
        InvalidType, InvalidValue: an argument that is none.
    """

    fallback: Fallback
    deadline_ms: float | None = None
    max_policy_age: float | None = None

    def __post_init__(self) -> None:
        """Look at the arguments."""
        if not callable(self.fallback) and not is_number(self.fallback, INTEGERS):
            raise InvalidType("fallback", "an action index or a function", type(self.fallback))
        for name in ("deadline_ms", "max_policy_age"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or not 0 < value < float("inf")):
                raise InvalidValue(name, "a number > 0, or None", value)

    def check(self, spec: ModelSpec, where: str = "fallback") -> None:
        """Refuse an action that a model does not have before it is needed, and not just then.

        What a function gives is looked at where it is called.

        Args:
            spec: of the model.
            where: what the fallback is called in an error.

        Raises:
            ActionRange: the fallback is none of its actions.
        """
        actions = len(spec.action_set)
        if not callable(self.fallback) and not 0 <= self.fallback < actions:
            remedy = "an action is named by its index"
            raise ActionRange(where, f"an action in 0..{actions - 1}", self.fallback, remedy)

    def choose(self, observations: Any, masks: Any, spec: ModelSpec) -> NDArray[np.int64]:
        """Return the fallback's actions, (B,).

        Raises:
            ActionRange: it gave others than there are.
        """
        rows, actions = count(observations, spec.observation), len(spec.action_set)
        given = self.fallback(observations, masks) if callable(self.fallback) else self.fallback
        chosen = np.asarray(given)
        if chosen.ndim == 0:
            chosen = np.full(rows, chosen)
        fits = chosen.shape == (rows,) and chosen.dtype.kind in "iu"
        if not fits or ((chosen < 0) | (chosen >= actions)).any():
            raise ActionRange("fallback", f"{rows} indices in 0..{actions - 1}", given)
        chosen = chosen.astype(np.int64)
        if masks is None:
            return chosen
        allowed = np.asarray(masks, dtype=np.bool_).reshape(rows, actions)
        return np.where(allowed[np.arange(rows), chosen], chosen, allowed.argmax(axis=1))


class Guarded:
    """Acts as another does, under a guard.

    Args:
        acting: what is guarded.
        guard: what is done instead.
        spec: returns the model's specification; asked once.
    """

    def __init__(self, acting: Acting, guard: Guard, spec: Callable[[], ModelSpec]) -> None:
        self._acting, self._guard = acting, guard
        self._find: Callable[[], ModelSpec] = spec
        self._spec: ModelSpec | None = None
        self._generation = 1
        self.counts = GuardCounts()
        self._counting = threading.Lock()  # two halves may ask at once
        self._worker: ThreadPoolExecutor | None = None

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
        """See `Acting.act`; an observation or mask that is not acceptable is an error as ever."""
        begun = time.monotonic()
        guard = self._guard
        if self._spec is None:
            spec = self._find()  # before the first decision; there is no action without it
            guard.check(spec)
            self._spec = spec
            begun = time.monotonic()
        self._count("decisions")
        if guard.max_policy_age is not None and self._acting.age > guard.max_policy_age:
            self._count("stale")
            return self._fall_back(observations, action_masks)
        left = None
        if guard.deadline_ms is not None:
            left = guard.deadline_ms / 1_000

        def ask() -> InferenceReply:
            return self._acting.act(
                observations,
                deterministic,
                epsilon,
                action_masks=action_masks,
                distribution=distribution,
                policy=policy,
                seconds=seconds if left is None else left,
            )

        try:
            if left is None:
                reply = ask()
            else:
                asked = self._submit(ask)
                try:
                    reply = asked.result(max(0.0, left - (time.monotonic() - begun)))
                except TimeoutError:
                    asked.cancel()
                    self._count("late")
                    return self._fall_back(observations, action_masks)
        except (Unavailable, TooManyRequests):
            # A request that ends with the deadline is late as well.
            over = left is not None and time.monotonic() - begun >= left
            self._count("late" if over else "failed")
            return self._fall_back(observations, action_masks)
        self._generation = reply.generation
        return reply

    def _count(self, name: str) -> None:
        with self._counting:
            setattr(self.counts, name, getattr(self.counts, name) + 1)

    def _submit(self, ask: Callable[[], InferenceReply]) -> Future[InferenceReply]:
        """Let another thread ask: nothing here can end a forward pass or a request in time."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(2, thread_name_prefix="jormungandr-act")
        return self._worker.submit(ask)

    def _fall_back(self, observations: Any, masks: Any) -> InferenceReply:
        assert self._spec is not None
        spec = self._spec
        chosen = self._guard.choose(observations, masks, spec)
        actions = spec.action_set
        return InferenceReply(
            policy_version=-1,
            generation=self._generation,
            actions=[
                ActionChoice(index=i, label=actions[i].label, value=actions[i].value)
                for i in chosen.tolist()
            ],
            expected_values=[[float("nan")] * len(actions) for _ in chosen],
            behavior_prob=[1.0] * len(chosen),
        )

    @property
    def version(self) -> int:
        """Of the policy that is guarded."""
        return self._acting.version

    @property
    def age(self) -> float:
        """Of the policy that is guarded."""
        return self._acting.age

    def close(self) -> None:
        """Release what it holds."""
        self._acting.close()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._worker = None
