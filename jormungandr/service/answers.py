"""`Answers`: what is asked of one model: its policies, and which actions they take.

Everything here runs on the event loop, but for what `Inference` takes off it.
"""

from __future__ import annotations

from typing import Any

from jormungandr.errors import PolicyNotReady
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import InferenceReply
from jormungandr.questions import Question
from jormungandr.service.asker import Asker
from jormungandr.service.inference import Inference
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.writer import Journal
from jormungandr.service.learning import Learning
from jormungandr.service.load.lanes import Lanes
from jormungandr.service.observe.meters import Meters
from jormungandr.service.promotion.gate import Gate
from jormungandr.service.promotion.handing import Wanted
from jormungandr.streams import streams

__all__ = ["Answers"]

#: Seconds an inference request waits for the first policy of a model.
FIRST_POLICY = 20.0


class Answers:
    """Who hands out the policies of one model, and answers with them.

    Args:
        journal: of the model.
        commits: know when the model comes to its end.
        learning: wakes who waits for a policy.
        gate: knows which one is handed out.
        lanes: with the threads for large requests.
        meters: count the observations.
    """

    def __init__(
        self,
        journal: Journal,
        commits: Commits,
        learning: Learning,
        gate: Gate,
        lanes: Lanes,
        meters: Meters,
    ) -> None:
        self._journal, self._spec = journal, journal.created.spec
        self._commits, self._learning, self._gate = commits, learning, gate
        _, _, acting = streams(self._spec.seed)
        self._inference = Inference(self._spec, acting, lambda: gate.at_hand, lanes.forward, meters)

    async def policy_for(self, wanted: Wanted = None) -> PolicySnapshot:
        """Return the policy to act with, waiting for the first one of a new model.

        Args:
            wanted: a role, a version that is kept, or None for what the model serves.

        Raises:
            InvalidValue: there is no such role.
            PolicyVersionUnknown, PolicyGone: there never was that version, or it is not kept.
            PolicyNotReady: it has not come in time, or will not.
        """
        self._gate.check(wanted)
        if isinstance(wanted, int):
            return await self._gate.version(wanted)
        found = self._gate.standing_in(wanted)
        if found is None:
            self._learning.process.start()
            await self._learning.until(lambda: bool(self._gate.standing_in(wanted)), FIRST_POLICY)
            found = self._gate.standing_in(wanted)
        if found is None:
            expected, process = f"a policy within {FIRST_POLICY:g} s", self._learning.process
            why = f": {process.error}" if process.error else ""
            raise PolicyNotReady("model", expected, f"learner {process.state}{why}")
        return found

    async def newer_policy(
        self, version: int, seconds: float, wanted: str | None = None
    ) -> tuple[PolicySnapshot, bool]:
        """Return a policy once it is newer than `version`, or when the time is over; and whether.

        After a rollback a champion is older than the one before it: of what is promoted, any other
        version is a newer one.

        Raises:
            PolicyNotReady: there is none at all yet.
            JormungandrError: the model is being closed.
        """
        latest = self._gate.role(wanted) == "latest"

        def newer(found: PolicySnapshot | None) -> bool:
            if found is None:
                return False
            return found.version > version if latest else found.version != version

        if not newer(await self.policy_for(wanted)):
            await self._learning.until(lambda: newer(self._gate.standing_in(wanted)), seconds)
            if self._commits.refusal is not None:
                raise self._commits.refusal.with_traceback(None)
        found = await self.policy_for(wanted)
        return found, newer(found)

    async def act(
        self,
        observations: Any,
        *,
        deterministic: bool,
        epsilon: float | None,
        action_masks: list[Any] | None,
        distribution: bool,
        wanted: Wanted = None,
    ) -> InferenceReply:
        """Answer with the policy that is wanted, waiting for the first one of a new model."""
        policy = await self.policy_for(wanted)
        return await self._inference.act(
            observations,
            deterministic=deterministic,
            epsilon=self._exploring(epsilon),
            action_masks=action_masks,
            distribution=distribution,
            # The one at hand when it is answered, unless another one is asked for.
            policy=None if wanted is None else policy,
        )

    def question(
        self,
        observations: list[list[int | float]],
        deterministic: bool,
        epsilon: float | None,
        action_masks: list[Any] | None,
    ) -> Question | None:
        """Return vectors as a question to the policy at hand; None where it is not as plain.

        Where there is no policy yet, something is wrong, or there is too much of it, `act` says so.
        """
        if self._gate.handed is None:
            return None
        return self._inference.question(
            observations, deterministic, self._exploring(epsilon), action_masks
        )

    def ask(self, question: Question, asker: Asker) -> None:
        """Have a `question` answered soon, by the policy that is at hand then."""
        self._inference.ask(question, asker)

    def _exploring(self, epsilon: float | None) -> float:
        """Return the probability of a random action: as asked for, or of the schedule by now."""
        if epsilon is not None:
            return epsilon
        return self._spec.exploration.epsilon(self._journal.counters.train)
