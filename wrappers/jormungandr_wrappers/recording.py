"""`Recording`: what the recorders of sub-environments that are stepped together have in common.

B is the number of sub-environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from jormungandr.episode import Choice
from jormungandr.outbox import Outbox
from jormungandr.protocol import Endpoint, InferenceReply, Receipt, Split
from jormungandr_wrappers.choices import Choices
from jormungandr_wrappers.episodes import Episodes
from jormungandr_wrappers.rules import SplitRule, TagRule

__all__ = ["Recording"]


class Recording:
    """Episodes, choices and an outbox, and the calls that are the same for every kind of them."""

    #: What was recorded and not yet sent, and the receipts of what was.
    outbox: Outbox
    _episodes: Episodes
    _choices: Choices

    def _record_for(
        self,
        endpoint: Endpoint,
        *,
        actor_id: str,
        splits: Sequence[Split],
        mode: AutoresetMode,
        action_space: spaces.Space[Any],
        actions: int,
        label_key: str | None,
        mask_key: str | None,
        batch_size: int,
        run: str | None,
        first: int = 0,
        rule: SplitRule | None = None,
        tags: TagRule | None = None,
    ) -> None:
        """Begin; the arguments are those of the recorder, of `Episodes` and of `Choices`."""
        self._episodes = Episodes(
            actor_id=actor_id,
            splits=splits,
            mode=mode,
            label_key=label_key,
            mask_key=mask_key,
            actions=actions,
            run=run,
            first=first,
            rule=rule,
            tags=tags,
        )
        self.outbox = Outbox(endpoint, batch_size)
        self._choices = Choices(endpoint, splits, action_space)

    @property
    def run(self) -> str:
        """First part of every episode id of this recorder."""
        return self._episodes.run

    @property
    def skipped(self) -> int:
        """Episodes that no split was for: played, perhaps not to their ends, and not recorded."""
        return self._episodes.skipped

    @property
    def reply(self) -> InferenceReply | None:
        """The endpoint's last reply to `act`."""
        return self._choices.reply

    def act(
        self,
        observations: Any,
        deterministic: bool | None = None,
        epsilon: float | None = None,
    ) -> NDArray[Any]:
        """Ask the endpoint for actions, (B,), and remember which policy chose them for `step`.

        Args:
            observations: as `reset` or `step` returned them.
            deterministic: take the best actions always, or, where False, explore everywhere; None
                takes the best in sub-environments of the validation split and explores in others.
            epsilon: probability of a random action; None is the model's exploration schedule.

        Raises:
            ShapeMismatch: another number of observations.
            InvalidValue: the model's actions are not the environment's.
            gymnasium.error.ResetNeeded: with a `mask_key`, before the first reset.
            JormungandrError: the endpoint's own.
        """
        now = self._episodes
        return self._choices.act(observations, deterministic, epsilon, now.masks(), now.held_out)

    def _begin_step(self, actions: ArrayLike) -> list[Choice]:
        """Return the actions of a step, (B,), with where each came from.

        One that the last `act` chose for its sub-environment is tagged with that policy's version
        and its probability; any other is tagged -1, without.
        """
        self._episodes.check_running()
        return self._choices.recognise(actions)

    def flush(self) -> Receipt:
        """Send what is left, and return what became of all that was sent.

        ``endpoint.wait(recorder.flush().lsn)`` returns when the learner has applied it. Of an
        endpoint with a spool, this waits until the service has answered; nothing else does.

        Raises:
            JormungandrError: the endpoint's own; what it has not taken is kept.
        """
        return self.outbox.flush()
