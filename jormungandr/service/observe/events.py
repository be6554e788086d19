"""`GET /v1/models/{id}/events`: what happens to a model, as server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html. There is no queue: a stream compares
what is with what it has sent, a few times a second. Who reads slowly gets the newest state later,
and nothing piles up; of evaluations, which are a history, everybody gets each that is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope, Send

from jormungandr.errors import Overloaded
from jormungandr.service.http.body import NO_BODY
from jormungandr.service.http.doc import Doc, Raw
from jormungandr.service.http.grants import Needs
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.service.model import Model
from jormungandr.wire import encode

__all__ = ["EventsRoute"]

#: Seconds between two looks.
PERIOD = 0.2
#: Seconds of silence after which a comment shows that the connection lives.
BEAT = 15.0
#: Streams of one service: each holds a connection open.
STREAMS = 64


class EventsRoute:
    """Answers with a stream that ends with its client, its model, or the service.

    It begins with the present ``policy``, ``learner`` and ``warnings`` and the newest
    ``evaluation``; then each of them comes again when it has changed.

    Args:
        find: returns the model of an id.
    """

    needs: Needs = "observe"
    query: tuple[str, ...] = ()
    accepts = NO_BODY
    doc = Doc(
        "What happens to a model, as it happens",
        {200: Raw("text/event-stream", "events policy, evaluation, learner, warnings, end")},
        errors=(Overloaded,),
    )

    def __init__(self, find: Callable[[str], Model]) -> None:
        self._find, self._open = find, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found: list[Model] = []

        async def call(request: Request) -> tuple[int, Any]:
            model = self._find(request.path["model_id"])
            if self._open >= STREAMS:
                raise Overloaded("events", f"at most {STREAMS} streams", self._open, "close one")
            found.append(model)
            return 200, None

        async def reply(message: Any) -> None:
            if not found:  # an error; a stream has another form
                await send(message)

        await JsonRoute(call, needs=self.needs)(scope, receive, reply)
        for model in found:
            self._open += 1
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await _stream(model, gone, send)
            finally:
                self._open -= 1
                gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(model: Model, gone: asyncio.Future[None], send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    seen, silent = _Seen(model), 0.0
    while not gone.done():
        text = b"".join(seen.changes())
        silent = 0.0 if text else silent + PERIOD
        if silent >= BEAT:
            text, silent = b": beat\n\n", 0.0
        if text:
            await send({"type": "http.response.body", "body": text, "more_body": True})
        ending = model.commits.refusal
        if ending is not None:
            end = _event("end", {"code": ending.code})
            await send({"type": "http.response.body", "body": end})
            return
        await asyncio.wait({gone}, timeout=PERIOD)


@dataclass
class _Seen:
    """What one stream has sent of a model."""

    model: Model
    last: dict[str, Any] = field(default_factory=dict)
    evaluated: int | None = None

    def changes(self) -> Iterator[bytes]:
        """Yield an event for everything that is not as it was."""
        model, info = self.model, self.model.info()
        policy = model.policy
        now: dict[str, Any] = {
            "policy": None
            if policy is None
            else {"policy_version": policy.version, "update_count": policy.update_count},
            "learner": {name: info["learner"][name] for name in ("state", "error")},
            "warnings": {"warnings": info["warnings"]},
        }
        for name, content in now.items():
            if content is not None and self.last.get(name) != content:
                yield _event(name, content)
        self.last = now
        evaluations = model.metrics()["evaluations"]
        if self.evaluated is None:
            evaluations = evaluations[-1:]
        for evaluation in evaluations:
            if self.evaluated is None or evaluation["policy_version"] > self.evaluated:
                yield _event("evaluation", evaluation)
                self.evaluated = evaluation["policy_version"]


def _event(name: str, content: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(content) + b"\n\n"
