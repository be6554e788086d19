"""The channel between gateway and learner process: length-prefixed MessagePack over a socket pair.

Plain maps of numbers, strings and bytes: neither side can make the other run anything.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from typing import Any

import msgspec

__all__ = ["AsyncChannel", "Channel", "Closed"]

_LENGTH = struct.Struct("<I")
#: Largest message; the largest snapshot is a few hundred kilobytes, so more is a fault.
LIMIT = 1 << 30


class Closed(Exception):
    """The other side is gone."""


def _frame(message: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def _parse(body: bytes) -> dict[str, Any]:
    message = msgspec.msgpack.decode(body)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Closed("a message that is not of the channel")
    return message


class Channel:
    """The learner's end, blocking; one thread.

    Args:
        sock: a connected stream socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: dict[str, Any]) -> None:
        """Send, waiting for room.

        Raises:
            Closed: the gateway is gone.
        """
        try:
            self._sock.sendall(_frame(message))
        except OSError as error:
            raise Closed(repr(error)) from None

    def receive(self, timeout: float | None) -> dict[str, Any] | None:
        """Return the next message; None when none comes within `timeout` seconds.

        Raises:
            Closed: the gateway is gone.
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
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, sock: socket.socket) -> AsyncChannel:
        """Wrap a connected stream socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: dict[str, Any]) -> None:
        """Send without waiting; messages to the learner are few and small."""
        if not self._writer.is_closing():
            self._writer.write(_frame(message))

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            Closed: the learner is gone, or talks nonsense.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > LIMIT:
                raise Closed(f"a message of {length} bytes")
            return _parse(await self._reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            raise Closed(repr(error)) from None

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()
