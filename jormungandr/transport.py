"""Transports: how a client's request reaches a service; small, so that tests can replace them."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from jormungandr.errors import InvalidValue

__all__ = ["HttpTransport", "Response", "Transport"]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Transport(Protocol):
    """Sends one request and returns its answer."""

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Send and wait.

        Raises:
            OSError: no answer came; whether the request arrived is not known.
        """
        ...

    def close(self) -> None:
        """Release the connection."""
        ...


class HttpTransport:
    """HTTP/1.1 over one keep-alive connection of the standard library; not for several threads.

    Args:
        url: ``http://host:port`` or ``https://host:port``, with an optional path in front of `/v1`.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is no number, say
            host = port = None
        if not host or parts.scheme not in ("http", "https"):
            raise InvalidValue("url", "http://host:port or https://host:port", repr(url))
        self._host, self._port = host, port
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Send and wait; a connection the server closed while idle is opened again once."""
        fresh = self._connection is None
        try:
            try:
                return self._send(method, path, body, headers, timeout)
            except ConnectionError:
                self.close()
                if fresh:
                    raise
                return self._send(method, path, body, headers, timeout)
        except http.client.HTTPException as error:
            self.close()
            raise ConnectionError(repr(error)) from error
        except OSError:
            self.close()
            raise

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        connection = self._connection or self._connect(timeout)
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request(method, self._prefix + path, body=body, headers=headers)
        answer = connection.getresponse()
        if answer.length is None and not answer.chunked:
            # It ended within its head: a service says how long its answer is.
            raise ConnectionError("an answer of unknown length")
        found = {name.lower(): value for name, value in answer.getheaders()}
        data = answer.read()
        if answer.will_close:
            self.close()
        return Response(answer.status, found, data)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is not None:
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        else:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        self._connection.connect()
        # An actor sends small requests and waits for each: Nagle's delay would be most of the time.
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connection

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
