"""`GET /metrics`: the service's figures as text for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from jormungandr.service.http.body import NO_BODY
from jormungandr.service.http.doc import Doc, Raw
from jormungandr.service.http.grants import Needs
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.service.observe.exposition import CONTENT_TYPE

__all__ = ["MetricsRoute"]


class MetricsRoute:
    """Answers with the text, or with the JSON of an error.

    Args:
        text: makes it.
    """

    needs: Needs = "observe"
    every_model = True
    query: tuple[str, ...] = ()
    accepts = NO_BODY
    doc = Doc(
        "Figures of the service and of every model, for Prometheus",
        {200: Raw(CONTENT_TYPE.decode(), "text exposition format 0.0.4")},
    )

    def __init__(self, text: Callable[[], bytes]) -> None:
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        made: list[bytes] = []

        async def call(_: Request) -> tuple[int, Any]:
            made.append(self._text())
            return 200, None

        async def reply(message: Any) -> None:
            if not made:  # an error; a success has another form
                await send(message)

        await JsonRoute(call, needs=self.needs)(scope, receive, reply)
        for text in made:
            headers = [
                (b"content-type", CONTENT_TYPE),
                (b"content-length", str(len(text)).encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": text})
