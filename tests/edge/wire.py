"""A server's connections in one event loop with their clients: raw bytes, and a clock to turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from jormungandr.service.http.connection import Connection, connections
from jormungandr.service.http.watch import ConnectionLimits, Watch

#: Longest wait for anything, in seconds: a test that reaches it has failed.
DEADLINE = 30.0
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        async with asyncio.timeout(DEADLINE):
            await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer: status, headers, body."""
        async with asyncio.timeout(DEADLINE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def error(self) -> tuple[int, str]:
        """Read one answer, which must be an error of our form: status and code."""
        status, headers, body = await self.answer()
        assert headers["content-type"] == "application/json"
        return status, json.loads(body)["error"]["code"]

    async def closed(self) -> None:
        """Wait for the end of the connection, before which nothing more may come."""
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                assert await self.reader.read() == b""

    async def leave(self) -> None:
        """Close."""
        self.writer.close()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await self.writer.wait_closed()


@dataclass
class Wire:
    """A listening server."""

    port: int
    watch: Watch
    clock: Clock
    clients: list[Client]

    async def connect(self, address: str = "127.0.0.1") -> Client:
        """Open a connection."""
        found = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0), limit=1 << 24
        )
        self.clients.append(Client(*found))
        return self.clients[-1]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Let both ends run until something is so."""
        async with asyncio.timeout(DEADLINE):
            while not holds():
                await asyncio.sleep(0.001)

    @property
    def open(self) -> list[Connection]:
        """The connections that are counted."""
        return [c for c in self.watch._open if isinstance(c, Connection)]

    async def heard(self, size: int) -> None:
        """Wait until the only connection has got so many bytes of what it is in."""
        await self.until(lambda: [c._raw for c in self.open] == [size])

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and the server look."""
        await asyncio.sleep(0)
        self.clock.now += seconds
        self.watch.look()


@contextlib.asynccontextmanager
async def wire(
    app: Any, limits: ConnectionLimits | None = None, direct: Any = None
) -> AsyncIterator[Wire]:
    """Serve an ASGI application on a free port."""
    clock = Clock()
    watch = Watch(limits or ConnectionLimits(), clock=clock, pause=1e6)
    config = uvicorn.Config(
        app,
        http=connections(watch, direct),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
    )
    config.load()
    state = ServerState()

    def make() -> Any:
        return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    opened = Wire(server.sockets[0].getsockname()[1], watch, clock, [])
    try:
        yield opened
    finally:
        server.close()
        for client in opened.clients:
            await client.leave()
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        await opened.until(lambda: not opened.open)
        if watch._timer is not None:
            watch._timer.cancel()


def run(test: Any) -> None:
    """Run a coroutine, in a loop of its own."""
    asyncio.run(test)
