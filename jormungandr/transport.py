"""Transports: how a client's request reaches a service; small, so that tests can replace them."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from jormungandr.errors import InvalidValue
from jormungandr.http1 import Broken, Link

__all__ = ["HttpTransport", "Response", "Transport"]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Transport(Protocol):
    """Sends one request and returns its answer; several threads may do so at once."""

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Send and wait.

        Raises:
            OSError: no answer came; whether the request arrived is not known.
        """
        ...

    def close(self) -> None:
        """Release all connections; a request of another thread ends with an `OSError`."""
        ...


class HttpTransport:
    """HTTP/1.1 over keep-alive connections, one for each calling thread.

    Args:
        url: ``http://host:port`` or ``https://host:port``, with an optional path in front of `/v1`.
        ca_file: PEM file of the authorities, or the certificates of services, that are trusted;
            None is ``JORMUNGANDR_CA_FILE``, and without that the system's authorities.
    """

    def __init__(self, url: str, ca_file: str | Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is no number, say
            host = port = None
        if not host or parts.scheme not in ("http", "https"):
            raise InvalidValue("url", "http://host:port or https://host:port", repr(url))
        self._host, self._port = host, port
        self._prefix = parts.path.rstrip("/")
        self._tls = _trusting(ca_file) if parts.scheme == "https" else None
        self._links: dict[int, Link] = {}  # by thread
        self._closed = 0  # how often: a request that was under way is not sent again

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Send and wait; a connection the server closed while idle is opened again once."""
        fresh, closed = threading.get_ident() not in self._links, self._closed
        try:
            try:
                return self._send(method, path, body, headers, timeout)
            except ConnectionError:
                self._drop()
                if fresh or self._closed != closed:
                    raise
                return self._send(method, path, body, headers, timeout)
        except Broken as error:
            self._drop()
            raise ConnectionError(repr(error)) from error
        except BaseException:  # Ctrl-C too: an answer that comes late is not the next request's
            self._drop()
            raise

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        thread = threading.get_ident()
        link = self._links.get(thread)
        if link is None:
            link = self._links[thread] = Link(self._host, self._port, self._tls, timeout)
        found = Response(*link.request(method, self._prefix + path, body, headers, timeout))
        if link.ends:
            self._drop()
        return found

    def _drop(self) -> None:
        """Close this thread's connection; its next request opens another."""
        link = self._links.pop(threading.get_ident(), None)
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close all connections; the next request opens another."""
        self._closed += 1
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        for thread, link in list(self._links.items()):
            if thread not in others:
                self._links.pop(thread, None)
                link.close()
            else:
                # Wakes the thread that reads from it, which then closes it.
                with contextlib.suppress(OSError):
                    link.sock.shutdown(socket.SHUT_RDWR)


def _trusting(ca_file: str | Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates and names, with TLS 1.2 at least."""
    ca_file = ca_file or os.environ.get("JORMUNGANDR_CA_FILE") or None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one
        expected = "a readable file of certificates, as PEM"
        raise InvalidValue("JORMUNGANDR_CA_FILE", expected, f"{ca_file}: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
