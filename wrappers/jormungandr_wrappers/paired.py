"""`PairedActor`: candidate and champion on the same seeds, for promotions decided on pairs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from jormungandr.episode import new_run
from jormungandr.errors import InvalidValue
from jormungandr.protocol import InferenceReply, Receipt
from jormungandr_wrappers.remote_actor import EpisodeResult, RemoteActor, RunResult

__all__ = ["Pair", "PairedActor", "PairedResult"]

ROLES = ("candidate", "champion")


@dataclass(frozen=True)
class Pair:
    """What two episodes from the same seed came to.

    Args:
        name: their tag ``pair``.
        candidate, champion: what each did. Of one version, no policy was tried, and it counts for
            nothing.
    """

    name: str
    candidate: EpisodeResult
    champion: EpisodeResult

    @property
    def difference(self) -> float:
        """Return of the candidate less that of the champion."""
        return self.candidate.total_reward - self.champion.total_reward


@dataclass(frozen=True)
class PairedResult:
    """What one call of `PairedActor.run` came to.

    Args:
        pairs: in the order in which they were played.
        transitions: steps taken.
        receipt: what became of all that the actor has sent, in this and earlier runs; when
            ``endpoint.wait(result.receipt.lsn)`` returns, the learner has applied it.
    """

    pairs: tuple[Pair, ...]
    transitions: int
    receipt: Receipt

    @property
    def lsn(self) -> int:
        """Position in the journal by which everything sent is durable."""
        return self.receipt.lsn

    @property
    def differences(self) -> NDArray[np.float64]:
        """Of each pair the candidate's undiscounted return less the champion's, (pairs,)."""
        return np.array([pair.difference for pair in self.pairs], dtype=np.float64)


class _Acting(Protocol):
    """What can be asked for the actions of a policy, as a `RemoteLearner` can."""

    def act(
        self,
        observations: Any,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: Any = None,
        policy: str | int | None = None,
    ) -> InferenceReply:
        """Choose actions with a role's policy, or with a version's."""
        ...


class _Role:
    """An endpoint whose actions are those of one role, and within an episode of one version."""

    def __init__(self, endpoint: _Acting) -> None:
        self._endpoint = endpoint
        self.policy: str | int = ROLES[0]

    def act(self, *arguments: Any, **options: Any) -> InferenceReply:
        """Choose actions; the first reply of an episode says which version plays it."""
        reply = self._endpoint.act(*arguments, policy=self.policy, **options)
        self.policy = reply.policy_version
        return reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)


class PairedActor:
    """Play held-out episodes in pairs: the candidate and the champion, from the same seed.

    What an environment draws from its seed both meet alike, and the difference of their returns
    tells more than two returns do (docs/promotion.md). While no policy is tried, the champion plays
    both; nothing counts then.

    Args:
        env: that `RemoteActor` takes; its randomness is to come from the seed of its reset.
        endpoint: a `RemoteLearner` that asks the service for actions, of a model that promotes.
        actor_id: who acts.
        run: first part of the names of pairs and of the episode ids; None draws 64 random bits.
        options: further arguments of `RemoteActor`, but `split` and `tags`.

    Raises:
        InvalidValue: the endpoint's `act` takes no `policy`: of a `Learner` in this process, say.
        InvalidInput: (one of its classes) as `RemoteActor` does.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        endpoint: _Acting,
        *,
        actor_id: str,
        run: str | None = None,
        **options: Any,
    ) -> None:
        if not _takes_policy(endpoint):
            expected = "one whose act() takes a policy, as a RemoteLearner's does"
            remedy = "the gate of promotions is a service's (docs/promotion.md)"
            raise InvalidValue("endpoint", expected, type(endpoint).__name__, remedy)
        self._run = new_run() if run is None else run
        self._role, self._pairs, self._pair = _Role(endpoint), 0, ""
        self._actor = RemoteActor(
            env,
            self._role,
            actor_id=actor_id,
            split="validation",
            run=self._run,
            tags=lambda *_: {"pair": self._pair},
            **options,
        )
        self._rng = np.random.default_rng()

    def run(self, pairs: int, *, seed: int | None = None) -> PairedResult:
        """Play so many pairs, with the best action always.

        Args:
            pairs: at least 1.
            seed: of the seeds that the environment is reset with; None goes on with them.

        Returns:
            The pairs, and the receipt of what was sent.

        Raises:
            InvalidValue: fewer than one pair.
            PolicyGone: a version is no longer kept that an episode began with.
            JormungandrError: the endpoint's own.
        """
        if pairs < 1:
            raise InvalidValue("pairs", ">= 1", pairs)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        found: list[Pair] = []
        transitions = 0
        for _ in range(pairs):
            played = self._play(int(self._rng.integers(2**31)))
            done = {role: result.episodes[0] for role, result in played.items()}
            found.append(Pair(self._pair, done["candidate"], done["champion"]))
            transitions += sum(result.transitions for result in played.values())
        return PairedResult(tuple(found), transitions, list(played.values())[-1].receipt)

    def _play(self, seed: int) -> dict[str, RunResult]:
        """Play one pair; return what each role did, in the order in which they played."""
        self._pairs += 1
        self._pair = f"{self._run}-{self._pairs}"
        played: dict[str, RunResult] = {}
        # Each goes first every other time: what changes with time is not on one side.
        for role in ROLES if self._pairs % 2 else ROLES[::-1]:
            self._role.policy = role
            played[role] = self._actor.run(episodes=1, seed=seed)
        return played


def _takes_policy(endpoint: Any) -> bool:
    """Whether an endpoint's `act` can be asked for a policy."""
    try:
        inspect.signature(endpoint.act).bind(None, policy=None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True
