"""`RemoteLearner`: a model of a service, as an `Endpoint`."""

from __future__ import annotations

import logging
from collections.abc import Sized
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, Self

from numpy.typing import ArrayLike

from jormungandr.client.acting import Acting, LocalActing, RemoteActing
from jormungandr.client.calls import Calls, check_size, decoded
from jormungandr.client.follower import Follower
from jormungandr.client.guard import Guard, GuardCounts, Guarded
from jormungandr.client.model import RemoteModel
from jormungandr.client.sender import Sender
from jormungandr.client.spool import Batch, Spool
from jormungandr.encoder import COLUMNS_FROM, TransitionEncoder
from jormungandr.errors import (
    InvalidValue,
    JormungandrError,
    Unavailable,
    WaitTimeout,
)
from jormungandr.protocol import InferenceReply, Receipt, TransitionsLike
from jormungandr.recorder import Episodic
from jormungandr.spec import ModelSpec
from jormungandr.transport import Transport
from jormungandr.wire import JSON, encode_transitions

__all__ = ["RemoteLearner"]

log = logging.getLogger("jormungandr")

Placement = Literal["remote", "local"]


class RemoteLearner(RemoteModel, Episodic):
    """A model of a service, as an `Endpoint`.

    A request that failed on the way, or that the service asks to repeat, is sent again with the
    same bytes: what had arrived already is counted as `duplicate`, never twice. Errors are the
    classes that a `Learner` raises. Several threads may use one.

    With a `spool`, `send` hands transitions over without waiting for the service, and everything
    that records (`endpoint.episode`, `RemoteActor`, the vector recorders) does so: it goes on while
    the service is away. `docs/clients.md` tells more.

    Args:
        url: of the service; None is the environment's ``JORMUNGANDR_URL``.
        model_id: of the model.
        token: None is ``JORMUNGANDR_TOKEN``, or the content of ``JORMUNGANDR_TOKEN_FILE``.
        timeout: seconds for one request.
        patience: seconds during which a request is repeated before its error is raised.
        columns_from: transitions from which a request carries columns, not JSON; None is never.
        transport: how requests travel; tests hand in an application in memory.
        placement: ``remote`` asks the service for each action, ``local`` acts here, in NumPy, with
            its newest policy, also while it is away.
        spool: what `send` hands transitions over to; closed with this.
        guard: what `act` does when there is no good action in time.
        poll: seconds for which a request for a newer policy is held open.
        seed: of what a local policy explores with; None draws one.
        policy: ``"latest"``, ``"champion"`` or ``"candidate"``, to act with; None is what the model
            serves. Who gathers training data from a model that promotes does with the latest.

    Example:
        >>> RemoteLearner("http://127.0.0.1:8000", "ou", token="secret").model_id
        'ou'
    """

    def __init__(
        self,
        url: str | None,
        model_id: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 60.0,
        columns_from: int | None = COLUMNS_FROM,
        transport: Transport | None = None,
        placement: Placement = "remote",
        spool: Spool | None = None,
        guard: Guard | None = None,
        poll: float = 20.0,
        seed: int | None = None,
        policy: str | None = None,
    ) -> None:
        if placement not in ("remote", "local"):
            raise InvalidValue("placement", "'remote' or 'local'", repr(placement))
        calls = Calls(url, token, timeout=timeout, patience=patience, transport=transport)
        super().__init__(calls, model_id)
        self.placement, self.spool, self.patience = placement, spool, patience
        self._encoder = TransitionEncoder(self.info, columns_from)
        local: LocalActing | None = None
        if placement == "local":
            if guard is not None and guard.max_policy_age is not None:
                poll = min(poll, guard.max_policy_age / 3)  # each answer says: it is the newest
            local = LocalActing(Follower(self._calls, self._path, poll=poll, policy=policy), seed)
            self._acting: Acting = local
        else:
            self._acting = RemoteActing(self._calls, self._path, policy)
        self._local = local
        self._guarded: Guarded | None = None
        if guard is not None:
            self._acting = self._guarded = Guarded(self._acting, guard, self.specification)
        self._sender: Sender | None = None
        if spool is not None:
            self._sender = Sender(spool, self._calls, model_id, self._path, self._encoder)

    # -- experience -----------------------------------------------------------------------------

    def add(self, transitions: TransitionsLike) -> Receipt:
        """Submit transitions; they are durable when this returns.

        With a spool they wait in it for their turn, and stay there if there is no answer in time.

        Raises:
            ModelUnknown: the model was deleted, say.
            ModelGone: with a spool, also where it was created again.
            JormungandrError: they are refused, or there is no answer in time.
        """
        if self.spool is not None:
            return self._added(self.spool, transitions)

        return self._encoder.deliver(
            transitions,
            lambda media, body: decoded(
                self._calls.request("POST", f"{self._path}/experience/add", body, media), Receipt
            ),
        )

    def send(self, transitions: TransitionsLike) -> Future[Receipt]:
        """Hand transitions over to the spool, which takes them to the service.

        Returns:
            What becomes of them; nobody has to look at it. Requests that waited together may have
            one receipt, which the last of them gets; the others then count nothing.

        Raises:
            InvalidValue: there is no spool.
            Unavailable: the spool is full, if that is how it was made; else this waits for room.
            ModelGone: the model was deleted, or is another one now; nothing is sent any more.
            JormungandrError: these cannot be sent, or earlier ones were refused.
        """
        if self.spool is None:
            remedy = "RemoteLearner(…, spool=Spool()); `add` needs none"
            raise InvalidValue("send", "a learner with a spool", "none", remedy)
        return self._put(self.spool, transitions).receipt

    def flush(self, timeout: float | None = None) -> Receipt:
        """Wait until all that was sent is answered, and return what became of it, added up.

        Args:
            timeout: seconds; None is the patience of one request.

        Raises:
            InvalidValue: there is no spool.
            WaitTimeout: it was not in time; what waits goes on waiting.
            JormungandrError: as for `send`.
        """
        if self.spool is None:
            raise InvalidValue("flush", "a learner with a spool", "none", "`add` has waited")
        seconds = self.patience if timeout is None else timeout
        answered = self.spool.join(seconds)
        self.spool.check()
        if not answered:
            expected = f"all transitions answered within {seconds:g} s"
            got = f"{self.spool.rows} that wait"
            if self.spool.failure is not None:
                got += f"; {self.spool.failure}"
            raise WaitTimeout("spool", expected, got)
        return self.spool.receipt

    def _put(self, spool: Spool, transitions: TransitionsLike, awaited: bool = False) -> Batch:
        assert self._sender is not None
        given = transitions if isinstance(transitions, Sized) else list(transitions)
        media, body = self._encoded(given)
        batch = spool.put(len(given), media, body, awaited=awaited)
        self._sender.start()
        return batch

    def _encoded(self, transitions: TransitionsLike) -> tuple[str, bytes]:
        """Return the content type and body of a request, without asking the service anything."""
        if not self._encoder.ready:  # the sender tells it of the model when it first hears of it
            media, body = JSON, encode_transitions(transitions)
        else:
            media, body = self._encoder(transitions)
        check_size(media, body)
        return media, body

    def _added(self, spool: Spool, transitions: TransitionsLike) -> Receipt:
        batch = self._put(spool, transitions, awaited=True)
        try:
            return batch.receipt.result(self.patience)
        except TimeoutError:
            with spool.changed:
                batch.awaited = False  # if it is refused now, the next call says so
            failure = spool.failure
            if failure is not None:
                raise failure from None
            expected = f"an answer within {self.patience:g} s"
            raise WaitTimeout("spool", expected, f"{spool.rows} transitions that wait") from None

    # -- acting ---------------------------------------------------------------------------------

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
        policy: str | int | None = None,
    ) -> InferenceReply:
        """Choose actions for a batch of observations, or for a single one as a batch of one.

        Args:
            observations: as the environment shows them; of a Dict a list of dicts, or a dict.
            deterministic: take the best action always; wins over `epsilon`.
            epsilon: probability of a random action; None is the model's exploration schedule.
            action_masks: (B, A) which actions are allowed; of a model with action masks.
            distribution: also return the return distribution of every action.
            policy: ``"latest"``, ``"champion"``, ``"candidate"`` or a version that is kept; None is
                the one that this was made for. A policy placed here is always that one.

        Raises:
            ModelUnknown: the model was deleted, say.
            ModelGone: placed here, also where it was created again.
            JormungandrError: the observations are not the model's, or there is no answer in time.
        """
        return self._acting.act(
            observations,
            deterministic,
            epsilon,
            action_masks=action_masks,
            distribution=distribution,
            policy=policy,
        )

    def specification(self) -> ModelSpec:
        """Return the model's specification; placed here, the one that came with its policy."""
        if self._local is not None:
            return self._local.policy().spec
        return ModelSpec.from_dict(self.info()["spec"])

    @property
    def version(self) -> int:
        """Of the policy that acted last or, placed here, acts next; -1 before there is one."""
        return self._acting.version

    @property
    def age(self) -> float:
        """Seconds since the service said that the policy placed here is its newest."""
        return self._acting.age

    @property
    def guarded(self) -> GuardCounts:
        """What the guard counted; nothing without one."""
        return GuardCounts() if self._guarded is None else self._guarded.counts

    # -- the end --------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Send what waits in the spool, and close the connections.

        Without a spool the next call opens another connection. A spool is closed for good; what its
        file still holds is sent by the next process that opens it.

        Args:
            timeout: seconds to wait for what is in the spool; None is the patience of one request.

        Raises:
            Unavailable: transitions of a spool without a file were not sent, and are lost.
            JormungandrError: some were refused, and no call has said so yet.
        """
        left = 0
        if self._local is not None:
            self._local.stop()  # its connection ends with the sender's
        if self._sender is not None:
            left = self._sender.close(self.patience if timeout is None else timeout)
        self._acting.close()
        self._calls.close()
        if self.spool is None:
            return
        if left:
            where = "wait in the spool's file" if self.spool.kept else "were not sent, and are lost"
            log.warning("%d transitions %s", left, where)
        self.spool.check()
        if left and not self.spool.kept:
            got, remedy = f"{left} that are lost", "a spool with a file keeps them"
            raise Unavailable("spool", "all transitions sent", got, remedy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # The error that is under way is the one to see, and an interrupt should not wait.
        patient = isinstance(error, Exception) and not isinstance(error, JormungandrError)
        try:
            self.close(None if patient else 0.0)
        except JormungandrError as other:
            log.error("%s", other)
