"""Limits of the service: uvicorn with its loop and parser, and an application of a few lines.

``python -m benchmarks.speed.bare echo`` answers each body with one line; ``starlette`` and
``fastapi`` do by these frameworks; ``forward WEIGHTS.npz`` decodes an observation, computes the
greedy action in NumPy and encodes it, and checks nothing. What one needs is imported for it alone.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

Answer = Callable[[bytes], bytes]
HEADERS = [(b"content-type", b"application/json")]
ECHO = b'{"actions":[1]}'


def application(answer: Answer) -> Any:
    """Return the ASGI application."""

    async def app(
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        said = answer(body)
        headers = [*HEADERS, (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})

    return app


def starlette() -> Any:
    """Return Starlette's application: one route, the body read."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def echo(request: Request) -> Response:
        await request.body()
        return Response(ECHO, media_type="application/json")

    return Starlette(routes=[Route("/", echo, methods=["POST"])])


def fastapi() -> Any:
    """Return FastAPI's application: one route, the body validated by a model of it."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Question(BaseModel):
        observations: list[list[float]]

    async def echo(question: Any) -> dict[str, list[int]]:
        return {"actions": [1] * len(question.observations)}

    echo.__annotations__["question"] = Question  # this file's are words, and it is not global
    app = FastAPI()
    app.post("/")(echo)
    return app


def forward(path: str) -> Answer:
    """Return what answers with the greedy action of a network."""
    import msgspec
    import numpy as np

    with np.load(path) as held:
        weights = [held[f"arr_{i}"] for i in range(len(held.files))]
    *layers, mean, scale, support = weights
    decoder, encoder = msgspec.json.Decoder(), msgspec.json.Encoder()

    def answer(body: bytes) -> bytes:
        x = np.asarray(decoder.decode(body)["observations"], np.float32)
        x = (x - mean) * scale
        for i in range(0, len(layers) - 2, 2):
            x = np.maximum(x @ layers[i] + layers[i + 1], 0)
        p = np.exp((x @ layers[-2] + layers[-1]).reshape(len(x), -1, len(support)))
        values = (p @ support) / p.sum(axis=-1)
        chosen = values.argmax(axis=-1).tolist()
        return encoder.encode({"actions": chosen, "expected_values": values.tolist()})

    return answer


def main() -> None:
    """Serve until a signal."""
    what, *given = sys.argv[1:]
    made: dict[str, Callable[[], Any]] = {
        "echo": lambda: application(lambda _: ECHO),
        "forward": lambda: application(forward(*given)),
        "starlette": starlette,
        "fastapi": fastapi,
    }
    app = made[what]()
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
    )
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
