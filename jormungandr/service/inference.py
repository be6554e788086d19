"""`Inference`: the actions of one model; what is asked at one moment is one forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from math import prod
from typing import Any, TypeAlias

import numpy as np

from jormungandr.columns import action_masks as checked_masks
from jormungandr.encoding import count
from jormungandr.errors import BodyTooLarge, JormungandrError
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import InferenceReply
from jormungandr.questions import Question
from jormungandr.service.asker import Asker
from jormungandr.service.observe.meters import Meters
from jormungandr.spaces import Box
from jormungandr.spec import ModelSpec
from jormungandr.weights import layer_shapes

__all__ = ["Inference"]

#: Observations, and multiplications for them, above which a request has a forward pass of its own,
#: beside the event loop: some two milliseconds.
LOOP_OBSERVATIONS, LOOP_COST = 64, 1 << 24
#: The same of several requests that share one.
SHARED_OBSERVATIONS, SHARED_COST = 256, 1 << 25
#: Multiplications that the exponential of one atom stands for.
EXPONENTIAL = 16
#: And those that the noise of one weight does, drawn for each request.
NOISE = 16
#: Turns of the event loop that a forward waits for while each of them brings more requests.
TURNS = 4
#: Numbers of the distributions in one reply: writing them as JSON holds the event loop.
REPLY_NUMBERS = 1 << 19

#: Numbers up to here are finite in float32, however they are rounded.
LARGEST = 3.4e38

#: A question, who waits for its answer, and the policy it is to; None is the one at hand.
_Asked: TypeAlias = tuple[Question, Asker, PolicySnapshot | None]


class Inference:
    """Answers requests for actions; lives on the event loop.

    A small request waits for the next turn of the loop, and so for nothing when it is alone.
    Whatever has come by then is answered from one forward pass, each request with its own masks,
    options and draws, in the order in which they came: as if one had come after the other.

    Args:
        spec: of the model.
        rng: draws the explored actions.
        policy: returns the policy to act with where none is asked for.
        pool: for large requests and images.
        meters: count passes and requests.
    """

    def __init__(
        self,
        spec: ModelSpec,
        rng: np.random.Generator,
        policy: Callable[[], PolicySnapshot],
        pool: Executor,
        meters: Meters,
    ) -> None:
        self._spec, self._rng, self._policy = spec, rng, policy
        self._pool, self._meters = pool, meters
        atoms = len(spec.action_set) * spec.c51.atoms
        weights = sum(prod(shape) for shape in layer_shapes(spec).values())
        cost = EXPONENTIAL * atoms + weights
        left = max(0, LOOP_COST - NOISE * weights) if spec.c51.noisy else LOOP_COST
        self._small = 0 if spec.observation.is_image else min(LOOP_OBSERVATIONS, left // cost)
        self._shared = max(1, min(SHARED_OBSERVATIONS, SHARED_COST // cost))
        self._waiting: list[_Asked] = []

    async def act(
        self, observations: Any, *, policy: PolicySnapshot | None = None, **options: Any
    ) -> InferenceReply:
        """Choose actions.

        Args:
            observations: as the request has them.
            policy: that is asked for; None is the one at hand when it is answered.
            options: the other arguments of `Question.checked`.

        Raises:
            InvalidInput: (one of its classes) for a bad observation, mask or option.
            BodyTooLarge: more distributions than fit into one reply.
        """
        rows = count(observations, self._spec.observation)
        self._check_size(rows, bool(options["distribution"]))
        if not self.is_small(rows):
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._alone, observations, policy, options
            )
        question = Question.checked(self._spec, observations, **options)
        reply: asyncio.Future[InferenceReply] = asyncio.get_running_loop().create_future()
        self.ask(question, reply, policy)
        return await reply

    def question(
        self,
        observations: list[list[int | float]],
        deterministic: bool,
        epsilon: float,
        action_masks: list[Any] | None,
    ) -> Question | None:
        """Return vectors as a question that `ask` takes; None where it is not as plain.

        Where something is wrong, or there is too much of it, `act` says so.
        """
        o, rows = self._spec.observation, len(observations)
        if not isinstance(o.described, Box) or len(o.shown_shape) != 1:
            return None
        if not rows or not self.is_small(rows) or not 0 <= epsilon <= 1:
            return None
        (width,) = o.shown_shape
        for row in observations:
            if len(row) != width or max(row) > LARGEST or min(row) < -LARGEST:
                return None
        try:
            masks = checked_masks(action_masks, self._spec, rows)
        except JormungandrError:
            return None
        x = np.array(observations, dtype=np.float32)
        return Question(x, masks, float(epsilon), deterministic, False)

    def is_small(self, rows: int) -> bool:
        """Whether so many observations are answered on the event loop."""
        return rows <= self._small

    def ask(self, question: Question, asker: Asker, policy: PolicySnapshot | None = None) -> None:
        """Answer a small question soon.

        Args:
            question: checked, with no more observations than `is_small`.
            asker: who is told.
            policy: that is asked for; None is the one at hand when it is answered.
        """
        self._waiting.append((question, asker, policy))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._gather, 1, 1)

    def _check_size(self, rows: int, distribution: bool) -> None:
        numbers = rows * len(self._spec.action_set) * self._spec.c51.atoms
        if distribution and numbers > REPLY_NUMBERS:
            expected = f"at most {REPLY_NUMBERS} probabilities in a reply"
            raise BodyTooLarge("observations", expected, numbers, "ask for fewer at a time")

    def _alone(
        self, observations: Any, policy: PolicySnapshot | None, options: dict[str, Any]
    ) -> InferenceReply:
        question = Question.checked(self._spec, observations, **options)
        self._meters.forward(len(question))
        return (policy or self._policy()).answer([question], self._rng)[0]

    def _gather(self, seen: int, turn: int) -> None:
        """Go on waiting while more come, but not for long; then answer all of them."""
        if len(self._waiting) > seen and turn < TURNS:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._gather, len(self._waiting), turn + 1)
            return
        waiting, self._waiting = self._waiting, []
        batch: list[_Asked] = []
        rows = 0
        for one in waiting:
            if one[1].done():  # its client has gone
                continue
            full = rows + len(one[0]) > self._shared
            if batch and (full or one[2] is not batch[0][2]):
                self._answer(batch)
                batch, rows = [], 0
            batch.append(one)
            rows += len(one[0])
        if batch:
            self._answer(batch)

    def _answer(self, batch: list[_Asked]) -> None:
        try:
            self._meters.forward(sum(len(question) for question, _, _ in batch), len(batch))
            policy = batch[0][2] or self._policy()
            replies = policy.answer([question for question, _, _ in batch], self._rng)
        except Exception as error:
            for _, reply, _ in batch:
                reply.set_exception(error)
            return
        for (_, reply, _), made in zip(batch, replies, strict=True):
            reply.set_result(made)
