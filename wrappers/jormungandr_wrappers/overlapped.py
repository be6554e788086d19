"""`OverlappedRecorder`: two vector environments, one of which steps while the other waits.

B is the number of sub-environments of both together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from jormungandr.episode import check_split
from jormungandr.errors import InvalidType, InvalidValue
from jormungandr.outbox import Outbox
from jormungandr.protocol import Endpoint, Receipt, Split
from jormungandr_wrappers.checks import check_kind
from jormungandr_wrappers.rules import SplitRule, TagRule
from jormungandr_wrappers.vector import VectorRecorder

__all__ = ["OverlappedRecorder"]

#: What `VectorRecorder.step` returns: observations, rewards, terminated, truncated, infos.
StepResult: TypeAlias = tuple[Any, Any, Any, Any, dict[str, Any]]
#: Is told the number of a half's first sub-environment and what its step returned.
OnStep: TypeAlias = Callable[[int, StepResult], object]


class OverlappedRecorder:
    """Play two vector environments as one: while one half steps, the other's actions are computed.

    A round trip to a service then costs only what exceeds the time in which one half steps. The
    transitions, their names and their order are those of a single `VectorRecorder` over all
    sub-environments in lockstep: first those of the one half, then those of the other. Only which
    policy version chooses depends on timing, as it does without, and what exploration draws.

    Args:
        halves: two vector environments with the same spaces; halves of the same size are best.
        endpoint: as for `VectorRecorder`; several threads call it.
        actor_id: who acts.
        split: as for `VectorRecorder`; one per sub-environment is (B,).
        label_key, mask_key, batch_size, run, tags: as for `VectorRecorder`.
        overlap: whether to; None does so where the endpoint acts at a service. A learner in this
            process is not for several threads.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind.

    Example:
        >>> import gymnasium as gym
        >>> from jormungandr import Learner, ModelSpec
        >>> halves = [gym.make_vec("OUSpread-v0", num_envs=4) for _ in range(2)]
        >>> learner = Learner(ModelSpec.preset("ou-note"))
        >>> recorder = OverlappedRecorder(halves, learner, actor_id="a1")
        >>> recorder.reset(seed=0)
        >>> receipt = recorder.play(10)
        >>> recorder.close()
        >>> receipt.accepted, len(learner.replay)
        (80, 80)
    """

    def __init__(
        self,
        halves: Sequence[VectorEnv[Any, Any, Any]],
        endpoint: Endpoint,
        *,
        actor_id: str,
        split: Split | Sequence[Split] | SplitRule = "train",
        label_key: str | None = None,
        mask_key: str | None = None,
        batch_size: int = 1,
        run: str | None = None,
        overlap: bool | None = None,
        tags: TagRule | None = None,
    ) -> None:
        if not isinstance(halves, Sequence) or len(halves) != 2:
            raise InvalidType("halves", "two vector environments", type(halves))
        for i, half in enumerate(halves):
            check_kind(half, VectorEnv, f"halves[{i}]", "gymnasium.make_vec makes one")
        first, second = halves
        if first is second:
            raise InvalidValue("halves", "two vector environments", "one, twice")
        at = first.num_envs
        parts: tuple[Any, Any] = (split, split)
        if not callable(split):
            splits = check_split(split, at + second.num_envs)
            parts = splits[:at], splits[at:]
        self._starts = (0, at)
        more: Any = {"actor_id": actor_id, "label_key": label_key, "mask_key": mask_key}
        more |= {"batch_size": batch_size, "tags": tags}
        one = VectorRecorder(first, endpoint, split=parts[0], run=run, **more)
        other = VectorRecorder(second, endpoint, split=parts[1], run=one.run, first=at, **more)
        #: What was recorded and not yet sent, and the receipts of what was.
        self.outbox: Outbox = one.outbox
        other.outbox = one.outbox
        self._halves = (one, other)
        self._observations: list[Any] = []  # of the halves; empty before the first reset
        self._turn = 0  # which half steps next
        remote = getattr(endpoint, "placement", None) == "remote"
        self.overlap = remote if overlap is None else overlap

    @property
    def run(self) -> str:
        """First part of every episode id of this recorder."""
        return self._halves[0].run

    @property
    def skipped(self) -> int:
        """Episodes that no split was for: played and not recorded."""
        return sum(half.skipped for half in self._halves)

    @property
    def num_envs(self) -> int:
        """B."""
        return sum(half.num_envs for half in self._halves)

    def reset(self, *, seed: int | Sequence[int | None] | None = None) -> None:
        """Reset all sub-environments; new episodes begin.

        Args:
            seed: an int seeds sub-environment i with ``seed + i``; or one each, (B,).

        Raises:
            InvalidInput: (one of its classes) the infos have no `label_key`, or not every mask.
        """
        at = self._starts[1]
        seeds: tuple[Any, Any] = (None, None)
        if isinstance(seed, int | np.integer):
            seeds = (int(seed), int(seed) + at)
        elif seed is not None:
            if len(seed) != self.num_envs:
                raise InvalidValue("seed", f"one per sub-environment ({self.num_envs})", len(seed))
            seeds = (list(seed[:at]), list(seed[at:]))
        self._observations = []
        found = [half.reset(seed=s)[0] for half, s in zip(self._halves, seeds, strict=True)]
        self._observations, self._turn = found, 0

    def play(
        self,
        steps: int,
        *,
        deterministic: bool | None = None,
        epsilon: float | None = None,
        on_step: OnStep | None = None,
    ) -> Receipt:
        """Step every sub-environment so many times with the endpoint's policy, and send the rest.

        Another call goes on where this one ended. If an error broke that off between the halves,
        the second half first catches up: no transition is lost.

        Args:
            steps: at least 1.
            deterministic: as for `VectorRecorder.act`.
            epsilon: likewise.
            on_step: is told each half's step: the number of its first sub-environment, and the
                result; an exception that it raises ends the call.

        Returns:
            What became of all that was sent; with a spool, of what was answered until now.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or after an environment's error.
            JormungandrError: the endpoint's own.
        """
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
            raise InvalidValue("steps", "an integer >= 1", steps)
        if not self._observations:
            raise ResetNeeded("expected running episodes; call reset() first")

        def ask(which: int) -> NDArray[Any]:
            seen = self._observations[which]
            return self._halves[which].act(seen, deterministic, epsilon)

        turns = 2 * steps + self._turn
        if not self.overlap:
            for _ in range(turns):
                self._step(ask(self._turn), on_step)
            return self.outbox.send()
        # A half is asked for as soon as it has stepped: both together take the time of their steps
        # or, where that is longer, of one of them and a round trip.
        with ThreadPoolExecutor(2, thread_name_prefix="jormungandr-act") as workers:
            first = (self._turn, 1 - self._turn)
            asked = deque(workers.submit(ask, which) for which in first)
            for left in range(turns, 0, -1):
                which = self._turn
                self._step(asked.popleft().result(), on_step)
                if left > 2:
                    asked.append(workers.submit(ask, which))
        return self.outbox.send()

    def _step(self, actions: NDArray[Any], on_step: OnStep | None) -> None:
        """Step the half whose turn it is."""
        which = self._turn
        half = self._halves[which]
        before = half.last_step
        try:
            result = half.step(actions)
        finally:
            if half.last_step is not before:  # also when only sending failed
                self._turn = 1 - which
                self._observations[which] = _seen(half)
        if on_step is not None:
            on_step(self._starts[which], result)

    def flush(self) -> Receipt:
        """Send what is left, and return what became of all that was sent.

        Of an endpoint with a spool, this waits until the service has answered.

        Raises:
            JormungandrError: the endpoint's own; what it has not taken is kept.
        """
        return self.outbox.flush()

    def close(self) -> None:
        """Send what is left and close both environments, also if sending fails."""
        try:
            self.outbox.send()
        finally:
            for half in self._halves:
                half.env.close()


def _seen(half: VectorRecorder) -> Any:
    """Return what a half shows after its last step; reset what is over and nobody else resets."""
    assert half.last_step is not None
    observations, _, terminated, truncated, _ = half.last_step
    if half.env.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
        over = np.asarray(terminated) | np.asarray(truncated)
        if over.any():
            observations, _ = half.reset(options={"reset_mask": over})
    return observations
