"""The channel between gateway and learner process: length-prefixed MessagePack over a socket pair.

Plain maps of numbers, strings and bytes: neither side can make the other run anything.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["AsyncChannel", "Channel", "Closed", "Garbage"]

_LENGTH = struct.Struct("<I")
#: Largest message, unless the one who listens knows better.
LIMIT = 1 << 30
#: Seconds within which the rest of a message that has begun must come.
REST_TIMEOUT = 60.0
#: Seconds that one wait for room lasts.
ROOM_WAIT = 1.0


class Closed(Exception):
    """The other side is gone."""


class Garbage(Exception):
    """What the other side sent is nothing that it may send."""


def _frame(message: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = msgspec.msgpack.decode(body)
    except (ValueError, RecursionError) as error:  # bad text in it is a ValueError of Python's own
        raise Garbage(f"{len(body)} bytes that are no MessagePack: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Garbage("a message without a type")
    return message


class Channel:
    """The learner's end, blocking; one thread.

    Args:
        sock: a connected stream socket.
        waiting: called again and again while there is no room to send in.
    """

    def __init__(self, sock: socket.socket, waiting: Callable[[], None] = lambda: None) -> None:
        self._sock, self._waiting = sock, waiting
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._room = select.poll()
        self._room.register(sock, select.POLLOUT)

    def send(self, message: dict[str, Any]) -> None:
        """Send, waiting for room.

        Raises:
            Closed: the gateway is gone.
        """
        left = memoryview(_frame(message))
        while left:
            try:
                left = left[self._sock.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self._waiting()
                self._room.poll(ROOM_WAIT * 1000)
            except OSError as error:
                raise Closed(repr(error)) from None

    def receive(self, timeout: float | None) -> dict[str, Any] | None:
        """Return the next message; None when none comes within `timeout` seconds.

        Raises:
            Closed: the gateway is gone.
            Garbage: it talks nonsense.
        """
        while True:
            message = self._take()
            if message is not None:
                return message
            # Not select(), which knows no descriptor above 1,023.
            if not self._poll.poll(None if timeout is None else timeout * 1000):
                return None
            try:
                data = self._sock.recv(1 << 16)
            except OSError as error:
                raise Closed(repr(error)) from None
            if not data:
                raise Closed("end of stream")
            self._buffer += data

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if len(self._buffer) < _LENGTH.size + length:
            return None
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        return _parse(body)


class AsyncChannel:
    """The gateway's end.

    Args:
        reader, writer: streams over the socket.
        limit: bytes of the largest message to take.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = LIMIT
    ) -> None:
        self._reader, self._writer, self._limit = reader, writer, limit

    @classmethod
    async def over(cls, sock: socket.socket, limit: int = LIMIT) -> AsyncChannel:
        """Wrap a connected stream socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock), limit)

    def send(self, message: dict[str, Any]) -> None:
        """Send without waiting; messages to the learner are few and small."""
        if not self._writer.is_closing():
            self._writer.write(_frame(message))

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            Closed: the learner is gone.
            Garbage: it talks nonsense, or does not finish.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > self._limit:
                raise Garbage(f"a message of {length} bytes, of which {self._limit} are the most")
            async with asyncio.timeout(REST_TIMEOUT):
                body = await self._reader.readexactly(length)
        except TimeoutError:
            raise Garbage(f"a part of {length} bytes, and not the rest") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Closed(repr(error)) from None
        return _parse(body)

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()
