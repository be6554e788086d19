"""`Link`: one HTTP/1.1 connection of a client, for small requests one after another.

The standard library's reads every answer's head with its parser of mail, and sends a head and its
body as two packets: for an actor, which waits for each answer, that is most of the time. This one
knows what answers of a service, or of a proxy before it, are made of, and nothing else.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

__all__ = ["Broken", "Link"]

#: Bytes of an answer's head, of lines of chunks, and of what is read at once.
HEAD, LINE, PIECE = 1 << 16, 1 << 12, 1 << 18
#: Statuses of answers that have no body.
BODYLESS = (204, 304)
HEX = b"0123456789abcdefABCDEF"


class Broken(Exception):
    """What came is no answer, or not all of one; whether the request arrived is not known."""


class Link:
    """A connection that is open.

    Args:
        host: name or address.
        port: of the service; None is that of its scheme.
        tls: how it is trusted; None speaks no TLS.
        timeout: seconds to connect in.

    Raises:
        OSError: there is none.
    """

    def __init__(
        self, host: str, port: int | None, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        usual = 80 if tls is None else 443
        name = f"[{host}]" if ":" in host else host
        if not name.isascii():
            name = name.encode("idna").decode("ascii")
        name += "" if port in (None, usual) else f":{port}"
        self._host = f"Host: {name}\r\nAccept-Encoding: identity\r\n".encode("ascii")
        found = socket.create_connection((host, port or usual), timeout)
        # An actor sends small requests and waits for each: Nagle's delay would be most of the time.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.sock = found if tls is None else tls.wrap_socket(found, server_hostname=host)
        except BaseException:
            found.close()
            raise
        self._buffer = bytearray()
        #: Whether the service will close it.
        self.ends = False

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request, and return status, headers by lower-case names, and body of its answer.

        Raises:
            OSError: no answer came.
            Broken: what came is none.
            ValueError: the path or a header would be something else on its way.
        """
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError(f"a path like {path[:60]!r}")
        if any("\r" in value or "\n" in value for value in headers.values()):
            raise ValueError("a header of more than one line")
        if self._buffer:  # what nobody asked for would pass for the answer
            raise ConnectionResetError("more than one answer")
        self.sock.settimeout(timeout)
        lines = [f"{method} {path} HTTP/1.1\r\n".encode("ascii"), self._host]
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        if body is not None or method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d\r\n" % len(body or b""))
        self.sock.sendall(b"%b\r\n%b" % (b"".join(lines), body or b""))
        status, found = self._head()
        while status < 200:  # to be continued
            status, found = self._head()
        if method == "HEAD" or status in BODYLESS:
            return status, found, b""
        return status, found, self._body(found)

    def _head(self) -> tuple[int, dict[str, str]]:
        end = self._buffer.find(b"\r\n\r\n")
        while end < 0:
            if len(self._buffer) > HEAD:
                raise Broken("a head without an end")
            if not self._more():
                if not self._buffer:
                    raise ConnectionResetError("closed without an answer")
                raise ConnectionResetError("an answer that ended within its head")
            end = self._buffer.find(b"\r\n\r\n")
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise Broken(f"a status line like {first[:60]!r}")
        found: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Broken(f"a header like {line[:60]!r}")
            found[name.lower()] = value.strip(" \t")
        kept = found.get("connection", "").lower()
        self.ends = "close" in kept or (version == "HTTP/1.0" and "keep-alive" not in kept)
        return int(rest[:3]), found

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        length = headers.get("content-length")
        if length is None:
            # It ended within its head: a service says how long its answer is.
            raise ConnectionError("an answer of unknown length")
        if not (length.isascii() and length.isdigit()):
            raise Broken(f"a length like {length[:60]!r}")
        return self._take(int(length))

    def _chunks(self) -> bytes:
        parts = []
        while True:
            text = self._line().partition(b";")[0].strip()
            if not text or text.strip(HEX):  # `int` takes signs and underscores too
                raise Broken(f"the length of a chunk like {text[:60]!r}")
            size = int(text, 16)
            if not size:
                break
            parts.append(self._take(size))
            if self._line():
                raise Broken("a chunk without its end")
        while self._line():  # trailers
            pass
        return b"".join(parts)

    def _line(self) -> bytes:
        end = self._buffer.find(b"\r\n")
        while end < 0:
            if len(self._buffer) > LINE:
                raise Broken("a line without an end")
            if not self._more():
                raise Broken("an answer that ended within a line")
            end = self._buffer.find(b"\r\n")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._more():
                raise Broken(f"{len(self._buffer)} bytes of {size}")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _more(self) -> bool:
        """Read what has come; return whether there is more to come."""
        data = self.sock.recv(PIECE)
        self._buffer += data
        return bool(data)

    def close(self) -> None:
        """Close it."""
        self.sock.close()
